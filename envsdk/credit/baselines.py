"""Baselines: from the values of a group to advantages."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from ..errors import ConfigError, InvalidSample
from .values import Values, finite

if TYPE_CHECKING:
    from numpy.typing import NDArray

Owners: TypeAlias = "Sequence[str] | None"
"""For each value whose it is; None: each is somebody else's."""
Baseline: TypeAlias = "Literal['mean', 'leave_one_out', 'normalised', 'none'] | Callable[[Values, Owners], Values]"
"""A baseline's name, or a function from a group's values and their owners (ids of trajectories) to advantages."""

EPSILON = 1e-6


def mean(values: Values, owners: Owners = None) -> "NDArray[np.float64]":
    """Subtract the group's mean.

    `A[i] = R[i] - mean(R)`

    Source: Z. Liu et al., "Understanding R1-Zero-Like Training" (Dr. GRPO), 2025, arXiv:2503.20783.

    Args:
        values: The group's values, shape (n,).
        owners: Not read.
    """
    shifted = _shifted(values)
    return shifted - shifted.mean() if len(shifted) else shifted


def leave_one_out(values: Values, owners: Owners = None) -> "NDArray[np.float64]":
    """Subtract the mean of the others: `A[i] = R[i] - mean(R[j] of other owners)`.

    It is unbiased, since no value is in its own baseline.

    Source: A. Ahmadian et al., "Back to Basics" (RLOO), 2024, arXiv:2402.14740.

    Args:
        values: The group's values, shape (n,).
        owners: For each value whose it is: all values of an owner are left out of its baselines.

    Raises:
        ConfigError: If there is only one owner, or not one for each value.
    """
    shifted = _shifted(values)
    if owners is not None and len(owners) != len(shifted):
        raise ConfigError(f"there are {len(owners)} owners for {len(shifted)} values")
    if not len(shifted):
        return shifted
    ids = np.arange(len(shifted)) if owners is None else np.unique(np.asarray(owners), return_inverse=True)[1]
    counts, sums = np.bincount(ids), np.bincount(ids, weights=shifted)
    if len(counts) < 2:
        raise ConfigError("a group of one has no leave-one-out baseline: sample more of a task, or take 'mean'")
    return shifted - (shifted.sum() - sums[ids]) / (len(shifted) - counts[ids])


def normalised(
    values: Values, owners: Owners = None, *, epsilon: float = EPSILON, ddof: int = 0
) -> "NDArray[np.float64]":
    """Centre and scale: `A[i] = (R[i] - mean(R)) / (std(R) + epsilon)`; exactly 0 where all values are the same.

    Source: Z. Shao et al., "DeepSeekMath" (GRPO), 2024, arXiv:2402.03300.

    Args:
        values: The group's values, shape (n,).
        owners: Not read.
        epsilon: Keeps the quotient finite; positive.
        ddof: 0 takes the standard deviation of the group, 1 its estimate of a population's, as `torch.std` does (a
            group of one has advantage 0 with either).

    Raises:
        ConfigError: If `epsilon` is not positive, or `ddof` is neither 0 nor 1.
    """
    if not isinstance(epsilon, Real) or not 0 < epsilon < np.inf:
        raise ConfigError(f"epsilon is {epsilon!r}; expected a positive number")
    if ddof not in (0, 1):
        raise ConfigError(f"ddof is {ddof!r}; expected 0 or 1")
    centred = mean(values)
    return centred / (centred.std(ddof=ddof) + epsilon) if len(centred) > 1 else centred


def none(values: Values, owners: Owners = None) -> "NDArray[np.float64]":
    """Take the values as they are: `A[i] = R[i]`.

    Source: R. Williams, "Simple Statistical Gradient-Following Algorithms" (REINFORCE), 1992.

    Args:
        values: The group's values, shape (n,).
        owners: Not read.
    """
    return finite("values", values)


_BASELINES: Mapping[str, Callable[[Values, Owners], Values]] = {
    "mean": mean,
    "leave_one_out": leave_one_out,
    "normalised": normalised,
    "none": none,
}


def over_group(baseline: Baseline, group: str, values: Values, owners: Sequence[str]) -> "NDArray[np.float64]":
    """The advantages of a group's values, by the baseline of that name, or by one's own.

    Args:
        baseline: The baseline.
        group: What the group is called in errors.
        values: Shape (n,).
        owners: For each value whose it is.

    Raises:
        ConfigError: If there is no such baseline, it gives not as many advantages, or the group is too small for it.
        InvalidSample: If a value or an advantage is not finite.
    """
    function = baseline if callable(baseline) else _named(baseline)
    try:
        advantages = finite("advantages", function(values, owners))
    except (ConfigError, InvalidSample) as error:
        raise type(error)(f"{group}: {error}") from error
    if len(advantages) != len(values):
        raise ConfigError(f"{group}: the baseline gave {len(advantages)} advantages for {len(values)} values")
    return advantages


def check_baseline(baseline: Baseline) -> None:
    """Raise a `ConfigError` if there is no such baseline."""
    if not callable(baseline):
        _named(baseline)


def _named(name: Any) -> Callable[[Values, Owners], Values]:
    function = _BASELINES.get(name) if isinstance(name, str) else None
    if function is None:
        raise ConfigError(f"baseline is {name!r:.80}; expected one of {list(_BASELINES)} or a function")
    return function


def _shifted(values: Values) -> "NDArray[np.float64]":
    """The values less the first of them: advantages stay the same, and equal values give exactly 0."""
    array = finite("values", values)
    return array - array[:1] if len(array) else array
