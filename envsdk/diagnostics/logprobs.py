"""The alignment of the log-probabilities of sampler and trainer."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import InvalidSample
from ..trajectories.samples import Sample
from .inputs import valid_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROUNDING = 1e-3  # a trainer's log-softmax in half precision may exceed 0 by this much


class LogprobPair(NamedTuple):
    """The log-probabilities of the m trained tokens of one sample, in nats, by the sampler and by the trainer."""

    sample: Sample
    positions: "NDArray[np.intp]"
    """The positions of the trained tokens in the sample: shape (m,)."""
    sampler: "NDArray[np.float64]"
    """Shape (m,)."""
    trainer: "NDArray[np.float64]"
    """Shape (m,)."""


def pair_logprobs(samples: Iterable[Sample], trainer_logprobs: Sequence[Any]) -> list[LogprobPair]:
    """Align the log-probabilities of sampler and trainer on the tokens with mask True.

    Args:
        samples: Samples with the sampler's log-probabilities.
        trainer_logprobs: For each sample, the trainer's log-probabilities in nats, shape (L,). The value at i is that
            of token i, given the tokens before it.

    Raises:
        InvalidSample: If lengths or shapes differ, a sample is invalid or has no log-probabilities, or a value of the
            trainer is positive, NaN or infinite where mask is True. The error names the sample and the position.
    """
    checked = valid_samples(samples)
    try:
        arrays = list(trainer_logprobs)
    except TypeError as error:
        raise InvalidSample(
            f"trainer_logprobs is a {type(trainer_logprobs).__name__}; expected a list with one array for each sample"
        ) from error
    if len(checked) != len(arrays):
        raise InvalidSample(
            f"there are {len(checked)} samples, but trainer_logprobs has {len(arrays)} arrays; expected one for each "
            "sample"
        )
    return [_pair(index, *both) for index, both in enumerate(zip(checked, arrays, strict=True))]


def _pair(index: int, sample: Sample, given: Any) -> LogprobPair:
    if sample.logprobs is None:
        raise InvalidSample(
            f"sample {index} has no logprobs, so there is nothing to compare: the policy must return "
            "Action(..., logprobs=...)"
        )
    try:
        logprobs = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidSample(f"trainer_logprobs[{index}] is not an array of numbers: {error}") from error
    if logprobs.shape != (len(sample),):
        raise InvalidSample(
            f"trainer_logprobs[{index}] has shape {logprobs.shape}; expected ({len(sample)},), because the value at i "
            f"is that of token i. If it was computed from shifted logits, it has {len(sample) - 1} values: insert 0.0 "
            "at the beginning"
        )
    positions = np.flatnonzero(sample.mask)
    trainer = logprobs[positions]
    is_valid = np.isfinite(trainer) & (trainer <= _ROUNDING)
    if not is_valid.all():
        at = int(np.argmin(is_valid))
        raise InvalidSample(
            f"the trainer's logprob of token {int(positions[at])} of sample {index} is {trainer[at]}; expected a "
            "finite number of at most 0"
        )
    return LogprobPair(sample, positions, sample.logprobs[positions].astype(np.float64), trainer)
