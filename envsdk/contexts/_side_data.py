"""Side data of tokens: arrays with one row for each token, and lists of different lengths.

`Action.extra` carries it, samples hold it at the positions of their tokens, and nothing here interprets it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import numpy as np

from .._visible import brief

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Over: TypeAlias = Literal["sampled", "all"]
_NUMBERS = "biuf"


@dataclass(frozen=True, slots=True, eq=False)
class Aligned:
    """An array with one row for each token.

    Attributes:
        values: Numbers of at most 64 bits, shape (n, ...). In an action, there is one row for each sampled token; or,
            with `over="all"`, one for each token of the prompt and the reply. The rows of the first tokens of the
            prompt may be left out, which means that they are not known. In a sample, there is one row for each token.
        over: `"sampled"` for data about sampled tokens; `"all"` for data about all tokens, such as the experts of a
            router (R3, arXiv:2510.11370), which samples also hold at observations and kept prefixes.
        fill: The value that means that nothing is known about a token; no known row may have it. By default -1, and
            NaN for floats.
    """

    values: "NDArray[Any]"
    over: Over = "sampled"
    fill: float | None = None

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> "NDArray[Any]":
        return np.array(self.values, dtype=dtype) if copy else np.asarray(self.values, dtype=dtype)

    @property
    def unknown(self) -> int | float:
        """The value that means that nothing is known: `fill`, or its default.

        Raises:
            ValueError: If `fill` is None and the values are booleans or unsigned integers, which all have a meaning.
        """
        dtype = self.values.dtype
        if self.fill is None and dtype.kind not in "if":
            raise ValueError(f"an array of {dtype} has no value that means that nothing is known")
        default = -1 if dtype.kind == "i" else math.nan
        return default if self.fill is None else self.fill

    @property
    def known(self) -> "NDArray[np.bool_]":
        """A mask of the tokens with data: bool, shape (n,)."""
        flat = self.values.reshape(len(self.values), -1)
        unknown = np.isnan(flat) if math.isnan(self.unknown) else np.equal(flat, self.unknown)
        return np.logical_not(np.all(unknown, axis=1, keepdims=True)).reshape(-1)

    def take(self, rows: "slice | NDArray[np.integer[Any]]") -> "Aligned":
        """Return a selection of the rows."""
        return replace(self, values=self.values[rows])

    def empty(self, length: int) -> "NDArray[Any]":
        """Return an array of `length` rows that holds the fill value everywhere."""
        return np.full((length, *self.values.shape[1:]), self.unknown, dtype=self.values.dtype)

    def is_like(self, other: object) -> bool:
        """Return whether the rows of both can be concatenated."""
        return (
            isinstance(other, Aligned)
            and (self.over, self.values.dtype) == (other.over, other.values.dtype)
            and self.values.shape[1:] == other.values.shape[1:]
            and np.array_equal(self.unknown, other.unknown, equal_nan=True)
        )

    def check(self) -> None:
        """Check that the values are an array of numbers that can hold the fill value.

        Raises:
            ValueError: If they are not; the message is about "it".
        """
        _check_plain("values", self.values)
        array = self.values
        if not array.ndim or array.dtype.kind not in _NUMBERS or array.dtype.itemsize > 8:
            raise ValueError(
                f"it is an array of {array.dtype} of shape {array.shape}; expected numbers of at most 64 bits, with "
                "one row for each token"
            )
        if self.over not in get_args(Over):
            raise ValueError(f"it is over {brief(self.over)}; expected one of {get_args(Over)}")
        fill: Any = np.asarray(self.unknown)
        fits = fill.ndim == 0 and fill.dtype.kind in "iuf" and array.dtype.kind in "iuf"
        if fits:
            with np.errstate(over="ignore", invalid="ignore"):
                stored = fill.astype(array.dtype)
            fits = bool(not np.isinf(stored) if array.dtype.kind == "f" else stored == fill)
        if not fits:
            raise ValueError(
                f"its fill value is {brief(self.unknown)}; expected a number that an array of {array.dtype} can hold"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """A list for each token, of different lengths, such as the ids that sampling was restricted to.

    `Ragged.of([[5, 8], [8]])` makes one from lists. An empty list means that nothing is known about its token.

    Attributes:
        values: The items of all lists, one after the other: shape (m,), numbers of at most 64 bits.
        lengths: The length of each list: int64, shape (n,). In an action, there is one list for each sampled token; in
            a sample, one for each token.
    """

    values: "NDArray[Any]"
    lengths: "NDArray[np.int64]"

    @classmethod
    def of(cls, lists: "Sequence[ArrayLike]", dtype: Any = np.int32) -> "Ragged":
        """Make side data from a list for each token.

        Raises:
            ValueError: If the lists are not flat lists of numbers.
        """
        arrays = [np.asarray(one, dtype=dtype) for one in lists]
        if any(array.ndim != 1 for array in arrays):
            raise ValueError("the lists of the tokens are nested; expected a flat list of numbers for each token")
        return cls(np.concatenate([np.empty(0, dtype), *arrays]), np.array([len(a) for a in arrays], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def known(self) -> "NDArray[np.bool_]":
        """A mask of the tokens with data: bool, shape (n,)."""
        return self.lengths > 0

    def lists(self) -> "list[NDArray[Any]]":
        """Return the list of each token."""
        return np.split(self.values, np.cumsum(self.lengths)[:-1]) if len(self) else []

    def take(self, rows: "slice | NDArray[np.integer[Any]]") -> "Ragged":
        """Return a selection of the lists."""
        starts, lengths = (np.cumsum(self.lengths) - self.lengths)[rows], self.lengths[rows]
        shifts = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
        return Ragged(self.values[shifts + np.arange(len(shifts))], lengths)

    def is_like(self, other: object) -> bool:
        """Return whether the lists of both can be concatenated."""
        return isinstance(other, Ragged) and self.values.dtype == other.values.dtype

    def check(self) -> None:
        """Check that the items are numbers, and that the lengths add up to their count.

        Raises:
            ValueError: If they are not; the message is about "it".
        """
        for name, array, kinds in (("values", self.values, _NUMBERS), ("lengths", self.lengths, "i")):
            _check_plain(name, array)
            if array.ndim != 1 or array.dtype.kind not in kinds or array.dtype.itemsize > 8:
                raise ValueError(
                    f"its {name} are an array of {array.dtype} of shape {array.shape}; expected a flat one of "
                    f"{'numbers of at most 64 bits' if name == 'values' else 'int64'}"
                )
        if (self.lengths < 0).any() or int(self.lengths.sum()) != len(self.values):
            raise ValueError(f"its lengths add up to {int(self.lengths.sum())}, but it has {len(self.values)} values")


PerToken: TypeAlias = Aligned | Ragged
"""Side data with one row for each token."""


def per_token(value: Any) -> PerToken | None:
    """Return a value of side data as `Aligned` or `Ragged`; None if it belongs to the action as a whole."""
    if isinstance(value, np.ndarray):
        return Aligned(cast("NDArray[Any]", value))
    return value if isinstance(value, (Aligned, Ragged)) else None


def part_of(value: Any, start: int, stop: int, length: int) -> Any:
    """Return the side data of a part of a reply, in the same form as `value`.

    Args:
        value: The side data of the whole reply.
        start: The index of the part's first token in the reply.
        stop: The index after its last token.
        length: The number of tokens in the reply.

    Returns:
        The rows of the part's tokens; with `over="all"`, also the rows of the tokens before it. A value that belongs to
        the reply as a whole is unchanged.
    """
    data = per_token(value)
    if data is None:
        return value
    if isinstance(data, Aligned) and data.over == "all":
        return data.take(slice(0, len(data) - length + stop))
    rows = data.take(slice(start, stop))
    return rows.values if isinstance(value, np.ndarray) and isinstance(rows, Aligned) else rows


def joined(parts: Sequence[PerToken]) -> PerToken:
    """Return the concatenated rows of several values with the same form (`is_like`)."""
    first = parts[0]
    if isinstance(first, Ragged):
        own = cast("Sequence[Ragged]", parts)
        return Ragged(np.concatenate([p.values for p in own]), np.concatenate([p.lengths for p in own]))
    return replace(first, values=np.concatenate([cast("Aligned", p).values for p in parts]))


def placed(given: PerToken, rows: "NDArray[np.int64]") -> PerToken:
    """Return side data in which token i has row `rows[i]` of `given`, or no data if `rows[i]` is -1."""
    has_row = rows >= 0
    if isinstance(given, Ragged):
        lengths = np.zeros(len(rows), dtype=np.int64)
        lengths[has_row] = given.lengths[rows[has_row]]
        return Ragged(given.take(rows[has_row]).values, lengths)
    values = given.empty(len(rows))
    values[has_row] = given.values[rows[has_row]]
    return replace(given, values=values)


def _check_plain(name: str, array: object) -> None:
    if type(array) is not np.ndarray:  # a masked array is a subclass, whose mask would be lost
        raise ValueError(f"it has {name} of the type {type(array).__name__}; expected a plain numpy array")
