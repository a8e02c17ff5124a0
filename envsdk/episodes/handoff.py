"""Handing an episode over to somebody else: a sub-agent, which is an environment of its own."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from ..contexts.history_policy import SummaryRequest
from ..errors import ConfigError, HandoffError
from ..limits import Limits
from ..messages import Message, to_messages
from .environment import Environment, machinery_of
from .functions import copied_function
from .turn import Turn

MessageFilter: TypeAlias = Callable[[list[Message]], Sequence[Message]]
"""Chooses what of a conversation goes on."""


@dataclass(frozen=True, slots=True)
class HandoffResult:
    """What came of a handoff."""

    messages: list[Message]
    """Everything that was said in the sub-agent's first context."""
    content: str
    """What the sub-agent said last; empty if it never replied."""
    reward: float | None
    """The sum of its rewards; None if it was never scored."""
    stop_reason: str
    """Why it ended: a `StopReason`."""
    error: str | None = None
    """What went wrong, if it failed."""
    context: str = ""
    """The name of its first context, such as `main/researcher-1`: `Turn(context_rewards={result.context: 1.0})`."""


ResultFilter: TypeAlias = Callable[[HandoffResult], HandoffResult]


class Handoff:
    """Somebody else goes on. `start`, `respond` and `resume` return it in place of a `Turn`, and so may a tool.

    The sub-agent speaks with the model in a context of its own. When it ends, `resume(result)` of the environment that
    handed over says what comes next, in its own context, all of which is kept. A list of handoffs is sub-agents side by
    side; `resume` then gets the list of their results.

    What the sub-agent earns adds to the episode's reward, and so to what every context without a reward of its own is
    trained on. With `adds_reward=False` it is the reward of the sub-agent's own contexts alone; `resume` finds it in
    `HandoffResult.reward` in either case. A sub-agent that was never scored shares its parent's reward either way.

    After a handoff by `start`, `resume` returns the first turn of the environment that handed over, or ends the episode
    with `Turn(terminated=True)`; that turn has no reward, since nobody has replied to it (`context_rewards` may score
    the sub-agents).

    Args:
        env: The sub-agent: an `Env` of its own. One that was made without renderer and tokenizer takes over its
            parent's.
        task: Its task: the task itself; or the index of one, if it has tasks.
        role: What it is called; by default its class's name in lower case. Policies and baselines go by role.
        limits: Its limits; by default its own, of which a mapping changes the fields that it names. Those of its
            parents hold, too: where one is reached already, nobody is asked, and the result says so. Where sub-agents
            side by side share one, who comes first takes most of it.
        history: What it sees of the conversation so far: `"fresh"`, nothing; `"full"`, all of it, as a prompt that
            starts with its parent's context, token for token; or a function that chooses messages, which are written
            again.
        result: Changes what `resume` gets: a function from a `HandoffResult` to one.
        adds_reward: Whether what it earns, with all below it, counts for the episode.
        timeout_s: How many seconds it may take in a rollout; whoever calls `step` has a clock of their own.

    Raises:
        HandoffError: If `env` is no `Env`, or the role is no name.
        ConfigError: If the limits or the history are not valid.
    """

    __slots__ = ("adds_reward", "env", "history", "limits", "result", "role", "task", "timeout_s")

    def __init__(
        self,
        env: Environment,
        task: Any = None,
        *,
        role: str | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        history: Literal["fresh", "full"] | MessageFilter = "fresh",
        result: ResultFilter | None = None,
        adds_reward: bool = True,
        timeout_s: float | None = None,
    ) -> None:
        if machinery_of(env) is None:
            given = f"the class {env.__name__}" if isinstance(env, type) else f"a {type(env).__name__}"
            raise HandoffError(f"a handoff goes to an Env, got {given}: make one, such as Researcher()")
        if not callable(history) and not (isinstance(history, str) and history in ("fresh", "full")):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"history is {history!r}; expected 'fresh', 'full' or a function of the messages")
        if result is not None and not callable(result):
            raise ConfigError(f"result is {result!r}; expected a function from a HandoffResult to one")
        role = type(env).__name__.lower() if role is None else role
        if not isinstance(role, str) or not role.isprintable() or not role or "/" in role:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise HandoffError(f"role is {role!r}; expected a name without '/' and control characters")
        if not isinstance(adds_reward, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"adds_reward is {adds_reward!r:.80}; expected True or False")
        self.adds_reward = adds_reward
        self.env = env
        self.task = task
        self.role = role
        self.limits = None if limits is None else Limits.of(limits, env.limits)
        self.history: Literal["fresh", "full"] | MessageFilter = history
        self.result = result
        if timeout_s is not None and not (isinstance(timeout_s, (int, float)) and timeout_s > 0):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"timeout_s is {timeout_s!r}; expected a number above 0")
        self.timeout_s = timeout_s

    def changed(self, result: HandoffResult) -> HandoffResult:
        """What `resume` gets.

        Raises:
            HandoffError: If the function that changes it returns anything else.
        """
        changed = result if self.result is None else self.result(result)
        if not isinstance(changed, HandoffResult):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise HandoffError(
                f"result= of a handoff returned a {type(changed).__name__}; expected a HandoffResult, such as "
                "dataclasses.replace(result, content=...)"
            )
        return changed

    def chosen(self, messages: list[Message]) -> list[Message]:
        """What the sub-agent sees of the conversation so far, written again.

        Raises:
            HandoffError: If the function that chooses returns no messages.
        """
        if not callable(self.history):
            return []
        try:
            return to_messages(list(self.history(messages)))
        except (TypeError, ValueError, KeyError) as error:
            raise HandoffError(f"history= of a handoff returned something that is no messages: {error}") from error

    def __deepcopy__(self, memo: dict[int, Any]) -> "Handoff":
        other = copy.copy(self)
        memo[id(self)] = other
        other.env, other.task = copy.deepcopy(self.env, memo), copy.deepcopy(self.task, memo)
        other.result = None if self.result is None else copied_function(self.result, memo)
        other.history = copied_function(self.history, memo) if callable(self.history) else self.history
        return other

    def __repr__(self) -> str:
        return f"<Handoff to {self.env!r} as {self.role!r}>"


def is_handoff(said: object) -> bool:
    """Whether what an author returned is a handoff, or a list of them."""
    if isinstance(said, (list, tuple)):
        items = cast("Sequence[Any]", said)
        return bool(items) and all(isinstance(item, Handoff) for item in items)
    return isinstance(said, Handoff)


@dataclass(slots=True)
class PendingHandoffs:
    """What an agent that handed over waits for."""

    is_list: bool
    handoffs: list[Handoff]
    results: list[HandoffResult] = field(default_factory=list[HandoffResult])
    """Of the first of them, in order; the others are still to come."""
    turn: Turn | None = None
    """What it says next, if it waits for a summary; else its `resume` is asked."""
    request: SummaryRequest | None = None
