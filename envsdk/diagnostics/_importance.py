"""Importance weights: the correction of a loss for tokens that the sampler drew with different probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import numpy as np

from .._visible import brief
from ..errors import ConfigError, InvalidSample, UnknownName
from ..limits import LARGEST
from ..trajectories._samples import Sample
from ._inputs import LogprobPair, pair_logprobs

if TYPE_CHECKING:
    from numpy.typing import NDArray

Level: TypeAlias = Literal["token", "step", "sequence"]
Mode: TypeAlias = Literal["truncate", "mask", "clip"]
Ratio: TypeAlias = Literal["product", "geometric_mean"]


@dataclass(frozen=True, slots=True, eq=False)
class ImportanceWeights:
    """The importance weights of samples.

    Attributes:
        weights: For each sample, the weight of each token: float32, shape (L,), 0.0 where mask is False.
        level: What has one weight: a token, the tokens of a step, or those of a sequence.
        mode: What happens to a ratio outside the bounds.
        ratio: How the ratios of several tokens become one.
        bounds: The smallest and the largest ratio that stay as they are.
        units: The number of tokens, steps or sequences that have a weight.
        effective_sample_size: `sum(w)**2 / sum(w**2)` over the units: how many units with equal weights have an
            average of the same variance. It is `units` if all weights are equal, and 0.0 if all are 0.
        tokens: The number of tokens with mask True.
        touched: The number of these tokens whose ratio was outside the bounds.
        touched_share: `touched / tokens`.
    """

    weights: "tuple[NDArray[np.float32], ...]"
    level: Level
    mode: Mode
    ratio: Ratio
    bounds: tuple[float, float]
    units: int
    effective_sample_size: float
    tokens: int
    touched: int

    @property
    def touched_share(self) -> float:
        """The share of tokens whose ratio was outside the bounds, from 0 to 1; 0.0 without tokens."""
        return self.touched / self.tokens if self.tokens else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return all but the weights as plain values for JSON."""
        names = ("level", "mode", "ratio", "units", "effective_sample_size", "tokens", "touched", "touched_share")
        return {**{name: getattr(self, name) for name in names}, "bounds": list(self.bounds)}

    def __str__(self) -> str:
        return (
            f"effective sample size {self.effective_sample_size:,.1f} of {self.units:,} {self.level}s; {self.mode} "
            f"changed {self.touched_share:.1%} of {self.tokens:,} tokens"
        )


def importance_weights(
    samples: Sequence[Sample],
    trainer_logprobs: Sequence[Any],
    level: Level = "token",
    mode: Mode = "truncate",
    threshold: float | tuple[float, float] = 2.0,
    *,
    ratio: Ratio = "product",
) -> ImportanceWeights:
    """Return weights that correct a loss for the mismatch between the sampler and the trainer.

    The ratio of a token is `exp(lp_trainer - lp_sampler)`. Multiply the loss of each token by its weight, as a
    constant: no gradient flows through it. If the loss is a mean over tokens, count only those with a weight above 0:
    tokens that `mask` rejected would otherwise make the others count less.

    Sources: truncated weights of tokens (TIS): F. Yao et al., "Your Efficient RL Framework Secretly Brings You
    Off-Policy RL Training", 2025. Truncated and masked weights of sequences, as products (MIS): J. Liu, Y. Li et al.,
    "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch", 2025. Masks of tokens
    with two bounds (IcePop): Ling Team, "Every Step Evolves", arXiv 2510.18855. Geometric means of sequences (GSPO): C.
    Zheng et al., arXiv 2507.18071; of steps: C. Li et al., arXiv 2511.20718. verl's documentation of its "rollout
    correction" derives most of them.

    Args:
        samples: Samples with log-probabilities. At the level `sequence`, pass all samples of a context together.
        trainer_logprobs: For each sample, the trainer's log-probabilities in nats, shape (L,), computed at the sample's
            temperature before the first update. The value at i is that of token i, given the tokens before it.
        level: `"token"`: each token has its own weight. `"step"`: the trained tokens of a step share one. `"sequence"`:
            those of a context share one, however many samples it was rewritten into.
        mode: `"truncate"`: a larger ratio than the upper bound becomes the upper bound. `"clip"`: also, a smaller one
            than the lower bound becomes the lower bound. `"mask"`: a ratio outside the bounds becomes 0.0.
        threshold: The upper bound; the lower bound is `1 / threshold`, which `truncate` does not use. Or a pair of
            bounds, of which the lower one may be 0: `(0.5, 5.0)` are those of IcePop, `(0.0, 2.0)` those of MIS.
        ratio: The ratio of a step or a sequence: `"product"` is the exact importance ratio, whose spread grows with the
            number of tokens. `"geometric_mean"` is the ratio per token, which does not depend on the length.

    Raises:
        InvalidSample: If lengths or shapes differ, a sample is invalid or has no log-probabilities, a value of the
            trainer is positive, NaN or infinite where mask is True, or a sample of a sequence occurs twice.
        UnknownName: If the level, the mode or the ratio does not exist.
        ConfigError: If the bounds are not numbers with `0 <= lower <= 1 <= upper`.
    """
    for name, choice, known in (("level", level, Level), ("mode", mode, Mode), ("ratio", ratio, Ratio)):
        if choice not in get_args(known):
            raise UnknownName.of(name, choice, get_args(known))
    lower, upper = _bounds(threshold, mode)
    pairs = pair_logprobs(samples, trainer_logprobs)
    unit, units = _units(pairs, level)
    differences = np.concatenate([np.empty(0), *(pair.trainer - pair.sampler for pair in pairs)])
    logs = np.bincount(unit, weights=differences, minlength=units)
    if ratio == "geometric_mean":
        logs = logs / np.bincount(unit, minlength=units)
    with np.errstate(over="ignore"):  # an infinite ratio is above every bound
        ratios = np.exp(logs)
    is_outside = (ratios > upper) | ((ratios < lower) & (mode != "truncate"))
    kept = np.where(is_outside, 0.0, ratios) if mode == "mask" else np.clip(ratios, lower, upper)
    squares = float(np.sum(kept * kept))
    weights: list[NDArray[np.float32]] = []
    start = 0
    for pair in pairs:  # 0.0 where nothing was trained
        row = np.zeros(len(pair.sample), dtype=np.float32)
        row[pair.positions] = kept[unit][start : start + len(pair.positions)]
        weights.append(row)
        start += len(pair.positions)
    return ImportanceWeights(
        weights=tuple(weights),
        level=level,
        mode=mode,
        ratio=ratio,
        bounds=(lower, upper),
        units=units,
        effective_sample_size=float(np.sum(kept)) ** 2 / squares if squares else 0.0,
        tokens=len(unit),
        touched=int(np.count_nonzero(is_outside[unit])),
    )


def _bounds(threshold: Any, mode: Mode) -> tuple[float, float]:
    given: tuple[Any, ...] = cast("tuple[Any, ...]", threshold) if isinstance(threshold, tuple) else (threshold,)
    are_numbers = all(isinstance(bound, Real) and bound is not True for bound in given)
    if not are_numbers or not 1 <= len(given) <= 2 or not 1 <= given[-1] <= LARGEST or not 0 <= given[0] <= LARGEST:
        raise ConfigError(f"threshold is {brief(threshold)}; expected an upper bound of at least 1, or (lower, upper)")
    upper = float(given[-1])
    if mode == "truncate":
        if len(given) == 2:
            raise ConfigError(
                f"threshold is {brief(threshold)}; truncate has no lower bound: pass one number, or use clip"
            )
        return 0.0, upper
    lower = float(given[0]) if len(given) == 2 else 1 / upper
    if lower > 1:
        raise ConfigError(f"threshold is {brief(threshold)}; expected a lower bound of at most 1, the ratio of equals")
    return lower, upper


def _units(pairs: Sequence[LogprobPair], level: Level) -> "tuple[NDArray[np.int64], int]":
    """Return the unit of each trained token, shape (m,), and the number of units: tokens, steps or contexts."""
    numbers: dict[tuple[str, str], int] = {}
    seen: set[tuple[str, str, int]] = set()
    ids: list[NDArray[np.int64]] = []
    count = 0
    for index, (sample, positions, *_) in enumerate(pairs):
        key = (sample.trajectory_id, sample.context)
        if level == "sequence":
            if (*key, sample.segment_index) in seen:
                raise InvalidSample(
                    f"sample {index} is segment {sample.segment_index} of context {key[1]!r} of trajectory {key[0]!r} "
                    "for the second time: give each rollout a unique id (reset option `episode_id`)"
                )
            seen.add((*key, sample.segment_index))
            ids.append(np.full(len(positions), numbers.setdefault(key, len(numbers)), dtype=np.int64))
            count = len(numbers)
        else:
            found, own = np.unique(sample.step_ids[positions] if level == "step" else positions, return_inverse=True)
            ids.append(own + count)
            count += len(found)
    return np.concatenate([np.empty(0, dtype=np.int64), *ids]), count
