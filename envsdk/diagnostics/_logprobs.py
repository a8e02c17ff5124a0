"""The alignment of the log-probabilities of sampler and trainer."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import InvalidSample
from ..trajectories._samples import Sample
from ._inputs import logprobs_of, valid_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
    positions = np.flatnonzero(sample.mask)
    trainer = logprobs_of(given, sample, f"trainer_logprobs[{index}]")[positions]
    return LogprobPair(sample, positions, sample.logprobs[positions].astype(np.float64), trainer)
