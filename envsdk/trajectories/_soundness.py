"""The fast way of what `Sample.validate` checks value by value: one pass over the values of many samples.

It only finds out whether something may be wrong. What is wrong, and where, is the answer of `Sample.validate`.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..errors import InvalidSample
from ._samples import Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOGETHER = 1 << 20
"""The tokens that are looked at together, which bounds the memory that it takes."""


def are_sound(samples: Sequence[Sample]) -> bool:
    """Return whether samples are certainly sound. If it is False, `Sample.validate` may still accept all of them."""
    try:
        sizes = [sample.check_form() for sample in samples]
    except InvalidSample:
        return False
    return all(_values_are_sound(samples[chunk], sizes[chunk]) for chunk in _chunks(samples))


def _chunks(samples: Sequence[Sample]) -> Iterator[slice]:
    first = tokens = 0
    for index, sample in enumerate(samples):
        tokens += len(sample)
        if tokens >= TOGETHER:
            yield slice(first, index + 1)
            first, tokens = index + 1, 0
    if first < len(samples):
        yield slice(first, len(samples))


def _values_are_sound(samples: Sequence[Sample], vocab_sizes: Sequence[int]) -> bool:
    lengths = np.array([len(sample) for sample in samples])
    if not lengths.all():
        return False
    starts = np.cumsum(lengths) - lengths
    mask = _joined(samples, "mask")
    tokens = _joined(samples, "tokens")
    is_sound = (
        np.logical_or.reduceat(mask, starts).all()
        and not mask[starts].any()
        and tokens.min() >= 0
        and (np.maximum.reduceat(tokens, starts) < vocab_sizes).all()
        and _ids_are_sound(samples, mask, starts)
        and all(_logprobs_are_sound(samples, name, mask) for name in ("logprobs", "reference_logprobs"))
        and all(sample.loss_weight >= 0 for sample in samples)
    )
    return bool(is_sound) and _numbers_are_sound(samples)


def _ids_are_sound(samples: Sequence[Sample], mask: "NDArray[np.bool_]", starts: "NDArray[np.integer[Any]]") -> bool:
    """Return whether each token belongs to a step and a part that exist, or to neither."""
    step_ids, part_ids = _joined(samples, "step_ids"), _joined(samples, "part_ids")
    is_sampled = step_ids >= 0
    return bool(
        np.array_equal(is_sampled, part_ids >= 0)
        and not (mask > is_sampled).any()
        and min(step_ids.min(), part_ids.min()) >= -1
        and (np.maximum.reduceat(step_ids, starts) < [len(sample.step_rewards) for sample in samples]).all()
        and (np.maximum.reduceat(part_ids, starts) < [len(sample.temperature) for sample in samples]).all()
    )


def _logprobs_are_sound(samples: Sequence[Sample], name: str, mask: "NDArray[np.bool_]") -> bool:
    has = [getattr(sample, name) is not None for sample in samples]
    if not all(has):
        return not any(has)
    logprobs = _joined(samples, name)
    return bool(logprobs.min() > -np.inf and logprobs.max() <= 0 and not ((logprobs != 0) > mask).any())


def _numbers_are_sound(samples: Sequence[Sample]) -> bool:
    """Return whether the numbers of steps, parts and advantages are finite, and in their range."""
    temperature = _joined(samples, "temperature")
    advantages = [cast("Any", sample.advantage) for sample in samples if isinstance(sample.advantage, np.ndarray)]
    return bool(
        np.isfinite(_joined(samples, "step_rewards")).all()
        and np.isfinite(temperature).all()
        and (temperature >= 0).all()
        and (_joined(samples, "policy_version") >= -1).all()
        and all(np.isfinite(advantage).all() for advantage in advantages)
    )


def _joined(samples: Sequence[Sample], name: str) -> "NDArray[Any]":
    return np.concatenate([getattr(sample, name) for sample in samples])
