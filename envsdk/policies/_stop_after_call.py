"""A policy that ends each reply of another policy at the end of a tool call."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._visible import brief
from ..authoring._env import Env
from ..errors import ConfigError
from ..rendering.reading import CallEnded, ReplyEvent
from ..rendering.renderer import TokenIds
from ._find import find_policy, of_role
from ._policy import PolicyLike

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class _PolicyProxy:
    """Passes on the attributes of the policy in `_policy`."""

    _policy: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._policy, name)


class StopAfterCall(_PolicyProxy):
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
                f"the policy {brief(policy)} does not report tokens while it samples them; expected one whose "
                "`streams` is True, such as TransformersPolicy"
            )
        self._policy = policy
        self._calls = calls

    def for_episode(self, env: Env, seed: int | None) -> "Callable[..., Any]":
        """Return the policy that plays one episode."""
        return _Stopping(env, find_policy(self._policy, env, seed), self._calls)


@dataclass(eq=False, repr=False)
class _Stopping(_PolicyProxy):
    """The policy of one episode."""

    streams = True

    _env: Env
    _policy: Callable[..., Any]
    _calls: int

    def __call__(
        self, prompt: "NDArray[np.int32]", *, context: str, role: str, on_tokens: Any = None, **others: Any
    ) -> Any:
        acting = self._env.episode.pending_reply(context).context
        renderer = acting.renderer
        reader, events = acting.read_reply()
        prompt_tail, begun = acting.reply_tokens()
        sampled: list[int] = begun.tolist()
        ended = _ended(events)

        def watch(tokens: TokenIds) -> bool:
            """Read the reply while it is sampled, and return whether it should end after these tokens."""
            nonlocal ended
            wants_end = on_tokens is not None and bool(on_tokens(tokens))
            sampled.extend(map(int, tokens))
            new = _ended(reader.feed(tokens))
            ended += new
            if wants_end or not new or ended < self._calls:
                return wants_end
            # The reply, closed as the next observation closes it, must parse without errors.
            closed = [*sampled, *renderer.extend(sampled, [], generation_prompt=False).tolist()]
            stops = [index for index, token in enumerate(closed) if token in renderer.stop_token_ids]
            read = closed[: stops[0] + 1] if stops else closed
            return not renderer.parse(read, prompt_tail=prompt_tail).errors

        given = {"on_tokens": watch} if getattr(of_role(self._policy, role), "streams", False) else {}
        return self._policy(prompt, context=context, role=role, **others, **given)


def _ended(events: list[ReplyEvent]) -> int:
    return sum(isinstance(event, CallEnded) and event.call.error is None for event in events)
