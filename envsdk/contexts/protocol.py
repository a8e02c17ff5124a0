"""What passes between an environment and a policy: observations, actions, and declared breaks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

from pydantic import Field

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]
"""A number of tokens, or a position among them."""
FinishReason: TypeAlias = Literal["stop", "length", "abort"]
BreakKind: TypeAlias = Literal["rewrite", "switch"]
RewriteReason: TypeAlias = Literal["thinking_stripped", "compaction", "budget", "summary", "edit", "template"]
BreakReason: TypeAlias = Literal[RewriteReason, "handoff", "return", "undeclared"]
"""`undeclared`: only in a trajectory that was made of another system's log, which does not say why."""


class Observation(NamedTuple):
    """A delta: `contexts[context] = contexts[base][:keep] + tokens` is the next prompt."""

    tokens: "NDArray[np.int32]"
    """What is new: shape (n,), C-contiguous, never shared with the environment's own buffers."""
    keep: int
    """How many tokens of `base` stay."""
    extends: bool
    """Whether the context only grew: `keep` is its whole length, it is not new, and no return came between."""
    context: str
    """Whose prompt this is."""
    base: str
    """The context that the prompt starts from; mostly the context itself."""


@dataclass(frozen=True, slots=True)
class Action:
    """What a policy sampled."""

    tokens: "Sequence[int] | NDArray[np.integer[Any]]"
    """The sampled ids, the stop token included: shape (n,), 0 <= id < the tokenizer's `vocab_size`. May be empty."""
    logprobs: "Sequence[float] | NDArray[np.floating[Any]] | None" = None
    """Their log-probabilities under the distribution sampled from: shape (n,), finite and at most 0; or None."""
    finish_reason: FinishReason = "stop"
    """`length`: the reply was cut. `abort`: the policy was interrupted and this reply goes on with the next action."""
    temperature: float = 1.0
    """The sampling temperature, at least 0."""
    policy_version: int | None = None
    """Which weights sampled it."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Data besides the tokens: carried into the samples, never read. A numpy array of signed integers or floats is
    aligned with the tokens (routed experts, top-k): its first dimension is n, and the samples hold it at their
    positions, with -1 or NaN elsewhere: these mean that nothing is known. Anything else belongs to the action as a
    whole (images, a request's id)."""


@dataclass(frozen=True, slots=True)
class Break:
    """A declared loss of the extension property."""

    kind: BreakKind
    """`rewrite` drops tokens and ends a segment; `switch` drops nothing."""
    reason: BreakReason
    context: str
    base: str
    kept: Count
    """How many tokens of `base` stay."""
    dropped: Count
    """How many tokens that the policy had seen or sampled are gone."""
    detail: str = ""
