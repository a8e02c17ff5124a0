"""The policies that need no model: random tokens, and messages that a function writes."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..authoring._env import Env, pending_reply
from ..contexts._protocol import Action
from ..episodes._actions import action_of
from ..messages import Message
from ._vocabularies import ANY_TOKENIZER

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RandomPolicy:
    """Sample uniformly random tokens, with exact log-probabilities.

    The same seed, episode id and prompt give the same reply.

    Args:
        vocab_size: The size of the vocabulary. Sampled ids are smaller than it.
        seed: A different seed gives different replies.
        stop_probability: The probability that a token is the stop token.
    """

    tokenizer = ANY_TOKENIZER

    def __init__(self, vocab_size: int, *, seed: int = 0, stop_probability: float = 0.1) -> None:
        self._vocab_size = vocab_size
        self._seed = seed
        self._stop_probability = stop_probability

    def __call__(
        self,
        prompt: "NDArray[np.int32]",
        *,
        episode_id: str,
        stop_token_ids: tuple[int, ...],
        max_tokens: int | None,
        **_: Any,
    ) -> Action:
        """Sample a reply: each token is the stop token with `stop_probability`, else any other id, uniformly."""
        rng = np.random.default_rng([abs(self._seed), zlib.crc32(episode_id.encode()), zlib.crc32(prompt.tobytes())])
        length = int(rng.geometric(self._stop_probability))
        is_cut = max_tokens is not None and length > max_tokens
        length = min(length, max_tokens) if max_tokens is not None else length
        tokens = rng.integers(0, self._vocab_size - 1, size=length, dtype=np.int32)
        tokens += tokens >= stop_token_ids[0]  # any id but the stop token
        logprobs = np.full(length, np.log((1 - self._stop_probability) / (self._vocab_size - 1)), dtype=np.float32)
        if not is_cut:
            tokens[-1], logprobs[-1] = stop_token_ids[0], np.log(self._stop_probability)
        return Action(tokens, logprobs, "length" if is_cut else "stop")


@dataclass(eq=False, repr=False)
class ReplyPolicy:
    """Reply with the message that a function returns, with probability 1.

    Args:
        env: The environment of the episode. The renderer of the acting context converts the message to tokens.
        reply: A function that returns the next reply of an environment: a message, or its content. It gets the
            environment of the acting agent, which is a sub-agent's where a sub-agent acts.
    """

    tokenizer = ANY_TOKENIZER

    _env: Env
    _reply: Callable[[Env], Message | str]

    def __call__(
        self, prompt: "NDArray[np.int32]", *, context: str, max_tokens: int | None, stop: tuple[str, ...], **_: Any
    ) -> Action:
        """Return the reply as tokens, cut after the first stop string in it and after `max_tokens`."""
        pending = self._env.episode.pending_reply(context)
        asked = pending_reply.set(pending)  # it may be of another conversation of a program than the current one
        try:
            reply = self._reply(cast("Env", pending.env))  # every environment of an episode is an Env
        finally:
            pending_reply.reset(asked)
        message = Message(role="assistant", content=reply) if isinstance(reply, str) else reply
        return action_of(message, pending.context.renderer, stop=stop, max_tokens=max_tokens)
