"""The parts of a trajectory's record: steps, the parts of a reply, and what went through a context.

Steps hold ranges of their context's log, never tokens: the log has every token that was observed or sampled once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field

from ..contexts.protocol import Count, FinishReason
from ..limits import StopReason
from .stored import (
    Float32s,
    Int32s,
    Json,
    JsonObject,
    Number,
    Packed,
    Stored,
    StoredBreak,
    StoredMessage,
    Temperature,
)

KnownStopReason: TypeAlias = Annotated[str, AfterValidator(lambda reason: str(StopReason(reason)))]
"""The value of a `StopReason`."""


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
    break_: StoredBreak | None = None
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
