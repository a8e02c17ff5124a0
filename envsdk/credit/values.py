"""Rewards, returns and advantages as arrays of finite numbers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..errors import InvalidSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

Values: TypeAlias = "Sequence[float] | NDArray[Any]"
"""Numbers, shape (n,)."""


def finite(name: str, values: Any, dtype: type[np.floating[Any]] = np.float64) -> "NDArray[np.float64]":
    """A float64 copy, shape (n,).

    Args:
        name: What the values are, for errors.
        values: Numbers, shape (n,).
        dtype: In what they have to be finite.

    Raises:
        InvalidSample: If they are something else, or one is not finite; it names the position.
    """
    try:
        given = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidSample(f"{name} are no numbers: {error}") from error
    if given.size and given.dtype.kind not in "biuf":
        raise InvalidSample(f"{name} are no numbers: {values!r:.80}")
    if given.ndim != 1:
        raise InvalidSample(f"{name} have shape {given.shape}; expected (n,)")
    array = given.astype(np.float64)
    is_sound = np.abs(array) <= np.finfo(dtype).max
    if not is_sound.all():
        at = int(np.argmin(is_sound))
        raise InvalidSample(f"{name}[{at}] is {array[at]}; expected a number that is finite in {np.dtype(dtype)}")
    return array
