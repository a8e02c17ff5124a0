"""The text of a reply that is being read, and the patterns that are searched in it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

SPACES, SPACE, WORD_REST = r"\s*+", r"\s++", r"[\w.\-]*+"
_LONGEST_NAME = 64
_CONTROLS = r"[\ud800-\udfff]|\[\ud800-\udfff\]"
"""Matches a regular expression of control tokens."""
Part: TypeAlias = "str | tuple[tuple[str, ...], ...]"
"""A part of a pattern: one character or a run of them as a regular expression, or a choice of sequences of these."""


@dataclass(frozen=True)
class Alternative:
    """One of the texts that a pattern matches."""

    parts: Sequence[Part]
    ahead: Sequence[Part] = ()
    """What has to follow, which is not part of the match."""
    is_last: bool = False
    """Whether only whitespace may follow."""

    @property
    def first(self) -> str:
        """The regular expression of its first character; empty if it may begin in several ways."""
        first = self.parts[0] if self.parts else None
        return first if isinstance(first, str) and first not in (SPACES, SPACE, WORD_REST) else ""

    @property
    def pattern(self) -> str:
        """The regular expression of the whole text."""
        ahead = f"(?={_joined(self.ahead)})" if self.ahead else ""
        return _joined(self.parts) + ahead + (SPACES + r"\Z" if self.is_last else "")

    @property
    def length(self) -> int:
        """The number of characters, without whitespace, after which it is decided whether it matches."""
        lengths = {SPACES: 0, SPACE: 0, WORD_REST: _LONGEST_NAME}
        parts = [*self.parts, *self.ahead]
        return sum(lengths.get(part, 1) if isinstance(part, str) else max(map(len, part), default=0) for part in parts)

    def is_begun(self, text: str) -> bool:
        """Return whether a text ends before all of what is matched, so that more text may complete it."""
        for part in (*self.parts, *self.ahead):
            if not text:
                return True
            choices = [part] if isinstance(part, str) else ["".join(choice) for choice in part]
            found = next(filter(None, (re.match(choice, text) for choice in choices)), None)
            if found is None:
                begun = (re.escape(text) == choice[: len(re.escape(text))] for choice in choices)
                return not isinstance(part, str) and any(begun)
            text = text[found.end() :]
        return self.is_last and not text.strip()


class Pattern:
    """A pattern of alternatives, of which the first one that matches is chosen; each is a group.

    Args:
        alternatives: The alternatives.
    """

    def __init__(self, alternatives: Iterable[Alternative]) -> None:
        self.alternatives = items = list(alternatives)
        firsts = [*dict.fromkeys(item.first for item in items)]
        if all(firsts) and firsts:  # what follows is only tried at one of these characters, which `re` finds fast
            rests = (f"((?<={item.first}){item.pattern.removeprefix(item.first)})" for item in items)
            self.complete = re.compile(f"(?:{'|'.join(firsts)})(?:{'|'.join(rests)})")
        else:
            self.complete = re.compile("|".join(f"({item.pattern})" for item in items) or "(?!)")
        self.begins_with_control = all(re.fullmatch(_CONTROLS, first) for first in firsts)
        """Whether each alternative begins with a control token."""
        self.first = re.compile("|".join(firsts) if all(firsts) else "", re.DOTALL)
        """Matches where an alternative may begin."""
        self.length = max((item.length for item in items), default=0)
        """The number of characters, without whitespace, after which it is decided whether one matches."""

    def __bool__(self) -> bool:
        return self.complete.groups > 0

    def begun(self, text: str) -> int:
        """Return the number of the first alternative that ends after the text, from 1; 0 if none does."""
        begun = (number for number, item in enumerate(self.alternatives, start=1) if item.is_begun(text))
        return next(begun, 0)


class Source:
    """The coded text of a reply, all of it or what has come so far, in which patterns are searched.

    All searches of a pattern together take time linear in the text: a match that was found from an earlier position is
    still the next one, and one that was not found never will be, until more text comes.
    """

    def __init__(self) -> None:
        self.text = ""
        self.is_whole = False
        """Whether no more text comes."""
        self.undecided: int | None = None
        """Set by a search whose answer more text may change: nothing that is searched for begins before this position.
        What was found must then not be used."""
        self.last: int = 0
        """The position after the last character that is not whitespace, if no more text comes."""
        self.length: int = 0
        """The length of all text so far, with what was dropped."""
        self._found: dict[Pattern, re.Match[str] | None] = {}
        """The next match of each pattern, None if there is none: by the pattern, since `re.Pattern` hashes its code."""

    def grow(self, text: str, *, is_whole: bool = False) -> None:
        """Add text."""
        self.text += text
        self.length += len(text)
        self.is_whole = is_whole
        self.last = len(self.text.rstrip()) if is_whole else len(self.text)
        self._found.clear()

    def drop(self, position: int) -> None:
        """Drop the text before a position, which was read."""
        self.text = self.text[position:]
        self._found.clear()

    def wait(self, position: int) -> None:
        """Note that what is at a position depends on text that has not come yet, unless the text is whole."""
        if not self.is_whole:
            self.undecided = position if self.undecided is None else min(position, self.undecided)

    def search(self, pattern: Pattern, position: int) -> re.Match[str] | None:
        """Return the first match from a position on; None if there is none in the whole reply; see `undecided`."""
        if self.is_whole and pattern.begins_with_control and self.text.isascii():
            return None  # there is no control token
        found = self._found.get(pattern)
        if pattern not in self._found or (found is not None and found.start() < position):
            found = self._found[pattern] = pattern.complete.search(self.text, position)
        if not self.is_whole:
            begun = self._begun(pattern, position)
            if found is None or begun <= (found.start(), found.lastindex or 0):
                self.wait(begun[0])
        return found

    def match(self, pattern: Pattern, position: int) -> re.Match[str] | None:
        """Return the match at a position, if there is one; see `undecided`."""
        found = pattern.complete.match(self.text, position)
        if not self.is_whole:
            begun = pattern.begun(self.text[position:])
            if position >= len(self.text) or (begun and (found is None or begun <= (found.lastindex or 0))):
                self.wait(position)
        return found

    def skip(self, space: str, position: int, start: int) -> int:
        """Return the position after the part of some whitespace that is at a position; `start` may be undecided."""
        found = shared_start(self.text[position : position + len(space)], space)
        if found < len(space) and position + found == len(self.text):
            self.wait(start)
        return position + found

    def _begun(self, pattern: Pattern, position: int) -> tuple[int, int]:
        """Return where and with which alternative a match may have begun that needs more text."""
        start, count = len(self.text), 0
        while start > position and count < pattern.length:
            start -= 1
            count += not self.text[start].isspace()
        for candidate in pattern.first.finditer(self.text, start):
            number = pattern.begun(self.text[candidate.start() :]) if candidate.start() < len(self.text) else 0
            if number:
                return candidate.start(), number
        return len(self.text), 0


def shared_start(first: str, second: str) -> int:
    """Return the length of the common start of a text and whitespace."""
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return length


def _joined(parts: Sequence[Part]) -> str:
    return "".join(part if isinstance(part, str) else f"(?:{'|'.join(map(_joined, part))})" for part in parts)
