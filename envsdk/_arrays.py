"""Arrays that grow: appending is amortized O(new elements), regardless of the length."""

import math
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST = float(np.finfo(np.float32).max)
"""The largest finite number of float32, the type in which rewards and temperatures reach a trainer."""
Scalar = TypeVar("Scalar", bound=np.generic)


class GrowableArray(Generic[Scalar]):
    """A one-dimensional array with spare room at its end."""

    __slots__ = ("_array", "length")

    def __init__(self, dtype: type[Scalar], capacity: int = 256) -> None:
        self._array: NDArray[Scalar] = np.empty(capacity, dtype=dtype)
        self.length = 0
        """The number of elements, as `len` returns it."""

    def __len__(self) -> int:
        return self.length

    @property
    def view(self) -> "NDArray[Scalar]":
        """The elements, without a copy: valid until the next change."""
        return self._array[: self.length]

    def copy(self, start: int = 0, stop: int | None = None) -> "NDArray[Scalar]":
        """Return a copy of the elements from `start` to `stop`."""
        return self._array[: self.length][start:stop].copy()

    def append(self, values: "NDArray[Scalar]") -> None:
        """Add elements at the end."""
        start = self.length
        stop = start + values.size
        if stop > self._array.size:
            self._grow(stop)
        self._array[start:stop] = values
        self.length = stop

    def extend(self, count: int, value: Any) -> None:
        """Add `count` elements at the end: the elements of an array, or one value for all."""
        start = self.length
        length = start + count
        if length > self._array.size:
            self._grow(length)
        self._array[start:length] = value
        self.length = length

    def _grow(self, length: int) -> None:
        grown: NDArray[Scalar] = np.empty(max(length, 2 * self._array.size), dtype=self._array.dtype)
        grown[: self.length] = self.view
        self._array = grown

    def truncate(self, length: int) -> None:
        """Drop all elements from position `length` on.

        Raises:
            IndexError: If there are fewer.
        """
        if not 0 <= length <= self.length:
            raise IndexError(f"cannot keep {length} of {self.length} elements")
        self.length = length


def fill_value(dtype: "np.dtype[Any]") -> int | float:
    """Return the value that means "not known" in an array of side data: -1, or NaN for floats.

    Raises:
        ValueError: If every value of the dtype has a meaning: booleans and unsigned integers.
    """
    if dtype.kind == "i":
        return -1
    if dtype.kind == "f":
        return math.nan
    raise ValueError(f"an array of {dtype} has no value that means that nothing is known")
