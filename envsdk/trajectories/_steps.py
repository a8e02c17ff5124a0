"""The parts of a trajectory's record: steps, and the parts of a reply.

Steps hold ranges of their context's log, never tokens: the log has every token that was observed or sampled once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Literal, Required, TypeAlias

from pydantic import ConfigDict, Field, GetPydanticSchema, with_config
from pydantic_core import core_schema
from typing_extensions import TypedDict

from ..contexts._protocol import Count, FinishReason
from ._stored import JsonObject, Number, Packed, StoredBreak, StoredRecord, StoredText, Temperature

_Range: TypeAlias = Annotated[tuple[Count, Count], Field(strict=False)]
_CHECKED = ConfigDict(strict=True, extra="forbid")


# The items of `Step.turn`.


@with_config(_CHECKED)
class _Edit(TypedDict):
    keep: Count
    detail: str
    start: Count
    reason: Literal["edit", "fold"]
    messages: list[Count | None]


@with_config(_CHECKED)
class _Notes(TypedDict, total=False):
    start: Required[Count]
    texts: Required[list[str]]
    repeated: _Range


@with_config(_CHECKED)
class _Turn(TypedDict, total=False):
    prefill: StoredText
    continues: StoredText
    cut: Annotated[int, Field(ge=1)]
    system: Literal[True]
    tools_before: list[JsonObject]
    edit: _Edit
    returns: Literal[True]
    notes: _Notes
    skips_rewrite: Literal[True]


@with_config(_CHECKED)
class _FinalTurn(_Turn):
    context: str


def _stored_as(kind: type[Any]) -> GetPydanticSchema:
    """Mark an object whose items must have the types of a `TypedDict`. It is read as it is, in its order."""

    def read(value: Any, check: Callable[[Any], Any]) -> Any:
        check(value)
        return value

    return GetPydanticSchema(
        lambda source, handler: core_schema.no_info_wrap_validator_function(read, handler.generate_schema(kind))
    )


StoredTurn: TypeAlias = Annotated[dict[str, Any], _stored_as(_Turn)]
"""How an observation was made; see `Step.turn`."""
StoredFinalTurn: TypeAlias = Annotated[dict[str, Any], _stored_as(_FinalTurn)]
"""The same for an observation without a reply, with its context; see `Trajectory.final_turn`."""


@dataclass(frozen=True, slots=True)
class Part(StoredRecord):
    """A part of a reply that was sampled without interruption; a reply has several if the policy was interrupted.

    Attributes:
        stop: The index in the context's log after its last token.
        temperature: The sampling temperature.
        policy_version: The version of the weights that sampled it, or None.
        extra: `Action.extra`: an array has one row for each of the part's tokens. Side data over all tokens has rows
            for the tokens that end with the part's last one, as many as the record did not have before.
    """

    stop: Count
    temperature: Temperature = 1.0
    policy_version: Count | None = None
    extra: Annotated[Mapping[str, Any], Packed] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Origin(StoredRecord):
    """An episode that another one was forked from.

    Attributes:
        trajectory_id: The id of the original.
        tokens: By the name of each context, how many tokens of its log are the original's.
    """

    trajectory_id: str
    tokens: dict[str, Count]


@dataclass(slots=True)
class Step(StoredRecord):
    """One observation and the action that answers it, as ranges of the log of `context`.

    Attributes:
        context: The context that it is in.
        base: The context that its prompt starts from; usually the context itself.
        keep: How many tokens of `base` the observation kept.
        extends: Whether the context only grew.
        start: The observation's tokens are `log[start:action_start]`.
        action_start: The action's tokens are `log[action_start:stop]`.
        parts: The parts of the reply, in order; several if the policy was interrupted.
        finish_reason: `stop`, `length` or `abort`, as in `Action`.
        reply: The index of the reply in the messages of its context; None if it was never finished.
        reward: The reward of the reply; None if it was not scored.
        rewards: The named rewards that add up to it.
        metrics: Named numbers that the environment reported.
        masked: Ranges of the log that hold sampled tokens which are not trained (`Turn(mask=)`), in order.
        break_: The break that the observation is, or None.
        turn: How the observation was made, unless it only appended messages: `prefill` and `continues` as in `Turn`;
            `cut`, how many of the reply's tokens were dropped before; `system`, true if the first new message replaced
            the system message; `tools_before`, the tools that were replaced; `edit`, an `Edit`, with the index in the
            conversation of each of its messages, or null if it is new; `returns`, true if it is a return besides the
            break that it is; `notes`, the model's notes since the last observation; `skips_rewrite`, true if nothing
            was dropped there although it would have been. `Trajectory.under` reads it. A record leaves it out if it is
            empty.
    """

    context: str
    base: str
    keep: Count
    extends: bool
    start: Count
    action_start: Count
    parts: Annotated[tuple[Part, ...], Field(strict=False)] = ()
    finish_reason: FinishReason = "stop"
    reply: Count | None = None
    reward: Number | None = None
    rewards: dict[str, Number] = field(default_factory=dict[str, float])
    metrics: dict[str, Number] = field(default_factory=dict[str, float])
    masked: Annotated[tuple[_Range, ...], Field(strict=False)] = ()
    break_: StoredBreak | None = None
    turn: StoredTurn = field(default_factory=dict[str, Any], metadata={"optional": True})

    @property
    def stop(self) -> int:
        """The index in the log after the action's last token."""
        return self.parts[-1].stop if self.parts else self.action_start

    def runs(self, start: int, stop: int) -> list[tuple[int, int, bool]]:
        """Return a range of its sampled tokens as runs: the bounds of each, and whether it is masked."""
        if not self.masked:
            return [(start, stop, False)] if start < stop else []
        bounds = [start, *(min(max(bound, start), stop) for masked in self.masked for bound in masked), stop]
        pairs = enumerate(pairwise(bounds))
        return [(first, last, bool(index % 2)) for index, (first, last) in pairs if first < last]
