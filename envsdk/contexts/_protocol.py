"""The data that an environment and a policy exchange: observations, actions and declared breaks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

from pydantic import Field

from ..images import PlacedImage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]
"""A number of tokens, or a position among them."""
FinishReason: TypeAlias = Literal["stop", "length", "abort"]
BreakKind: TypeAlias = Literal["rewrite", "switch"]
RewriteReason: TypeAlias = Literal["thinking_stripped", "compaction", "budget", "summary", "fold", "edit", "template"]
BreakReason: TypeAlias = Literal[RewriteReason, "handoff", "return", "undeclared"]
"""`undeclared` occurs only in trajectories made from another system's log, which does not record reasons."""


class Observation(NamedTuple):
    """A delta: `contexts[context] = contexts[base][:keep] + tokens` is the next prompt.

    Attributes:
        tokens: The new tokens: int32, shape (n,), C-contiguous, never shared with the environment's own buffers.
        keep: The number of tokens of `base` that stay.
        extends: Whether the context only grew: it is not new, `keep` is its whole length, and no sub-agent returned in
            between.
        context: The name of the context whose prompt this is.
        base: The name of the context that the prompt starts from; usually the context itself.
        media: The images in the new tokens, in order, each with its range in `tokens`.
    """

    tokens: "NDArray[np.int32]"
    keep: int
    extends: bool
    context: str
    base: str
    media: tuple[PlacedImage, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """The tokens that a policy sampled for one observation.

    Attributes:
        tokens: The sampled ids, the stop token included: shape (n,), integers from 0 to the tokenizer's `vocab_size` -
            1. It may be empty.
        logprobs: Their log-probabilities under the distribution that they were sampled from: shape (n,), finite and at
            most 0; or None if they are not known.
        finish_reason: `stop`: the reply ended. `length`: it was cut. `abort`: the policy was interrupted, and the next
            action continues the reply.
        temperature: The sampling temperature, at least 0.
        policy_version: The version of the weights that sampled it, from 0 to 2**31 - 1; or None.
        extra: Side data, which is carried into the samples and never interpreted. A numpy array of signed integers or
            floats has one row for each token (the log-probabilities of the top-k): shape (n, ...). Samples hold it at
            the positions of these tokens, and -1 or NaN elsewhere, which means that nothing is known. `Aligned` sets a
            different fill value, or has rows for all tokens of the prompt and the reply (routed experts); `Ragged` has
            a list for each token (the ids that sampling was restricted to). Anything else belongs to the action as a
            whole (images, the id of a request).
    """

    tokens: "Sequence[int] | NDArray[np.integer[Any]]"
    logprobs: "Sequence[float] | NDArray[np.floating[Any]] | None" = None
    finish_reason: FinishReason = "stop"
    temperature: float = 1.0
    policy_version: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Break:
    """A declared loss of the extension property.

    Attributes:
        kind: `rewrite`: tokens are dropped, and a segment ends. `switch`: another context continues, and nothing is
            dropped.
        reason: The reason. For a rewrite: `thinking_stripped`, `compaction`, `budget`, `summary`, `fold` (the model
            replaced messages by its own summary), `edit` or `template`. For a switch: `handoff` or `return`.
        context: The context that the observation is in.
        base: The context that its prompt starts from.
        kept: The number of tokens of `base` that stay.
        dropped: The number of dropped tokens, which the policy had seen or sampled.
        detail: More about the reason, for people.
    """

    kind: BreakKind
    reason: BreakReason
    context: str
    base: str
    kept: Count
    dropped: Count
    detail: str = ""
