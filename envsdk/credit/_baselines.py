"""Baselines: functions from the rewards or returns of a group to advantages."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from .._visible import brief
from ..errors import ConfigError, InvalidSample
from ._values import Values, finite_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

Owners: TypeAlias = "Sequence[str] | None"
"""The owner of each value, such as the id of its trajectory; None if each value has another owner."""
Baseline: TypeAlias = "Literal['mean', 'leave_one_out', 'normalized', 'none'] | Callable[[Values, Owners], Values]"
"""The name of a baseline, or a function from the values of a group and their owners (trajectory ids) to advantages."""

EPSILON = 1e-6


def mean(values: Values, owners: Owners = None) -> "NDArray[np.float64]":
    """Subtract the group's mean.

    `A[i] = R[i] - mean(R)`

    Source: Z. Liu et al., "Understanding R1-Zero-Like Training" (Dr. GRPO), 2025, arXiv:2503.20783.

    Args:
        values: The group's values, shape (n,).
        owners: Ignored.

    Returns:
        Advantages: float64, shape (n,).

    Raises:
        InvalidSample: If a value is not a finite number.
    """
    shifted = _shifted(values)
    return shifted - shifted.mean() if len(shifted) else shifted


def leave_one_out(values: Values, owners: Owners = None) -> "NDArray[np.float64]":
    """Subtract the mean over the other owners: `A[i] = R[i] - mean(R[j] for j of other owners)`.

    The estimate is unbiased, because no value is in its own baseline.

    Source: A. Ahmadian et al., "Back to Basics" (RLOO), 2024, arXiv:2402.14740.

    Args:
        values: The group's values, shape (n,).
        owners: The owner of each value, length n. The baseline of a value leaves out all values of its owner.

    Returns:
        Advantages: float64, shape (n,).

    Raises:
        ConfigError: If there is only one owner, or the number of owners is not n.
        InvalidSample: If a value is not a finite number.
    """
    shifted = _shifted(values)
    if owners is not None and len(owners) != len(shifted):
        raise ConfigError(
            f"there are {len(owners)} owners for {len(shifted)} values; expected one owner for each value"
        )
    if not len(shifted):
        return shifted
    ids = np.arange(len(shifted)) if owners is None else np.unique(np.asarray(owners), return_inverse=True)[1]
    counts, sums = np.bincount(ids), np.bincount(ids, weights=shifted)
    if len(counts) < 2:
        raise ConfigError(
            "a group of one has no leave-one-out baseline: sample several episodes of each task, or use baseline='mean'"
        )
    return shifted - (shifted.sum() - sums[ids]) / (len(shifted) - counts[ids])


def normalized(
    values: Values, owners: Owners = None, *, epsilon: float = EPSILON, ddof: int = 0
) -> "NDArray[np.float64]":
    """Center and scale: `A[i] = (R[i] - mean(R)) / (std(R) + epsilon)`; exactly 0 if all values are equal.

    Source: Z. Shao et al., "DeepSeekMath" (GRPO), 2024, arXiv:2402.03300.

    Args:
        values: The group's values, shape (n,).
        owners: Ignored.
        epsilon: A positive number that keeps the quotient finite.
        ddof: 0 for the standard deviation of the group; 1 for the unbiased estimate of a population's, as in
            `torch.std`. A group of one has advantage 0 in both cases.

    Returns:
        Advantages: float64, shape (n,).

    Raises:
        ConfigError: If `epsilon` is not positive, or `ddof` is neither 0 nor 1.
        InvalidSample: If a value is not a finite number.
    """
    if not isinstance(epsilon, Real) or not 0 < epsilon < np.inf:
        raise ConfigError(f"epsilon is {epsilon!r}; expected a positive finite number")
    if ddof not in (0, 1):
        raise ConfigError(f"ddof is {ddof!r}; expected 0 or 1")
    centered = mean(values)
    return centered / (centered.std(ddof=ddof) + epsilon) if len(centered) > 1 else centered


def none(values: Values, owners: Owners = None) -> "NDArray[np.float64]":
    """Use the values without a baseline: `A[i] = R[i]`.

    Source: R. Williams, "Simple Statistical Gradient-Following Algorithms" (REINFORCE), 1992.

    Args:
        values: The group's values, shape (n,).
        owners: Ignored.

    Returns:
        Advantages: float64, shape (n,).

    Raises:
        InvalidSample: If a value is not a finite number.
    """
    return finite_array("values", values)


_BASELINES: Mapping[str, Callable[[Values, Owners], Values]] = {
    "mean": mean,
    "leave_one_out": leave_one_out,
    "normalized": normalized,
    "none": none,
}


def apply_baseline(baseline: Baseline, group: str, values: Values, owners: Sequence[str]) -> "NDArray[np.float64]":
    """Return the advantages of the values of one group.

    Args:
        baseline: The name of a baseline, or a function.
        group: A description of the group, for error messages.
        values: The group's values, shape (n,).
        owners: The owner of each value, length n.

    Returns:
        Advantages: float64, shape (n,).

    Raises:
        ConfigError: If the baseline does not exist, returns a wrong number of advantages, or needs a larger group.
        InvalidSample: If a value or an advantage is not a finite number.
    """
    function = get_baseline(baseline)
    try:
        advantages = finite_array("advantages", function(values, owners))
    except (ConfigError, InvalidSample) as error:
        raise type(error)(f"{group}: {error}") from error
    if len(advantages) != len(values):
        raise ConfigError(
            f"{group}: the baseline function returned {len(advantages)} advantages for {len(values)} values; expected "
            "one for each value"
        )
    return advantages


def get_baseline(baseline: Baseline) -> Callable[[Values, Owners], Values]:
    """Return the function of a baseline, which is given by its name or as a function.

    Raises:
        ConfigError: If no baseline has that name.
    """
    if callable(baseline):
        return baseline
    function = _BASELINES.get(baseline) if isinstance(baseline, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if function is None:
        raise ConfigError(f"baseline is {brief(baseline)}; expected one of {list(_BASELINES)} or a function")
    return function


def _shifted(values: Values) -> "NDArray[np.float64]":
    """Subtract the first value from all. Advantages stay the same, and equal values give exactly 0."""
    array = finite_array("values", values)
    return array - array[:1] if len(array) else array
