"""What a query found: whether it is what it should be, and as text."""

from collections.abc import Sequence
from math import isclose
from typing import TypeAlias

from .guarded.query import Found, Row, Value

TOLERANCE = 1e-6
"""Real numbers are the same if they differ by no more than this, or than this share of the larger one."""
_MAX_CELL_CHARS = 100
_Place: TypeAlias = tuple[tuple[str, ...], tuple[str | bytes, ...], tuple[int | float, ...]]


def is_same(expected: Sequence[Row], given: Sequence[Row], is_ordered: bool) -> bool:
    """Whether two results are the same.

    The same number of columns in the same order, and the same rows as often; in the same order where that was asked
    for. Integers are compared exactly, a real number with an integer or a real number within the tolerance. A text is
    never a number, NULL is the same as NULL alone, and texts and bytes are compared as they are. What columns are
    called does not matter.

    Rows in any order are compared in one order of both results, each with the first row that is left and is the same.
    """
    if len(expected) != len(given):
        return False
    if is_ordered:
        return all(map(_is_same_row, expected, given))
    left = sorted(given, key=_place)
    for row in sorted(expected, key=_place):
        same = next((index for index, other in enumerate(left) if _is_same_row(row, other)), None)
        if same is None:
            return False
        del left[same]
    return True


def _is_same_row(one: Row, other: Row) -> bool:
    return len(one) == len(other) and all(map(_is_same_value, one, other))


def _is_same_value(one: Value, other: Value) -> bool:
    match one, other:
        case (float(), int() | float()) | (int(), float()):
            return isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        case _:
            return one == other


def _place(row: Row) -> _Place:
    """Where a row is sorted: by what is compared exactly, then by its numbers, which may differ a little."""
    numbers = tuple(value for value in row if isinstance(value, (int, float)))
    others = tuple(value for value in row if isinstance(value, (str, bytes)))
    kinds = tuple("number" if isinstance(value, (int, float)) else type(value).__name__ for value in row)
    return kinds, others, numbers


def as_text(found: Found) -> str:
    """A result for the model: names of columns, rows, and how many there are."""
    lines = [" | ".join(found.columns), *(" | ".join(map(_cell, row)) for row in found.rows)]
    count = len(found.rows)
    total = f"the first {count} rows; there are more" if found.has_more else f"{count} row{'s' * (count != 1)}"
    return "\n".join([*lines, f"({total})"])


def _cell(value: Value) -> str:
    match value:
        case None:
            return "NULL"
        case bytes():
            text = f"x'{value.hex()}'"
        case _:
            text = str(value)
    return text if len(text) <= _MAX_CELL_CHARS else f"{text[:_MAX_CELL_CHARS]}..."
