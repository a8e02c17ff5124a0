"""Who speaks in an episode: one environment's part of it, with its contexts, its limits and its counts."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..contexts.context import Context
from ..errors import EpisodeError, TurnError
from ..limits import MAX_EMPTY_ABORTS, STEPS_WITHOUT_LIMIT, Limits, StopReason
from ..messages import Message, check_calls
from ..rendering.renderer import NOT_ENDED
from ..trajectories.steps import Part, Step
from .actions import CheckedAction, check_action
from .handoff import Handoff, Waiting
from .turn import Turn

if TYPE_CHECKING:
    from ..authoring.env import Env
    from .episode import Episode, Result

MAIN = "main"


class Agent:
    """An environment in an episode: the one that was reset, or a sub-agent.

    Args:
        episode: The episode.
        env: The environment.
        name: The name of its first context, if it does not say another.
        role: What it is called.
        limits: When it is cut off.
        parent: Who handed over to it.
    """

    def __init__(
        self, episode: "Episode", env: "Env", name: str, role: str, limits: Limits, parent: "Agent | None" = None
    ) -> None:
        self.episode = episode
        self.env = env
        self.name = name
        self.role = role
        self.limits = limits
        self.parent = parent
        self.handoff: Handoff | None = None
        self.contexts: dict[str, Context] = {}
        self.current: Context | None = None
        self.turn = Turn()
        self.due: Step | None = None  # the observation that waits for its action, ...
        self.handed_out: Result | None = None  # ... as it was handed out
        self.record: list[Step | Agent] = []
        """The steps that were answered, in part or whole, and the sub-agents that spoke in between."""
        self.waiting: Waiting | None = None
        self.returns = False  # a sub-agent spoke since: the next observation is a return
        self.unasked = False  # it ended before anybody was asked: the next step says so
        self.refused = False  # a limit kept it from handing over, since its last reply
        self.kept_reward: float | None = None  # what it earned that does not count for the episode
        self.handovers = 0  # how many in a row came to nothing, ...
        self.steps_at_handover = 0  # ... because nobody replied since the one before
        self.closed = False  # whether its environment was closed
        self.is_summary = False  # it writes a summary for its parent's history policy, whose steps it does not count as
        self.stop_reason: StopReason | None = None
        self.error: str | None = None
        self.task: Any = None
        self.steps = 0
        self.sampled = 0
        self.tool_calls = 0
        self.cut: StopReason | None = None  # what cut its last reply, if its author did not ask for that
        self.empty_aborts = 0  # how many interruptions in a row came without a token
        self._names: dict[str, int] = {}

    @property
    def context(self) -> Context:
        """The context that is spoken to."""
        if self.current is None:
            raise TurnError(f"{self.name!r} has no context yet: nothing was said")
        return self.current

    @property
    def last_step(self) -> Step:
        """Its own last step that was answered."""
        return next(step for step in reversed(self.record) if isinstance(step, Step))

    @property
    def keeps_reward(self) -> bool:
        """Whether what it earns is its contexts' own, and not the episode's."""
        return any(agent.handoff is not None and not agent.handoff.adds_reward for agent in self.lineage())

    @property
    def is_running(self) -> bool:
        """Whether it may still speak."""
        episode = self.episode
        return self.stop_reason is None and episode.trajectory is None and not episode.abandoned

    def lineage(self) -> "Iterator[Agent]":
        """Itself and all that handed over to it, one after the other."""
        agent: Agent | None = self
        while agent is not None:
            yield agent
            agent = agent.parent

    def walk(self) -> "Iterator[Step | Agent]":
        """Its steps and all agents below it, depth-first; each agent before its steps."""
        yield self
        for item in self.record:
            if isinstance(item, Agent):
                yield from item.walk()
            else:
                yield item

    def rewards(self) -> "Iterator[float]":
        """What it earned, step by step, with those of its sub-agents whose rewards add to its own."""
        if self.kept_reward is not None:
            yield self.kept_reward
        for item in self.record:
            if isinstance(item, Step):
                if item.reward is not None:
                    yield item.reward
            elif item.handoff is None or item.handoff.adds_reward:
                yield from item.rewards()

    def agents(self) -> "Iterator[Agent]":
        """Itself and all agents below it, depth-first."""
        return (item for item in self.walk() if isinstance(item, Agent))

    def name_of(self, turn: Turn) -> str:
        """The name of the context that a turn speaks to."""
        if turn.context is None:
            return self.name if self.current is None else self.current.name
        return self.full_name(turn.context)

    def full_name(self, name: str) -> str:
        """The name in the episode of what its environment calls `name`; full names stay."""
        if self.parent is None or name == self.name or name.startswith(f"{self.name}/"):
            return name
        return self.name if name == MAIN else f"{self.name}/{name}"

    def own_name(self, name: str) -> str:
        """What its environment calls one of its contexts, whether it is a sub-agent's or not."""
        if self.parent is None:
            return name
        return MAIN if name == self.name else name.removeprefix(f"{self.name}/")

    def child_name(self, role: str) -> str:
        """A name for the context of another sub-agent of that role."""
        name = f"{(self.current or self).name}/{role}"
        self._names[name] = self._names.get(name, 0) + 1
        return f"{name}-{self._names[name]}"

    # Actions.

    def receive(self, action: object) -> Message | None:
        """Take an action; the whole reply as a message, or None if there is nothing to answer.

        Raises:
            EpisodeError: If no action is due.
            ActionError: If the action is not legal.
        """
        step = self.due
        if step is None and self.unasked:
            self.unasked = False
            return None
        if step is None or self.episode.trajectory is not None:
            raise EpisodeError(
                "step() after the end of the episode: call reset()"
                if self.episode.trajectory is not None
                else "step() while no action is due: call reset() first, and step() once for each observation"
            )
        context = self.context
        checked = check_action(action, context.renderer.tokenizer.vocab_size)
        self._act(step, checked)
        if checked.finish_reason == "abort":
            if self.max_tokens() != 0 and self.empty_aborts < MAX_EMPTY_ABORTS:
                return None
            step.finish_reason = "length"  # there is no room for the rest, or none comes
        self.due, self.cut = None, self._cut_by(step)
        message = check_calls(self._read_reply(step), context.tools)
        step.reply = len(context.messages)
        context.add_reply(message)
        self.count(tool_calls=len(message.tool_calls))
        return message.as_reply(context.new_text(step.stop - step.action_start))

    def stops(self) -> tuple[str, ...]:
        """The strings at which the next reply should stop."""
        return (*self.context.renderer.stop_strings, *self.turn.stop)

    def _act(self, step: Step, action: CheckedAction) -> None:
        context = self.context
        context.act(action.tokens, action.logprobs)
        stop = len(context.log_tokens)
        step.parts += (Part(stop, action.temperature, action.policy_version, action.extra),)
        step.finish_reason = action.finish_reason
        is_empty_abort = action.finish_reason == "abort" and not len(action.tokens)
        self.empty_aborts = self.empty_aborts + 1 if is_empty_abort else 0
        if len(step.parts) == 1:
            self.refused = False
            self.record.append(step)
            self.count(steps=1)
        self.count(sampled=len(action.tokens))

    def _read_reply(self, step: Step) -> Message:
        """The reply as a message. One that ended at a stop string is as it should be, though it has no stop token."""
        message, stops = self.context.parse_reply(), self.stops()
        if NOT_ENDED in message.errors and stops and step.finish_reason == "stop":
            text = str(self.context.new_text(step.stop - step.action_start))
            if any(stop in text for stop in stops):
                errors = tuple(error for error in message.errors if error != NOT_ENDED)
                return message.model_copy(update={"errors": errors})
        return message

    # Limits.

    def count(self, *, steps: int = 0, sampled: int = 0, tool_calls: int = 0) -> None:
        """Count for itself and for all that handed over to it."""
        for agent in self.lineage():
            agent.steps += steps
            agent.sampled += sampled
            agent.tool_calls += tool_calls
            if agent.is_summary:
                steps = 0

    def reason_to_stop(self, turn: Turn) -> StopReason | None:
        """The first that holds, in this order: what the environment says comes before any limit."""
        if turn.terminated:
            return StopReason.TERMINATED
        return StopReason.TRUNCATED if turn.truncated else self.limit_now()

    def limit_now(self) -> StopReason | None:
        """Return the limit that ends it after its last reply, if one does: its own, or that of an agent above it."""
        if self.empty_aborts >= MAX_EMPTY_ABORTS:
            return StopReason.ABORTED
        if self.limits.end_on_cut and self.cut is not None:
            return self.cut
        reached = next((reason for agent in self.lineage() if (reason := agent.limit_reached()) is not None), None)
        return StopReason.NO_END if reached is None and self.has_no_end() else reached

    def _cut_by(self, step: Step) -> StopReason | None:
        """Return what cut a reply, if it was cut and by something other than `Turn(max_tokens=)`."""
        if step.finish_reason != "length" or self.turn_left(step) == 0:
            return None  # its author expects it to be cut there
        if self.sampled_left() == 0:
            return StopReason.MAX_SAMPLED_TOKENS
        return StopReason.MAX_CONTEXT_TOKENS if self.context_left() == 0 else StopReason.CUT

    def has_no_end(self) -> bool:
        """Return whether it had as many steps as an episode may have that nothing limits."""
        if self.steps < STEPS_WITHOUT_LIMIT or any(agent.limits.max_steps is not None for agent in self.lineage()):
            return False
        # Each token brings max_sampled_tokens closer, so that steps with tokens come to an end by themselves.
        return self.sampled_left() is None or self.steps - self.sampled >= STEPS_WITHOUT_LIMIT

    def limit_reached(self) -> StopReason | None:
        """Which of its own limits is reached, if one is."""
        limits = self.limits
        reasons = (
            (StopReason.MAX_STEPS, _reached(self.steps, limits.max_steps)),
            (StopReason.MAX_SAMPLED_TOKENS, _reached(self.sampled, limits.max_sampled_tokens)),
            (StopReason.MAX_TOOL_CALLS, _reached(self.tool_calls, limits.max_tool_calls)),
        )
        return next((reason for reason, holds in reasons if holds), None)

    def max_tokens(self) -> int | None:
        """Return how many tokens the rest of the reply may have: the least of what the turn and each limit leave.

        None if none of them limits it.
        """
        left = (self.turn_left(self.due), self.context_left(), self.sampled_left())
        return min((count for count in left if count is not None), default=None)

    def turn_left(self, step: Step | None) -> int | None:
        """Return how many of its turn's `max_tokens` a step has left; of these, the parts of a reply share one."""
        if self.turn.max_tokens is None:
            return None
        return max(0, self.turn.max_tokens - (step.stop - step.action_start if step is not None else 0))

    def context_left(self) -> int | None:
        """Return for how many tokens its context has room."""
        limit = self.limits.max_context_tokens
        return None if limit is None else max(0, limit - len(self.context))

    def sampled_left(self) -> int | None:
        """Return how many tokens may still be sampled, by it and by those that handed over to it."""
        left = [limit - agent.sampled for agent in self.lineage() if (limit := agent.limits.max_sampled_tokens)]
        return max(0, min(left)) if left else None

    def hands_over_for_nothing(self) -> bool:
        """Count a handoff, and return whether too many in a row came without a reply in between."""
        self.handovers = self.handovers + 1 if self.steps == self.steps_at_handover else 0
        self.steps_at_handover = self.steps
        return self.handovers > STEPS_WITHOUT_LIMIT

    def tool_calls_left(self, count: int) -> int:
        """How many of the last reply's `count` calls may be run: the limits less those of the replies before it."""
        limited = [agent for agent in self.lineage() if agent.limits.max_tool_calls is not None]
        left = [(agent.limits.max_tool_calls or 0) - (agent.tool_calls - count) for agent in limited]
        return max(0, min([count, *left]))


def _reached(count: int, limit: int | None) -> bool:
    return limit is not None and count >= limit
