"""Compare the results of queries, and write them as text."""

from collections.abc import Sequence
from math import isclose
from typing import TypeAlias

from .guarded._query import QueryResult, Row, Value

TOLERANCE = 1e-6
"""Real numbers are the same if they differ by at most this, or by at most this share of the larger one."""
_MAX_CELL_CHARS = 100
_Place: TypeAlias = tuple[tuple[str, ...], tuple[str | bytes, ...], tuple[int | float, ...]]


def is_same(expected: Sequence[Row], given: Sequence[Row], is_ordered: bool) -> bool:
    """Return whether two results are the same.

    They are if they have the same number of columns, and the same rows equally often, in the same order if
    `is_ordered`. Integers are compared exactly, a real number with an integer or a real number within the tolerance. A
    string never equals a number, NULL equals only NULL, and strings and bytes are compared exactly. Names of columns do
    not matter.

    For rows in any order, both results are sorted, and each expected row is matched with the first given row that is
    the same and was not matched yet.
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
    if len(one) != len(other):
        return False
    for first, second in zip(one, other, strict=True):
        match first, second:
            case (float(), int() | float()) | (int(), float()):
                is_same_value = isclose(first, second, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
            case _:
                is_same_value = first == second
        if not is_same_value:
            return False
    return True


def _place(row: Row) -> _Place:
    """Return the sort key of a row: first what is compared exactly, then its numbers, which may differ a little."""
    numbers = tuple(value for value in row if isinstance(value, (int, float)))
    others = tuple(value for value in row if isinstance(value, (str, bytes)))
    kinds = tuple("number" if isinstance(value, (int, float)) else type(value).__name__ for value in row)
    return kinds, others, numbers


def as_text(found: QueryResult) -> str:
    """Write a result for the model: names of columns, rows, and the number of rows."""
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
