"""The check of the arguments of diagnostics: samples, token ids and log-probabilities."""

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from .._visible import brief, type_of
from ..errors import ConfigError, InvalidSample
from ..trajectories._samples import Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROUNDING = 1e-3  # a log-softmax in half precision may exceed 0 by this much


def valid_samples(samples: Iterable[Sample], *, first: int = 0) -> list[Sample]:
    """Return the samples as a list, after validating each of them.

    Args:
        samples: The samples.
        first: The index of the first sample, for error messages.

    Raises:
        InvalidSample: If `samples` is not a list of samples, or one is invalid (`Sample.validate`). The error names the
            index of the sample and its trajectory.
    """
    if isinstance(samples, Sample) or not isinstance(samples, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidSample(f"samples is {type_of(samples)}; expected a list of samples: trajectory.samples()")
    items: list[Any] = list(samples)
    for index, sample in enumerate(items, start=first):
        if not isinstance(sample, Sample):
            raise InvalidSample(f"sample {index} is {type_of(sample)}; expected a Sample: trajectory.samples()")
    for index, sample in enumerate(items, start=first):
        try:
            sample.validate()
        except InvalidSample as error:
            raise InvalidSample(f"sample {index}, of trajectory {sample.trajectory_id!r}: {error}") from error
    return cast("list[Sample]", items)


def logprobs_of(given: Any, sample: Sample, whose: str) -> "NDArray[np.float64]":
    """Return the log-probabilities that a model gives the tokens of a sample, after checking them where mask is True.

    Args:
        given: The log-probabilities in nats, shape (L,). The value at i is that of token i, given the tokens before it.
        sample: The sample.
        whose: Which log-probabilities of which sample they are, for error messages.

    Returns:
        float64, shape (L,).

    Raises:
        InvalidSample: If it is not such an array, or a value is positive, NaN or infinite where mask is True.
    """
    try:
        logprobs = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidSample(f"{whose}: not an array of numbers: {error}") from error
    if logprobs.shape != (len(sample),):
        raise InvalidSample(
            f"{whose}: shape {logprobs.shape}; expected ({len(sample)},), because the value at i is that of "
            f"token i. If they were computed from shifted logits, there are {len(sample) - 1} values: insert 0.0 at "
            "the beginning"
        )
    is_valid = ~sample.mask | (np.isfinite(logprobs) & (logprobs <= _ROUNDING))
    if not is_valid.all():
        at = int(np.argmin(is_valid))
        raise InvalidSample(
            f"{whose}: the value of token {at} is {logprobs[at]}; expected a finite number of at most 0"
        )
    return logprobs


def check_clip(clip: Any, above: float = 0.0) -> float:
    """Return the largest difference of a token that counts, in nats.

    Args:
        clip: What was given.
        above: What it has to be larger than, in nats.

    Raises:
        ConfigError: If it is not a finite number above that.
    """
    if not isinstance(clip, Real) or not above < float(clip) < np.inf:
        raise ConfigError(f"clip is {brief(clip)}; expected a finite number of nats above {above:.2g}")
    return float(clip)


def token_ids(name: str, tokens: Any) -> "NDArray[np.int64]":
    """Return token ids as an array: int64, shape (n,).

    Args:
        name: A description of the tokens, for error messages.
        tokens: Token ids, shape (n,).

    Raises:
        InvalidSample: If `tokens` is not a flat array of integers from 0 to 2**31 - 1.
    """
    try:
        ids = np.asarray(tokens)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidSample(f"{name} is not a flat array of token ids: {error}") from error
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise InvalidSample(f"{name} is an array of {ids.dtype} of shape {ids.shape}; expected token ids, shape (n,)")
    wrong = (ids < 0) | (ids > np.iinfo(np.int32).max)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise InvalidSample(f"{name} has {ids[at]} at position {at}; expected token ids from 0 to 2**31 - 1")
    return ids.astype(np.int64)


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
            f"trainer_logprobs is {type_of(trainer_logprobs)}; expected a list with one array for each sample"
        ) from error
    if len(checked) != len(arrays):
        raise InvalidSample(
            f"there are {len(checked)} samples, but trainer_logprobs has {len(arrays)} arrays; expected one for each "
            "sample"
        )
    pairs: list[LogprobPair] = []
    for index, (sample, given) in enumerate(zip(checked, arrays, strict=True)):
        if sample.logprobs is None:
            raise InvalidSample(
                f"sample {index} has no logprobs, so there is nothing to compare: the policy must return "
                "Action(..., logprobs=...)"
            )
        positions = np.flatnonzero(sample.mask)
        trainer = logprobs_of(given, sample, f"trainer_logprobs[{index}]")[positions]
        pairs.append(LogprobPair(sample, positions, sample.logprobs[positions].astype(np.float64), trainer))
    return pairs
