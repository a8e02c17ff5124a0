"""Who acts in an episode: one environment's part of it, with its contexts, its limits and its counts."""

from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Any

from ..contexts._context import Context, SampledText
from ..errors import TurnError
from ..limits import MAX_ABORTS, MAX_EMPTY_ABORTS, Limits, StopReason
from ..messages import Message, check_calls
from ..rendering.renderer import NOT_ENDED
from ..trajectories._steps import Part, Step
from ._actions import CheckedAction, PromptSize, check_action
from ._environment import Environment, StepResult
from ._handoff import Handoff, PendingHandoffs
from ._turn import Mask, Turn
from ._usage import Usage

MAIN = "main"


class Phase(Enum):
    """What happened to an agent since its last observation was emitted."""

    ACTIVE = auto()
    """Nothing."""
    RETURNED = auto()
    """A sub-agent acted: the next observation is a return."""
    REFUSED = auto()
    """As `RETURNED`, but a limit refused a handoff: the agent may not hand over again before its next reply."""
    ENDED_UNASKED = auto()
    """The episode ended before a reply was requested: the next step reports that."""


class Agent:
    """An environment in an episode: the one that was reset, or a sub-agent.

    Args:
        env: The environment.
        name: The name of its first context, unless its first turn names another.
        role: Its role.
        limits: Its limits.
        parent: The agent that handed over to it, or None.
        handoff: The handoff that it came from, or None.
        is_summary: Whether it writes a summary for its parent's history policy; its steps are not its parent's then.
    """

    def __init__(
        self,
        env: Environment,
        name: str,
        role: str,
        limits: Limits,
        parent: "Agent | None" = None,
        handoff: Handoff | None = None,
        *,
        is_summary: bool = False,
    ) -> None:
        self.env = env
        self.name = name
        self.role = role
        self.parent = parent
        self.handoff = handoff
        self.adds_reward: bool = (parent is None or parent.adds_reward) and (handoff is None or handoff.adds_reward)
        """Whether its rewards count for the episode, and not only for its own contexts."""
        self.limits = limits
        self.usage = Usage(limits, None if parent is None else parent.usage, counts_steps_above=not is_summary)
        self.phase = Phase.ACTIVE
        self.contexts: dict[str, Context] = {}
        self.current: Context | None = None
        self.turn = Turn()
        self.due: Step | None = None
        """The step whose action is due."""
        self.emitted: StepResult | None = None
        """The result that waits for that action."""
        self.record: list[Step | Agent] = []
        """Its steps, and the sub-agents that acted in between, in order."""
        self.last_step: Step | None = None
        self.pending: PendingHandoffs | None = None
        self.own_reward: float | None = None
        """What it earned that does not count for the episode; None if nothing was scored."""
        self.stop_reason: StopReason | None = None
        self.error: str | None = None
        self.task: Any = None
        self.cut: StopReason | None = None
        """What cut its last reply, unless its author expected that."""
        self.full: StopReason | None = None
        """Why its last request, which was refused, did not fit into its context; None if none was refused for that."""
        self.aborts = self.empty_aborts = 0
        self._names: dict[str, int] = {}

    @property
    def context(self) -> Context:
        """The current context.

        Raises:
            TurnError: Before the first turn.
        """
        if self.current is None:
            raise TurnError(f"{self.name!r} has no context yet: its environment has not returned a turn")
        return self.current

    # The agents above and below.

    def lineage(self) -> "Iterator[Agent]":
        """Yield the agent and those above it, up to the one that was reset."""
        agent: Agent | None = self
        while agent is not None:
            yield agent
            agent = agent.parent

    def walk(self) -> "Iterator[Step | Agent]":
        """Yield its steps and all agents below it, depth-first; each agent before its steps."""
        yield self
        for item in self.record:
            if isinstance(item, Agent):
                yield from item.walk()
            else:
                yield item

    def agents(self) -> "Iterator[Agent]":
        """Yield the agent and all agents below it, depth-first."""
        return (item for item in self.walk() if isinstance(item, Agent))

    def rewards(self) -> "Iterator[float]":
        """Yield what it earned, step by step, with the rewards of those sub-agents that add to its own."""
        if self.own_reward is not None:
            yield self.own_reward
        for item in self.record:
            if isinstance(item, Step):
                if item.reward is not None:
                    yield item.reward
            elif item.handoff is None or item.handoff.adds_reward:
                yield from item.rewards()

    # Names of contexts.

    def name_of(self, turn: Turn) -> str:
        """Return the name of the context that a turn addresses."""
        if turn.context is None:
            return self.name if self.current is None else self.current.name
        return self.full_name(turn.context)

    def full_name(self, name: str) -> str:
        """Return the name in the episode of what its environment calls `name`; a full name stays as it is."""
        if self.parent is None or name == self.name or name.startswith(f"{self.name}/"):
            return name
        return self.name if name == MAIN else f"{self.name}/{name}"

    def own_name(self, name: str) -> str:
        """Return what its environment calls one of its contexts."""
        if self.parent is None:
            return name
        return MAIN if name == self.name else name.removeprefix(f"{self.name}/")

    def child_name(self, role: str) -> str:
        """Return a new name for the context of a sub-agent of that role."""
        name = f"{(self.current or self).name}/{role}"
        self._names[name] = self._names.get(name, 0) + 1
        return f"{name}-{self._names[name]}"

    # Actions.

    def receive(self, step: Step, action: object) -> Message | None:
        """Take an action for the step that is due.

        Returns:
            The whole reply; None if the policy was interrupted and the reply is not complete.

        Raises:
            ActionError: If the action is not legal.
        """
        context = self.context
        vocab_size = context.renderer.tokenizer.vocab_size
        self._act(step, check_action(action, vocab_size, lambda: self._prompt_of(step)))
        if step.finish_reason == "abort":
            if self.max_tokens() != 0 and not self._is_always_aborted():
                return None
            step.finish_reason = "length"  # there is no room for the rest, or none comes
        self.due, self.cut = None, None if step.finish_reason == "stop" else self._cut_by(step)
        message = self._read_reply(step)
        if message.tool_calls:
            message = check_calls(message, context.tools)
        step.reply = len(context.messages)
        context.add_reply(message)
        if message.tool_calls:
            self.usage.count(tool_calls=len(message.tool_calls))
        return message.as_reply(context.new_text(step.stop - step.action_start))

    def shorten_reply(self, step: Step, turn: Turn, *, is_last: bool) -> None:
        """Mask and cut the reply of a step as the turn that answers it says; nothing is cut at the end of the episode.

        Raises:
            TurnError: If the turn names a part that the reply does not have.
        """
        context = self.contexts[step.context]
        sampled = context.new_text(step.stop - step.action_start)
        count, kept = len(sampled.tokens), _kept(sampled, turn)
        masked = [] if turn.mask is None else _masked(sampled, turn.mask)
        if kept < sampled.body:
            if not is_last:
                context.cut_reply(count - kept)
            if not turn.train_dropped:
                masked.append((kept, count))
        step.masked = tuple((step.action_start + start, step.action_start + stop) for start, stop in _merged(masked))

    def stops(self) -> tuple[str, ...]:
        """Return the strings at which the next reply should stop."""
        return (*self.context.renderer.stop_strings, *self.turn.stop)

    def _act(self, step: Step, action: CheckedAction) -> None:
        context = self.context
        context.act(action.tokens, action.logprobs)
        stop = context.log_tokens.length
        step.parts += (Part(stop, action.temperature, action.policy_version, action.extra),)
        step.finish_reason = action.finish_reason
        is_abort = action.finish_reason == "abort"
        self.aborts = len(step.parts) if is_abort else 0
        self.empty_aborts = self.empty_aborts + 1 if is_abort and not len(action.tokens) else 0
        is_first = len(step.parts) == 1
        if is_first:
            self.record.append(step)
            self.last_step = step
        self.usage.count(steps=int(is_first), sampled=len(action.tokens))

    def _prompt_of(self, step: Step) -> PromptSize:
        """Return the size of the prompt that an action answers.

        The token before the new ones counts as new: a model had not processed it when it was sampled.
        """
        length = len(self.context)
        if not step.start and not step.parts:  # what a new context keeps may be of another model
            return PromptSize(length, length)
        observed = 0 if step.parts else step.action_start - step.start
        return PromptSize(length, min(length, observed + 1))

    def _read_reply(self, step: Step) -> Message:
        """Read the reply as a message; one that ended at a stop string needs no stop token."""
        message = self.context.parse_reply()
        if NOT_ENDED in message.errors and step.finish_reason == "stop" and (stops := self.stops()):
            text = str(self.context.new_text(step.stop - step.action_start))
            if any(stop in text for stop in stops):
                errors = tuple(error for error in message.errors if error != NOT_ENDED)
                return message.model_copy(update={"errors": errors})
        return message

    # Limits.

    def reason_to_stop(self, turn: Turn) -> StopReason | None:
        """Return why the agent ends with a turn: what the turn says comes before any limit."""
        if turn.terminated:
            return StopReason.TERMINATED
        return StopReason.TRUNCATED if turn.truncated else self.limit_now()

    def limit_now(self) -> StopReason | None:
        """Return the limit that ends the agent after its last reply: its own, or that of an agent above it."""
        if self._is_always_aborted():
            return StopReason.ABORTED
        cut = self.cut if self.limits.end_on_cut else None
        return cut or self.full or self.usage.reached()

    def _is_always_aborted(self) -> bool:
        return self.empty_aborts >= MAX_EMPTY_ABORTS or self.aborts >= MAX_ABORTS

    def _cut_by(self, step: Step) -> StopReason | None:
        """Return what cut a reply, if anything but the author's `Turn(max_tokens=)` did."""
        if step.finish_reason != "length" or self._turn_left(step) == 0:
            return None
        if self.usage.sampled_left() == 0:
            return StopReason.MAX_SAMPLED_TOKENS
        return StopReason.MAX_CONTEXT_TOKENS if self._context_left(self.context) == 0 else StopReason.CUT

    def max_tokens(self) -> int | None:
        """Return how many tokens the rest of the reply may have: the least that the turn and the limits leave.

        None if nothing limits it.
        """
        if self.turn.max_tokens is None and self.limits.max_context_tokens is None:  # mostly
            return self.usage.sampled_left()
        return self._least(self._turn_left(self.due), self._context_left(self.context))

    def foreseen_max_tokens(self, turn: Turn, context: Context) -> int | None:
        """Return `max_tokens` for a turn that has not been taken yet, in its context as it will be."""
        return self._least(turn.max_tokens, self._context_left(context))

    def _least(self, *left: int | None) -> int | None:
        counts = [count for count in (*left, self.usage.sampled_left()) if count is not None]
        return min(counts) if counts else None

    def _turn_left(self, step: Step | None) -> int | None:
        """Return what a step has left of its turn's `max_tokens`, which the parts of a reply share."""
        if self.turn.max_tokens is None:
            return None
        return max(0, self.turn.max_tokens - (step.stop - step.action_start if step is not None else 0))

    def _context_left(self, context: Context) -> int | None:
        limit = self.limits.max_context_tokens
        return None if limit is None else max(0, limit - len(context))


def _kept(sampled: SampledText, turn: Turn) -> int:
    """Return how many tokens of a reply stay."""
    if turn.keep_reply is not None:
        return turn.keep_reply
    if turn.up_to is None:
        return len(sampled.tokens)
    text = str(sampled)
    at = text.find(turn.up_to)
    return len(sampled.tokens) if at < 0 else sampled.tokens_of(at, at + len(turn.up_to))[1]


def _masked(sampled: SampledText, mask: Mask) -> list[tuple[int, int]]:
    """Return the ranges of tokens that a mask names."""
    count, length = len(sampled.tokens), len(str(sampled)) if mask.characters else 0
    spans = [("tokens", start, count if stop is None else stop, count) for start, stop in mask.tokens]
    spans += [("characters", start, length if stop is None else stop, length) for start, stop in mask.characters]
    for what, start, stop, most in spans:
        if not start <= stop <= most:
            raise TurnError(f"mask names the {what} {start} to {stop} of a reply that has {most}")
    ranges = [(start, stop) for what, start, stop, _ in spans if what == "tokens"]
    return ranges + [sampled.tokens_of(start, stop) for what, start, stop, _ in spans if what == "characters"]


def _merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order, none of which touches another."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(one for one in ranges if one[0] < one[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged
