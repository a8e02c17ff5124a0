"""Handoffs: an environment lets a sub-agent (another environment) continue, and receives its result."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, cast

from .._visible import brief, type_of
from ..contexts._history import HistoryPolicy, SummaryRequest
from ..errors import ConfigError, HandoffError
from ..limits import Limits
from ..messages import Message, ToolSchema, to_messages
from ..rendering.renderer import Renderer
from ._functions import copied_function
from ._turn import Turn


class AgentEnvironment(Protocol):
    """The interface of an agent's environment, besides the methods that the driver calls. `Env` implements it."""

    @property
    def name(self) -> str:
        """The id with which the environment was made, or its class's name."""
        ...

    @property
    def renderer(self) -> Renderer:
        """The renderer of the environment's contexts."""
        ...

    @property
    def history(self) -> HistoryPolicy:
        """The history policy of the environment's contexts."""
        ...

    @property
    def limits(self) -> Limits:
        """The limits of an episode."""
        ...

    def renderer_of(self, role: str) -> Renderer:
        """Return the renderer of a role's context."""
        ...

    def default_tools(self) -> Sequence[ToolSchema]:
        """Return the tools of a first turn that does not set any."""
        ...


MessageFilter: TypeAlias = Callable[[list[Message]], Sequence[Message]]
"""A function that selects the messages of the conversation so far that a sub-agent sees."""


@dataclass(frozen=True, slots=True)
class HandoffResult:
    """The result of a handoff, which `resume` receives.

    Attributes:
        messages: All messages of the sub-agent's first context, in order.
        content: The text of the sub-agent's last reply; empty if it never replied.
        reward: The sum of the sub-agent's rewards; None if it was never scored.
        stop_reason: The reason why the sub-agent ended, a `StopReason`.
        error: The error that ended the sub-agent, or None.
        context: The name of the sub-agent's first context, such as `main/researcher-1`; empty if it has none. A later
            turn can score it: `Turn(context_rewards={result.context: 1.0})`.
    """

    messages: list[Message]
    content: str
    reward: float | None
    stop_reason: str
    error: str | None = None
    context: str = ""


ResultFilter: TypeAlias = Callable[[HandoffResult], HandoffResult]
"""A function that changes the result that `resume` receives."""


class Handoff:
    """Let a sub-agent continue the episode. `start`, `respond`, `resume` and tools may return it instead of a `Turn`.

    The sub-agent exchanges messages with the model in its own context. When it ends, the environment that handed
    over continues in its own context, which is kept as a whole: its `resume(result)` returns the next turn. A list of
    handoffs starts several sub-agents, which a rollout runs concurrently; `resume` receives the list of their results.

    The sub-agent's reward is added to the episode's reward, on which every context without its own reward is
    trained. With `adds_reward=False`, only the sub-agent's own contexts are trained on it. `HandoffResult.reward` holds
    it in both cases. A sub-agent that was never scored shares its parent's reward in both cases.

    After a handoff by `start`, `resume` returns the first turn of the environment that handed over, or ends the episode
    with `Turn(terminated=True)`. That turn must not have a reward, since no reply was sampled yet; `context_rewards`
    may score the sub-agents.

    Args:
        env: The sub-agent, an `Env` object that no other running agent uses. If it was made without renderer and
            tokenizer, it uses its parent's.
        task: The sub-agent's task: the task itself, or its index if `env` has tasks.
        role: The sub-agent's role, by which policies and baselines are chosen; by default its class's name in lower
            case.
        limits: The sub-agent's limits, by default those of `env`; a mapping changes the fields that it names. The
            limits of its parents apply as well. If one of them is already reached, no reply is requested, and the
            result reports it as its `stop_reason`. If sub-agents run concurrently, the first one may use up most of a
            shared limit.
        history: The part of the conversation so far that the sub-agent sees: `"fresh"` for none of it; `"full"` for all
            of it, so that the sub-agent's prompt begins with its parent's context, token for token; or a function that
            selects messages, which are rendered again.
        result: A function that changes the `HandoffResult` that `resume` receives, and returns one.
        adds_reward: Whether the rewards of the sub-agent and of all its own sub-agents count for the episode.
        timeout_s: The time limit of the sub-agent in a rollout, in seconds. `step` does not enforce it.

    Raises:
        HandoffError: If `env` is not an `Env`, or the role is not a valid name.
        ConfigError: If another argument is not valid.
    """

    __slots__ = ("adds_reward", "env", "history", "limits", "result", "role", "task", "timeout_s")

    def __init__(
        self,
        env: AgentEnvironment,
        task: Any = None,
        *,
        role: str | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        history: Literal["fresh", "full"] | MessageFilter = "fresh",
        result: ResultFilter | None = None,
        adds_reward: bool = True,
        timeout_s: float | None = None,
    ) -> None:
        if isinstance(env, type) or not hasattr(env, "_envsdk"):
            raise HandoffError(f"a handoff goes to an Env, got {type_of(env)}: give it an object, such as Researcher()")
        if not callable(history) and not (isinstance(history, str) and history in ("fresh", "full")):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"history is {brief(history)}; expected 'fresh', 'full' or a function from messages to messages"
            )
        if result is not None and not callable(result):
            raise ConfigError(f"result is {brief(result)}; expected a function from a HandoffResult to a HandoffResult")
        role = type(env).__name__.lower() if role is None else role
        if not isinstance(role, str) or not role.isprintable() or not role or "/" in role:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise HandoffError(f"role is {brief(role)}; expected a name without '/' and control characters")
        if not isinstance(adds_reward, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"adds_reward is {brief(adds_reward)}; expected True or False")
        self.adds_reward = adds_reward
        self.env = env
        self.task = task
        self.role = role
        self.limits = None if limits is None else Limits.of(limits, env.limits)
        self.history: Literal["fresh", "full"] | MessageFilter = history
        self.result = result
        if timeout_s is not None and not (isinstance(timeout_s, (int, float)) and timeout_s > 0):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"timeout_s is {brief(timeout_s)}; expected None or a number of seconds above 0")
        self.timeout_s = timeout_s

    def filter_result(self, result: HandoffResult) -> HandoffResult:
        """Return the result that `resume` receives: `result`, changed by the function `result=` if there is one.

        Raises:
            HandoffError: If the function does not return a `HandoffResult`.
        """
        changed = result if self.result is None else self.result(result)
        if not isinstance(changed, HandoffResult):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise HandoffError(
                f"result= of a handoff returned {type_of(changed)}; expected a HandoffResult, such as "
                "dataclasses.replace(result, content=...)"
            )
        return changed

    def filter_messages(self, messages: list[Message]) -> list[Message]:
        """Return the messages of the conversation so far that are rendered again for the sub-agent.

        Raises:
            HandoffError: If the function `history=` does not return messages.
        """
        if not callable(self.history):
            return []
        try:
            return to_messages(list(self.history(messages)))
        except (TypeError, ValueError, KeyError) as error:
            raise HandoffError(f"history= of a handoff returned something other than messages: {error}") from error

    def __deepcopy__(self, memo: dict[int, Any]) -> "Handoff":
        other = copy.copy(self)
        memo[id(self)] = other
        other.env, other.task = copy.deepcopy(self.env, memo), copy.deepcopy(self.task, memo)
        other.result = None if self.result is None else copied_function(self.result, memo)
        other.history = copied_function(self.history, memo) if callable(self.history) else self.history
        return other

    def __repr__(self) -> str:
        return f"<Handoff to {self.env!r} as {self.role!r}>"


def is_handoff(returned: object) -> bool:
    """Return whether an author's method returned a handoff, or a non-empty list of handoffs."""
    if isinstance(returned, (list, tuple)):
        items = cast("Sequence[Any]", returned)
        return bool(items) and all(isinstance(item, Handoff) for item in items)
    return isinstance(returned, Handoff)


@dataclass(slots=True)
class PendingHandoffs:
    """The handoffs whose results an agent waits for."""

    is_list: bool
    """True if the author returned a list, so that `resume` receives one."""
    handoffs: list[Handoff]
    results: list[HandoffResult] = field(default_factory=list[HandoffResult])
    """The results so far, in the order of `handoffs`."""
    turn: Turn | None = None
    """The turn that the agent takes after a summary; None if its `resume` returns the next turn."""
    request: SummaryRequest | None = None
    """The request for a summary, if it waits for one."""
