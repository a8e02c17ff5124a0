"""The check that rewards, returns and advantages are arrays of finite numbers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .._visible import brief
from ..errors import InvalidSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

Values: TypeAlias = "Sequence[float] | NDArray[Any]"
"""Numbers, shape (n,)."""


def finite_array(name: str, values: Any, dtype: type[np.floating[Any]] = np.float64) -> "NDArray[np.float64]":
    """Return a copy of the values: float64, shape (n,).

    Args:
        name: The plural name of the values, for error messages.
        values: Numbers, shape (n,).
        dtype: The dtype in which each value must be finite.

    Raises:
        InvalidSample: If the values are not a flat array of numbers, or one is not finite. The error names its
            position.
    """
    try:
        given = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidSample(f"{name} must be numbers, shape (n,): {error}") from error
    if given.size and given.dtype.kind not in "biuf":
        raise InvalidSample(f"{name} are {brief(values)}; expected numbers, shape (n,)")
    if given.ndim != 1:
        raise InvalidSample(f"{name} have shape {given.shape}; expected (n,)")
    array = given.astype(np.float64)
    is_finite = np.abs(array) <= np.finfo(dtype).max
    if not is_finite.all():
        at = int(np.argmin(is_finite))
        raise InvalidSample(f"{name}[{at}] is {array[at]}; expected a number that is finite in {np.dtype(dtype)}")
    return array
