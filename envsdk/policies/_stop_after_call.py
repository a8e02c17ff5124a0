"""A policy that ends each reply of another policy at the end of a tool call."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..authoring._env import Env
from ..errors import ConfigError
from ..rendering.reading import CallEnded, ReplyEvent, ReplyReader
from ..rendering.renderer import Renderer, TokenIds
from ._find import find_policy, of_role
from ._policy import PolicyLike

if TYPE_CHECKING:
    from numpy.typing import NDArray


class StopAfterCall:
    """End each reply at the end of a tool call, so that the model does not write more, or invent the tool's result.

    The action has the tokens up to the end of the call and the finish reason `stop`, without a stop token. The next
    observation closes the turn with tokens that were not sampled, as it closes every reply that did not end itself (the
    note `truncated_reply`). A reply that could not be parsed without errors at that point continues.

    Args:
        policy: A policy whose `streams` is True; see `Policy`.
        calls: The number of calls after which a reply ends.

    Raises:
        ConfigError: If `calls` is not at least 1, or the policy does not stream.
    """

    def __init__(self, policy: PolicyLike, calls: int = 1) -> None:
        if calls < 1:
            raise ConfigError(f"calls is {calls}; expected at least 1")
        if not getattr(policy, "streams", False):
            raise ConfigError(
                f"the policy {policy!r:.80} does not report tokens while it samples them; expected one whose `streams` "
                "is True, such as TransformersPolicy"
            )
        self._policy = policy
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._policy, name)

    def for_episode(self, env: Env, seed: int | None) -> "Callable[..., Any]":
        """Return the policy that plays one episode."""
        return _Stopping(env, find_policy(self._policy, env, seed), self._calls)


class _Stopping:
    """The policy of one episode."""

    streams = True

    def __init__(self, env: Env, policy: Callable[..., Any], calls: int) -> None:
        self._env, self._policy, self._calls = env, policy, calls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._policy, name)

    def __call__(
        self, prompt: "NDArray[np.int32]", *, context: str, role: str, on_tokens: Any = None, **others: Any
    ) -> Any:
        acting = self._env.episode.pending_reply(context).context
        reader, events = acting.read_reply()
        watch = _Watch(acting.renderer, acting.reply_tokens(), reader, events, self._calls, on_tokens)
        given = {"on_tokens": watch} if getattr(of_role(self._policy, role), "streams", False) else {}
        return self._policy(prompt, context=context, role=role, **others, **given)


class _Watch:
    """Reads a reply while it is sampled, and tells the policy when to end it."""

    def __init__(
        self,
        renderer: Renderer,
        begun: "tuple[NDArray[np.int32], NDArray[np.int32]]",
        reader: ReplyReader,
        events: list[ReplyEvent],
        calls: int,
        listener: Callable[[TokenIds], Any] | None,
    ) -> None:
        self._renderer, self._reader, self._listener = renderer, reader, listener
        self._prompt_tail, sampled = begun
        self._sampled: list[int] = sampled.tolist()
        self._left = calls - _ended(events)

    def __call__(self, tokens: TokenIds) -> bool:
        """Return whether the reply should end after these tokens."""
        wants_end = bool(self._listener(tokens)) if self._listener is not None else False
        self._sampled += map(int, tokens)
        self._left -= (ended := _ended(self._reader.feed(tokens)))
        if wants_end or not ended or self._left > 0:
            return wants_end
        # The reply, closed as the next observation closes it, must parse without errors.
        closing = self._renderer.extend(self._sampled, [], generation_prompt=False)
        closed = [*self._sampled, *closing.tolist()]
        stops = [index for index, token in enumerate(closed) if token in self._renderer.stop_token_ids]
        read = closed[: stops[0] + 1] if stops else closed
        return not self._renderer.parse(read, prompt_tail=self._prompt_tail).errors


def _ended(events: list[ReplyEvent]) -> int:
    return sum(isinstance(event, CallEnded) and event.call.error is None for event in events)
