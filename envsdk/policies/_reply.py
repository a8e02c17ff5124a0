"""A policy that replies with messages that a function writes, such as an environment's reference replies."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..authoring._env import Env
from ..contexts._protocol import Action
from ..messages import Message
from ..rendering.renderer import Renderer
from ._vocabularies import ANY_TOKENIZER

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ReplyPolicy:
    """Reply with the message that a function returns, with probability 1.

    Args:
        env: The environment of the episode. The renderer of the acting context converts the message to tokens.
        reply: A function from an environment to its next reply: a message, or its content as a string. It gets the
            environment of the acting agent, which is a sub-agent's where a sub-agent acts.
    """

    tokenizer = ANY_TOKENIZER

    def __init__(self, env: Env, reply: Callable[[Env], Message | str]) -> None:
        self._env = env
        self._reply = reply

    def __call__(
        self, prompt: "NDArray[np.int32]", *, context: str, max_tokens: int | None, stop: tuple[str, ...], **_: Any
    ) -> Action:
        """Return the reply as tokens, cut after the first stop string in it and after `max_tokens`."""
        pending = self._env.episode.pending_reply(context)
        renderer = pending.context.renderer
        reply = self._reply(cast("Env", pending.env))  # every environment of an episode is an Env
        message = Message(role="assistant", content=reply) if isinstance(reply, str) else reply
        tokens = renderer.reply(message)
        tokens = tokens[: _length_with_stop(renderer, tokens, stop)]
        is_cut = max_tokens is not None and len(tokens) > max_tokens
        tokens = tokens[:max_tokens]
        return Action(tokens, np.zeros(len(tokens), dtype=np.float32), "length" if is_cut else "stop")


def _length_with_stop(renderer: Renderer, tokens: "NDArray[np.int32]", stop: tuple[str, ...]) -> int:
    """Return the number of tokens up to and including the one that completes the first stop string."""
    pieces = renderer.tokenizer.token_bytes(tokens)
    text = b"".join(pieces)
    ends = [text.index(name) + len(name) for name in map(str.encode, stop) if name in text]
    return int(np.searchsorted(np.cumsum([len(piece) for piece in pieces]), min(ends))) + 1 if ends else len(tokens)
