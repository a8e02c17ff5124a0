"""One finished episode: its contexts, its steps, its rewards and breaks, and how it ended.

Steps hold ranges of their context's log, never tokens: the log has every token that was handed out or sampled once.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from pydantic import AfterValidator, Field

from ..contexts.arrays import Growing
from ..contexts.protocol import Break, FinishReason, RewriteReason
from ..errors import InvalidRecord, UndeclaredBreak
from ..limits import StopReason
from .records import build, dump, fragment, load
from .stored import Count, Float32s, Int32s, Json, JsonObject, Number, Packed, Stored, StoredMessage, Temperature, pack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .samples import LossRule, Sample

Status: TypeAlias = Literal["terminated", "truncated", "error"]
KnownStopReason: TypeAlias = Annotated[str, AfterValidator(lambda reason: str(StopReason(reason)))]
"""The value of a `StopReason`."""


_REASONS: Mapping[str, frozenset[str]] = {
    "rewrite": frozenset((*get_args(RewriteReason), "undeclared")),
    "switch": frozenset(("handoff", "return", "undeclared")),
}


@dataclass(frozen=True, slots=True)
class Part(Stored):
    """A part of a reply that was sampled in one go; a reply has several if the policy was interrupted."""

    stop: Count
    """The index in the log behind its last token."""
    temperature: Temperature = 1.0
    policy_version: Count | None = None
    extra: Annotated[Mapping[str, Any], Packed] = field(default_factory=dict[str, Any])
    """`Action.extra`: an array has a row for each of the part's tokens."""


@dataclass(frozen=True, slots=True)
class Origin(Stored):
    """An episode that this one is a fork of."""

    trajectory_id: str
    tokens: dict[str, Count]
    """How many tokens of each context's log are that episode's, by the context's name."""


@dataclass(slots=True)
class Step(Stored):
    """One observation and the action that answered it, as ranges of the log of `context`."""

    context: str
    base: str
    keep: Count
    """How many tokens of `base` the observation kept."""
    extends: bool
    start: Count
    """Index in the log: the observation's tokens are `log[start:action_start]`."""
    action_start: Count
    """Index in the log: the action's tokens are `log[action_start:stop]`."""
    parts: Annotated[tuple[Part, ...], Field(strict=False)] = ()
    finish_reason: FinishReason = "stop"
    reply: Count | None = None
    """The index of the reply in the messages of its context; None if it was never finished."""
    reward: Number | None = None
    """What the reply earned; None if it was not scored."""
    rewards: dict[str, Number] = field(default_factory=dict[str, float])
    """The named rewards that add up to it."""
    metrics: dict[str, Number] = field(default_factory=dict[str, float])
    broken: Break | None = None
    """The break that the observation was."""

    @property
    def stop(self) -> int:
        """The index in the log behind the action's last token."""
        return self.parts[-1].stop if self.parts else self.action_start


@dataclass(slots=True)
class ContextLog(Stored):
    """What went through one context."""

    role: str
    parent: str | None
    tokens: Int32s
    """Every token that was handed out or sampled, in order: shape (n,)."""
    logprobs: Float32s
    """Shape (n,): 0.0 on observations, NaN where the policy gave none."""
    messages: list[StoredMessage]
    """Everything that was said."""
    tools: list[JsonObject] = field(default_factory=list[dict[str, Any]])
    reward: Number | None = None
    """What it earned by itself; None if it shares the episode's reward."""
    stop_reason: Literal[""] | KnownStopReason = ""
    """Why it ended, if it is a sub-agent's."""
    error: str | None = None
    """What went wrong, if it is a sub-agent's and that failed. It then gives no samples, unless asked for."""
    task: Json = None
    """The task, if it is a sub-agent's; what of it is no JSON is stored as its `repr`."""
    tokenizer: str = ""
    """The fingerprint of its tokenizer, if that is not the episode's."""
    vocab_size: Count = 0
    """The size of its vocabulary, if that is not the episode's."""


class Prompt(NamedTuple):
    """What a policy saw at one step, and what it answered."""

    step: Step
    prompt: "NDArray[np.int32]"
    action: "NDArray[np.int32]"


@dataclass(slots=True, repr=False)
class Trajectory(Stored):
    """One episode, finished or failed."""

    id: str
    env: str
    seed: int | None
    status: Status
    """`terminated`: the task is over. `truncated`: a limit. `error`: something failed; what came before is kept."""
    stop_reason: KnownStopReason
    contexts: dict[str, ContextLog]
    steps: list[Step]
    renderer: JsonObject = field(default_factory=dict[str, Any])
    """The renderer and its options."""
    tokenizer: str = ""
    """The tokenizer's fingerprint."""
    vocab_size: Count = 0
    history: JsonObject = field(default_factory=dict[str, Any])
    """The history policy and its options."""
    limits: JsonObject = field(default_factory=dict[str, Any])
    config: JsonObject = field(default_factory=dict[str, Any])
    """The environment's own options."""
    task: Json = None
    """The task; what of it is no JSON is stored as its `repr`."""
    group_id: str | None = None
    """What episodes of the same task share, for group baselines."""
    origins: list[Origin] = field(default_factory=list[Origin])
    """The episode that this one is a fork of, behind those that that one is a fork of."""
    final_break: Break | None = None
    """The break that the last observation was, which nobody answered: the context was full after a rewrite."""
    error: str | None = None

    def __repr__(self) -> str:
        # Short: where an event loop ends, asyncio writes what its task returned.
        return f"<Trajectory {self.id!r}: {self.status}, {len(self.steps)} steps, reward {self.reward:g}>"

    @property
    def reward(self) -> float:
        """The sum of the steps' rewards."""
        return math.fsum(step.reward or 0.0 for step in self.steps)

    @property
    def breaks(self) -> list[Break]:
        """All declared breaks, in order."""
        breaks = [step.broken for step in self.steps if step.broken is not None]
        return breaks if self.final_break is None else [*breaks, self.final_break]

    def is_copied(self, step: Step) -> bool:
        """Whether a step was answered before the episode was forked off another: it is trained in that one."""
        return bool(self.origins and step.parts) and step.stop <= self.origins[-1].tokens.get(step.context, 0)

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the policy sampled, in a fork those before it included."""
        return sum(step.stop - step.action_start for step in self.steps)

    @property
    def observed_tokens(self) -> int:
        """How many tokens were handed out."""
        return sum(step.action_start - step.start for step in self.steps)

    def walk(self) -> Iterator[tuple[int, Step]]:
        """The steps with their indices, each checked against the log of its context and those before it.

        Raises:
            UndeclaredBreak: If a step drops tokens and no break says so.
            InvalidRecord: If a step is in no context, points outside its log, keeps tokens that are not there, or
                `extends` is not what it must be; or if a context's parent does not come before it.
        """
        self._check_lineage()
        lengths: dict[str, int] = {}
        ends = dict.fromkeys(self.contexts, 0)
        for index, step in enumerate(self.steps):
            try:
                _check_range(index, step, ends, self.contexts)
                is_new = step.context not in lengths
                _check_step(index, step, is_new, lengths.get(step.context, 0), lengths.get(step.base, 0))
            except (TypeError, AttributeError) as error:
                raise InvalidRecord(f"step {index} is damaged: {type(error).__name__}: {error}") from error
            lengths[step.context] = step.keep + step.stop - step.start
            yield index, step

    def _check_lineage(self) -> None:
        """Each context comes after its parent, so that none is its own ancestor."""
        known: set[str] = set()
        for name, log in self.contexts.items():
            if log.parent is not None and log.parent not in known:
                why = "is not in the record"
                if log.parent in self.contexts:
                    why = "is itself" if log.parent == name else "comes after it"
                raise InvalidRecord(
                    f"context {name!r} has the parent {log.parent!r}, which {why}; expected one before it, or None"
                )
            known.add(name)

    def prompts(self) -> Iterator[Prompt]:
        """Replay the deltas: for each step the prompt that the policy saw, and its action. O(context) a step.

        Raises:
            UndeclaredBreak: See `walk`.
        """
        contexts: dict[str, Growing[np.int32]] = {}
        for _, step in self.walk():
            log = self.contexts[step.context].tokens
            tokens = contexts.setdefault(step.context, Growing(np.int32))
            if step.base != step.context:
                tokens.truncate(0)
                tokens.append(contexts[step.base].view[: step.keep])
            tokens.truncate(step.keep)
            tokens.append(log[step.start : step.action_start])
            prompt = tokens.copy()
            tokens.append(log[step.action_start : step.stop])
            yield Prompt(step, prompt, log[step.action_start : step.stop])

    def reward_of(self, context: str) -> float:
        """What a context earned: its own reward, or that of the nearest parent that has one, or the episode's."""
        own = self._own_reward(context)
        return self.reward if own is None else own

    def is_scored(self, context: str) -> bool:
        """Whether anybody said what a context earned.

        An episode that ended by itself without a reward in any turn was not scored: its reward of 0.0 means nothing.
        One that was cut off has earned what it has.
        """
        is_judged = self.status != "terminated" or any(step.reward is not None for step in self.steps)
        return is_judged or self._own_reward(context) is not None

    def _own_reward(self, context: str) -> float | None:
        name: str | None = context
        for _ in self.contexts:  # a damaged record may have parents in a circle
            if name is None or name not in self.contexts:
                break
            own = self.contexts[name].reward
            if own is not None:
                return own
            name = self.contexts[name].parent
        return None

    def tree_size(self, *, include_failed: bool = False) -> int:
        """How many tokens the prefix tree of the samples has.

        A token counts once, however many samples hold it, and only if a trained token stands at or after it in its
        branch: one that was sampled, in a fork after it was forked.

        Args:
            include_failed: Whether a failed episode, or a failed sub-agent, counts with the steps that it had.
        """
        if self.status == "error" and not include_failed:
            return 0
        size = 0
        needed: dict[str, int] = {}  # of each context, how many tokens are followed by one that is trained later
        for _, step in reversed(list(self.walk())):
            is_trained = step.stop > step.action_start and not self.is_copied(step)
            is_trained = is_trained and (include_failed or self.contexts[step.context].error is None)
            until = step.keep + step.stop - step.start if is_trained else needed.get(step.context, 0)
            size += max(0, until - step.keep)
            needed[step.context] = 0
            needed[step.base] = max(needed.get(step.base, 0), min(until, step.keep))
        return size

    def samples(self, loss: "LossRule" = "all", *, include_failed: bool = False) -> "list[Sample]":
        """Training samples: one for each segment of each context in which a token is trained.

        Args:
            loss: Which steps are trained: `"all"`, `"last_step"` (of each context), `"without_errors"` (those whose
                whole reply has no errors: it could be read, its tools exist, no argument is missing), or a function of
                a `Step`.
            include_failed: Whether a failed episode, or a failed sub-agent, gives samples of the steps that it had.

        Returns:
            The samples, in the order in which their segments began.

        Raises:
            UndeclaredBreak: If a step drops tokens and no break says so.
            InvalidSample: If `Action.extra` has an array for some actions and not for others.
        """
        from .samples import samples_of

        if self.status == "error" and not include_failed:
            return []
        return samples_of(self, loss, include_failed=include_failed)

    def to_json(self) -> bytes:
        """The trajectory as one line of JSON, without the line end. The same trajectory gives the same bytes."""
        record = {field.name: getattr(self, field.name) for field in fields(self)}
        record["contexts"] = {name: _dump_log(log) for name, log in self.contexts.items()}
        record["steps"] = [_dump_step(step) for step in self.steps]
        for name in ("task", "seed", "renderer", "history", "limits", "config"):
            record[name] = fragment(record[name])
        return dump("trajectory", record)

    @classmethod
    def from_json(cls, line: bytes | str) -> "Trajectory":
        """Read what `to_json` wrote. Nothing is filled in, and nothing is read as another type than it is.

        Raises:
            InvalidRecord: If it is no trajectory, of another schema version, or damaged; it names the field.
        """
        trajectory = build(cls, load(line, "trajectory"))
        ends = dict.fromkeys(trajectory.contexts, 0)
        try:
            for index, step in trajectory.walk():
                _check_parts(index, step, trajectory.contexts[step.context])
                ends[step.context] = step.stop
        except UndeclaredBreak as error:
            raise InvalidRecord(f"the trajectory is damaged: {error}") from error
        _check_end(trajectory)
        for name, log in trajectory.contexts.items():
            _check_log(name, log, ends[name], log.vocab_size or trajectory.vocab_size)
        return trajectory


def _check_range(index: int, step: Step, ends: dict[str, int], contexts: Mapping[str, ContextLog]) -> None:
    """A step's range follows that of the step before it in its context, and lies in the log; `ends` goes on."""
    if step.context not in ends or step.base not in ends:
        name = step.base if step.context in ends else step.context
        raise InvalidRecord(f"step {index} is in the context {name!r}, which is not in the record")
    log = contexts[step.context]
    stops = [step.start, step.action_start, *(part.stop for part in step.parts)]
    if {*map(type, (step.keep, *stops))} != {int}:  # a slice would take what an index refuses
        raise InvalidRecord(f"step {index} keeps {step.keep!r} tokens and has the bounds {stops}; expected integers")
    if step.start != ends[step.context] or stops != sorted(stops) or stops[-1] > len(log.tokens):
        raise InvalidRecord(
            f"step {index} points outside the log of its context {step.context!r}: it has the tokens {step.start} to "
            f"{stops[-1]}; expected them from {ends[step.context]} on, of {len(log.tokens)}"
        )
    if len(log.tokens) != len(log.logprobs):
        raise InvalidRecord(f"context {step.context!r} has {len(log.tokens)} tokens and {len(log.logprobs)} logprobs")
    ends[step.context] = stops[-1]


def _check_step(index: int, step: Step, is_new: bool, length: int, base_length: int) -> None:
    drops = step.base == step.context and step.keep < length
    if drops and (step.broken is None or step.broken.kind != "rewrite"):
        raise UndeclaredBreak(
            f"step {index} keeps {step.keep} of the {length} tokens of {step.context!r}, and no break declares it. A "
            "history policy declares what it drops; if you changed the record, record a Break with it"
        )
    if step.base != step.context and not is_new:
        raise InvalidRecord(f"step {index} starts {step.context!r} from {step.base!r}, but it has begun before")
    if not 0 <= step.keep <= base_length:
        raise InvalidRecord(f"step {index} keeps {step.keep} tokens of {step.base!r}, which has {base_length}")
    if step.extends != (not is_new and step.broken is None):
        raise InvalidRecord(f"step {index} says extends={step.extends}, with the break {step.broken}")
    if step.broken is not None:
        _check_break(index, step, step.broken, length if drops else step.keep)


def _check_break(index: int, step: Step, broken: Break, length: int) -> None:
    """A break is what its step does: `length` is how many tokens there were of what it drops."""
    kind = "rewrite" if step.keep < length else "switch"
    expected = (kind, step.context, step.base, step.keep, length - step.keep)
    found = (broken.kind, broken.context, broken.base, broken.kept, broken.dropped)
    if found != expected:
        raise InvalidRecord(f"step {index} has the break {found}; expected {expected}, which is what it does")
    check_break(broken)


def check_break(broken: Any) -> None:
    """Refuse what is no `Break`, and one that contradicts itself.

    Raises:
        InvalidRecord: It says what is wrong.
    """
    if not isinstance(broken, Break):
        raise InvalidRecord(f"is a {type(broken).__name__}: {broken!r:.80}; expected a Break")
    counts: tuple[Any, ...] = (broken.kept, broken.dropped)
    texts: tuple[Any, ...] = (broken.context, broken.base, broken.detail)
    if not all(type(count) is int and count >= 0 for count in counts) or not all(isinstance(t, str) for t in texts):
        raise InvalidRecord(f"is {broken!r:.200}; expected counts of tokens, and names of contexts")
    if broken.reason not in _REASONS.get(broken.kind, ()) or (broken.kind == "rewrite") != (broken.dropped > 0):
        raise InvalidRecord(
            f"is a {broken.kind!r} for the reason {broken.reason!r} that drops {broken.dropped} tokens; expected a "
            f"rewrite that drops tokens, for one of {sorted(_REASONS['rewrite'])}, or a switch that drops none, for "
            f"one of {sorted(_REASONS['switch'])}"
        )


def _check_parts(index: int, step: Step, log: ContextLog) -> None:
    """What an action was sampled with fits its tokens and its message."""
    start = step.action_start
    for part in step.parts:
        logprobs = log.logprobs[start : part.stop]
        unknown = np.isnan(logprobs)
        if unknown.any() and not unknown.all():
            raise InvalidRecord(f"step {index} has log-probabilities for some tokens of an action, and for others none")
        for key, value in part.extra.items():
            if isinstance(value, np.ndarray) and len(value) != part.stop - start:  # pyright: ignore[reportUnknownArgumentType]
                raise InvalidRecord(f"step {index} has {len(value)} rows of {key!r} for {part.stop - start} tokens")  # pyright: ignore[reportUnknownArgumentType]
        start = part.stop
    if step.reply is not None and (step.reply >= len(log.messages) or log.messages[step.reply].role != "assistant"):
        raise InvalidRecord(f"step {index} has the reply {step.reply}, which is no assistant's message of its context")
    if (log.logprobs[step.start : step.action_start] != 0).any():
        raise InvalidRecord(f"step {index} has log-probabilities on its observation; expected 0.0")


def _check_end(trajectory: Trajectory) -> None:
    """The status, the stop reason, the error, the last break and the origins fit each other."""
    status, reason = trajectory.status, trajectory.stop_reason
    ends = (StopReason.TERMINATED, StopReason.ERROR)
    if (reason in ends) != (status != "truncated") or (reason in ends and reason != status):
        raise InvalidRecord(f"status is {status!r}, but stop_reason is {reason!r}")
    if trajectory.error is not None and status != "error":
        raise InvalidRecord(f"status is {status!r}, but there is an error: {trajectory.error!r:.80}")
    for origin in trajectory.origins:
        if unknown := origin.tokens.keys() - trajectory.contexts.keys():
            raise InvalidRecord(f"origins have the context {min(unknown)!r}, which is not in the record")
    broken = trajectory.final_break
    if broken is not None:
        if not {broken.context, broken.base} <= trajectory.contexts.keys():
            raise InvalidRecord(f"final_break is in {broken.context!r}, from {broken.base!r}: not in the record")
        check_break(broken)


def _check_log(name: str, log: ContextLog, end: int, vocab_size: int) -> None:
    """A log holds the tokens of its steps, and each is a token with a log-probability."""
    if not end == len(log.tokens) == len(log.logprobs):
        raise InvalidRecord(
            f"context {name!r} has {len(log.tokens)} tokens and {len(log.logprobs)} logprobs, and steps up to {end}"
        )
    size = vocab_size or np.iinfo(np.int32).max
    _refuse(f"contexts.{name}.tokens", log.tokens, (log.tokens < 0) | (log.tokens >= size), f"an id below {size}")
    _refuse(f"contexts.{name}.logprobs", log.logprobs, log.logprobs > 0, "a log-probability, at most 0")


def _refuse(field: str, array: "NDArray[Any]", wrong: "NDArray[np.bool_]", expected: str) -> None:
    if wrong.any():
        at = int(np.argmax(wrong))
        raise InvalidRecord(f"{field}.{at} is {array[at]}; expected {expected}")


def _dump_log(log: ContextLog) -> dict[str, Any]:
    record = {field.name: getattr(log, field.name) for field in fields(log)}
    messages = [message.model_dump() for message in log.messages]
    return {**record, "messages": fragment(messages), "task": fragment(log.task), "tools": fragment(log.tools)}


def _dump_step(step: Step) -> Step | dict[str, Any]:
    if not any(part.extra for part in step.parts):
        return step
    parts = [
        {**{f.name: getattr(part, f.name) for f in fields(part)}, "extra": fragment(pack(part.extra))}
        for part in step.parts
    ]
    return {**{f.name: getattr(step, f.name) for f in fields(step)}, "parts": parts}
