"""Parses JSON bodies that begin as the last one did: only what follows is parsed. It knows no protocol.

A program sends its whole conversation with each request. At a thousand messages, parsing them again and comparing them
with those that are known takes longer than all else that a gateway does.
"""

import re
import secrets
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

_MOST_TOKENS = 200_000
"""How many texts and brackets are searched at a time, in a tenth of a second: meanwhile, no request is answered."""
_LISTS = {b'"messages"': "messages", b'"input"': "input"}
"""The fields that hold a conversation."""
_NOTHING: tuple[str, Sequence[int]] = ("", ())
_MARK = secrets.token_hex(16)
"""Takes the place of known elements while the rest is parsed. No body has it."""
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_DEPTHS = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}
_OPENING = re.compile(rb"\s*:\s*\[")


@dataclass(frozen=True, eq=False, slots=True)
class ParsedBody:
    """A parsed body.

    Attributes:
        value: Its JSON value. It shares what was known with that of the last body, so it must not be changed.
        new_bytes: How many of its bytes were parsed; the others are those of the last body.
        body: The body.
        field: The field of the list whose elements are known; empty if none are.
        ends: Where that list begins, and where each known element ends.
    """

    value: Any
    new_bytes: int
    body: bytes
    field: str = ""
    ends: Sequence[int] = ()


def parse(body: bytes, last: ParsedBody | None = None) -> ParsedBody:
    """Parse a body. The value is that of `orjson.loads(body)`.

    Args:
        body: The body.
        last: The parsed body whose beginning it may repeat.

    Raises:
        orjson.JSONDecodeError: If it is not JSON.
    """
    repeated = None if last is None else _parse_repeated(body, last)
    return ParsedBody(orjson.loads(body), len(body), body) if repeated is None else repeated


def _parse_repeated(body: bytes, last: ParsedBody) -> ParsedBody | None:
    """Parse a body that begins as the last one; None if it has to be parsed as a whole."""
    common = _common(last.body, body)
    # Of another conversation little is the same. Then it is faster to parse the whole body.
    field, ends = _known(last, common) if 2 * common >= len(last.body) else _NOTHING
    value = _with_mark(body, field, ends[0], ends[-1]) if ends else None
    if value is None:
        return None
    elements = last.value[field][: len(ends) - 1]
    elements += value[field][1:]
    value[field] = elements
    return ParsedBody(value, len(body) - ends[-1], body, field, ends)


def _known(last: ParsedBody, most: int) -> tuple[str, Sequence[int]]:
    """Return what `ParsedBody` has as `field` and `ends`, for the elements that end within `most` bytes."""
    field, ends = (last.field, last.ends) if last.ends else _list_start(last.body, most)
    if len(ends) == (known := bisect_right(ends, most)) > 0:
        ends = array("q", ends)  # copies as bytes, not number by number
        ends.extend(_element_ends(last.body, ends[-1], most))
    else:
        ends = ends[:known]
    if len(ends) < 2:
        return _NOTHING
    rest = _with_mark(last.body, field, ends[0], ends[-1])
    # The field may come twice; then its value is the last. And numbers and texts are elements, too, but have no end.
    is_whole = rest is not None and len(ends) - 1 + len(rest[field]) - 1 == len(last.value[field])
    return (field, ends) if is_whole else _NOTHING


def _with_mark(body: bytes, field: str, start: int, end: int) -> dict[str, Any] | None:
    """Parse a body with the mark in place of the beginning of a list; None if its field does not have that list.

    Args:
        body: The body.
        field: The field of the list.
        start: Where the list begins.
        end: Where one of its elements ends.
    """
    try:
        value = orjson.loads(body[:start] + b'"%b"' % _MARK.encode() + body[end:])
    except orjson.JSONDecodeError:
        return None
    elements = value[field]
    return value if isinstance(elements, list) and elements[:1] == [_MARK] else None


def _common(one: bytes, other: bytes) -> int:
    """Return how many bytes at the beginning are the same."""
    low, high, view = 0, min(len(one), len(other)), memoryview(one)
    while low < high:
        middle = (low + high + 1) // 2
        if other.startswith(view[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


def _list_start(body: bytes, most: int) -> tuple[str, Sequence[int]]:
    """Return the first field that holds a conversation, and where its list begins; both are empty without one."""
    for depth, token, end in _tokens(body, 0, most):
        opening = _OPENING.match(body, end) if depth == 1 and token in _LISTS else None
        if opening is not None:
            return _LISTS[token], [opening.end()]
    return _NOTHING


def _element_ends(body: bytes, start: int, most: int) -> Iterator[int]:
    """Yield where the objects and lists end that are elements of a list.

    Args:
        body: The body.
        start: A place in the list between two elements.
        most: Where to stop.
    """
    for depth, token, end in _tokens(body, start, most):
        if depth < 0:
            return
        if depth == 0 and token in (b"]", b"}"):
            yield end


def _tokens(body: bytes, start: int, most: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield the texts and brackets of JSON: how many brackets are open after each, the token, and where it ends."""
    depth = 0
    for match in islice(_TOKEN.finditer(body, start), _MOST_TOKENS):
        token, end = match[0], match.end()
        if end > most:
            return
        depth += _DEPTHS.get(token, 0)
        yield depth, token, end
