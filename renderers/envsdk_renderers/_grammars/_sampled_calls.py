"""Finds the tags in the text of a call as it was sampled, so that the call is written again with the same tokens."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ._grammar import tags
from ._styles import Piece, parse_value

_MAX_TRIED = 16


class SampledField(NamedTuple):
    """A field of a call, and what follows it."""

    value: Any
    """Its value; a text if it is written verbatim."""
    is_verbatim: bool
    constant: str
    """The constant after it."""


def sampled_pieces(raw: str, fields: Sequence[SampledField]) -> list[Piece]:
    """Return what is written for a sampled call; a tag that only the text of a field spells is text.

    Args:
        raw: The text between the tags around the call.
        fields: What was read in it.

    Returns:
        The whole text without tags if it does not consist of these fields.
    """
    pieces: list[Piece] = []
    position = 0
    for field in fields:
        end = _end_of(raw, position, field)
        if end is None:
            return [Piece(raw, False)]
        for tag in tags(field.constant):
            at = raw.find(tag, end)
            if at < 0:
                return [Piece(raw, False)]
            pieces += [Piece(raw[position:at], False), Piece(tag, True)]
            position = end = at + len(tag)
    return [*pieces, Piece(raw[position:], False)]


def _end_of(raw: str, position: int, field: SampledField) -> int | None:
    """Return where a field ends that begins at a position, perhaps after whitespace; None if it is not there."""
    if field.is_verbatim:
        begins = (position, len(raw) - len(raw[position:].lstrip()))
        return next((at + len(field.value) for at in begins if raw.startswith(field.value, at)), None)
    tag, at = next(iter(tags(field.constant)), ""), position - 1
    for _ in range(_MAX_TRIED):
        at = raw.find(tag, at + 1)
        if at < 0 or not tag:
            return None if tag else len(raw)
        if _reads(raw[position:at], field.value):
            return at
    return None


def _reads(text: str, value: Any) -> bool:
    try:
        return parse_value(text) == value
    except ValueError:
        return False
