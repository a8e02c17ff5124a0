"""The log-probabilities of sampler and trainer, aligned and checked."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import InvalidSample
from ..trajectories.samples import Sample
from .given import sound_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROUNDING = 1e-3  # a trainer's log-softmax in half precision may be so far above 0


class Pair(NamedTuple):
    """What the trained tokens of one sample had for the sampler and for the trainer."""

    sample: Sample
    positions: "NDArray[np.intp]"
    """Where they stand in the sample: shape (m,)."""
    sampler: "NDArray[np.float64]"
    """Natural log-probabilities, shape (m,)."""
    trainer: "NDArray[np.float64]"
    """Natural log-probabilities, shape (m,)."""


def paired(samples: Iterable[Sample], trainer_logprobs: Sequence[Any]) -> list[Pair]:
    """Align the log-probabilities of sampler and trainer; only tokens with mask True are read.

    Args:
        samples: Samples with the sampler's log-probabilities.
        trainer_logprobs: For each sample an array of shape (L,), natural logarithms: the value at i is that of token i,
            given the tokens before it.

    Raises:
        InvalidSample: If lengths or shapes differ, a sample is not sound or has no log-probabilities, or a value of the
            trainer is none: positive, NaN or infinite where mask is True. It names the sample and the position.
    """
    listed = sound_samples(samples)
    try:
        given = list(trainer_logprobs)
    except TypeError as error:
        raise InvalidSample("the trainer's logprobs are no list: one array for each sample is expected") from error
    if len(listed) != len(given):
        raise InvalidSample(f"there are {len(listed)} samples and {len(given)} arrays of the trainer")
    return [_pair(index, *both) for index, both in enumerate(zip(listed, given, strict=True))]


def _pair(index: int, sample: Sample, given: Any) -> Pair:
    if sample.logprobs is None:
        raise InvalidSample(f"sample {index} has no logprobs: the policy gave none, so there is nothing to compare")
    try:
        logprobs = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidSample(f"the trainer's logprobs of sample {index} are no array of numbers: {error}") from error
    if logprobs.shape != (len(sample),):
        raise InvalidSample(
            f"the trainer's logprobs of sample {index} have shape {logprobs.shape}, but the sample has {len(sample)} "
            "tokens: the value at i is that of token i. Logits that were shifted give one less: put 0.0 in front"
        )
    positions = np.flatnonzero(sample.mask)
    trainer = logprobs[positions]
    is_sound = np.isfinite(trainer) & (trainer <= _ROUNDING)
    if not is_sound.all():
        at = int(np.argmin(is_sound))
        raise InvalidSample(
            f"the trainer's logprob of token {int(positions[at])} of sample {index} is {trainer[at]}; expected a "
            "finite number of at most 0"
        )
    return Pair(sample, positions, sample.logprobs[positions].astype(np.float64), trainer)
