"""Compares two JSON values and names each place where they differ."""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from .._describing import around_difference
from .._visible import brief

MISSING = "nothing"
"""The text for a missing value."""


class Unequal(NamedTuple):
    """A place where two JSON values differ.

    Attributes:
        path: The path of the values, such as `limits.max_steps` or `seeds[3]`.
        stored: The value of the first, as text, or `MISSING`.
        given: The value of the second, as text, or `MISSING`.
    """

    path: str
    stored: str
    given: str


def unequal(stored: Any, given: Any, path: str = "", *, to_the_byte: bool = False) -> Iterator[Unequal]:
    """Yield each place where two JSON values differ.

    Args:
        stored: The first value.
        given: The second value.
        path: The path of both values.
        to_the_byte: Whether two values are equal only if they are written with the same bytes; by default, 600 equals
            600.0, but 1 does not equal True.
    """
    if isinstance(stored, dict) and isinstance(given, dict):
        objects = cast("tuple[dict[str, Any], dict[str, Any]]", (stored, given))
        for name in dict.fromkeys([*objects[0], *objects[1]]):
            where = f"{path}.{name}" if path else name
            if name in objects[0] and name in objects[1]:
                yield from unequal(objects[0][name], objects[1][name], where, to_the_byte=to_the_byte)
            else:
                yield Unequal(where, *(brief(one[name], 200) if name in one else MISSING for one in objects))
        return
    if isinstance(stored, list) and isinstance(given, list):
        lists = cast("tuple[list[Any], list[Any]]", (stored, given))
        if len(lists[0]) == len(lists[1]):
            for index, (one, other) in enumerate(zip(*lists, strict=True)):
                yield from unequal(one, other, f"{path}[{index}]", to_the_byte=to_the_byte)
            return
    is_equal = stored == given and isinstance(stored, bool) == isinstance(given, bool)
    one, other = (repr(value) for value in cast("tuple[Any, Any]", (stored, given)))
    if not (one == other if to_the_byte else is_equal):
        yield Unequal(path, *around_difference(one, other, 200))
