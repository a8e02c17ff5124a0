"""The text of a reply that is being read: all of it, or what has come so far.

While a reply is not whole, a search is answered only if no further text can change the answer. So each pattern has a
second one, of the beginnings of what it matches that reach the end of the text.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

SPACES, SPACE, WORD_REST = r"\s*+", r"\s++", r"[\w.\-]*+"
_RUNS = {SPACES: SPACES, SPACE: SPACES, WORD_REST: WORD_REST}
"""The parts that match several characters, with what matches a beginning of them."""
_CONTROLS = r"[\ud800-\udfff]|\[\ud800-\udfff\]"
"""Matches a regular expression of control tokens."""
Part: TypeAlias = "str | tuple[tuple[str, ...], ...]"
"""A part of a pattern: one character or a run of them as a regular expression, or a choice of sequences of these."""


class Undecided(Exception):
    """What comes next depends on text that has not come yet.

    Args:
        position: Nothing that is searched for begins before it.
    """

    def __init__(self, position: int) -> None:
        super().__init__(f"the text from {position} on is undecided")
        self.position = position


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
        return first if isinstance(first, str) and first not in _RUNS else ""

    @property
    def pattern(self) -> str:
        """The regular expression of the whole text."""
        return self.first + self.rest

    @property
    def rest(self) -> str:
        """The regular expression of the text after `first`."""
        ahead = f"(?={_whole(self.ahead)})" if self.ahead else ""
        return _whole(self.parts[bool(self.first) :]) + ahead + (SPACES + r"\Z" if self.is_last else "")

    @property
    def begun(self) -> str:
        """The regular expression of each beginning of it that reaches the end of the text, after `first`."""
        begun = _begun([*self.parts, *self.ahead, *([SPACES] if self.is_last else [])][bool(self.first) :])
        return begun if self.first else r"(?!\Z)" + begun


class Pattern:
    """A pattern of alternatives, of which the first one that matches is chosen; each is a group.

    Args:
        alternatives: The alternatives.
    """

    def __init__(self, alternatives: Iterable[Alternative]) -> None:
        items = list(alternatives)
        self.complete = _compiled([(item.first, item.rest) for item in items])
        self.begun = _compiled([(item.first, item.begun) for item in items])
        self.begins_with_control = all(re.fullmatch(_CONTROLS, item.first) for item in items)
        """Whether each alternative begins with a control token."""

    def __bool__(self) -> bool:
        return self.complete.groups > 0


class Source:
    """The coded text of a reply, in which patterns are searched.

    All searches of a pattern together take time linear in the text: a match that was found from an earlier position is
    still the next one, and one that was not found never will be, until more text comes.
    """

    def __init__(self) -> None:
        self.text = ""
        self.is_whole = False
        """Whether no more text comes."""
        self.last: int = 0
        """The position after the last character that is not whitespace, if no more text comes."""
        self.length: int = 0
        """The length of all text so far, with what was dropped."""
        self._found: dict[Pattern, re.Match[str] | None] = {}
        """The next match of each pattern, None if there is none: by the pattern, since `re.Pattern` hashes its code."""
        self._begun: dict[Pattern, re.Match[str] | None] = {}
        """The same for the beginnings of what it matches."""

    def grow(self, text: str, *, is_whole: bool = False) -> None:
        """Add text."""
        self.text += text
        self.length += len(text)
        self.is_whole = is_whole
        self.last = len(self.text.rstrip()) if is_whole else len(self.text)
        self._found.clear()
        self._begun.clear()

    def drop(self, position: int) -> None:
        """Drop the text before a position, which was read."""
        self.text = self.text[position:]
        self._found.clear()
        self._begun.clear()

    def search(self, pattern: Pattern, position: int) -> re.Match[str] | None:
        """Return the first match from a position on; None if there is none in the whole reply.

        Raises:
            Undecided: If that depends on text that has not come yet.
        """
        if self.is_whole and pattern.begins_with_control and self.text.isascii():
            return None  # there is no control token
        found = self._next(self._found, pattern, pattern.complete, position)
        if self.is_whole:
            return found
        begun = self._next(self._begun, pattern, pattern.begun, position)
        if begun and (found is None or _rank(begun) <= _rank(found)):
            raise Undecided(begun.start())
        if found is None:
            raise Undecided(len(self.text))
        return found

    def match(self, pattern: Pattern, position: int) -> re.Match[str] | None:
        """Return the match at a position, if there is one.

        Raises:
            Undecided: If that depends on text that has not come yet.
        """
        found = pattern.complete.match(self.text, position)
        if self.is_whole:
            return found
        begun = pattern.begun.match(self.text, position)
        if position >= len(self.text) or (begun and (found is None or _rank(begun) <= _rank(found))):
            raise Undecided(position)
        return found

    def skip(self, space: str, position: int, start: int) -> int:
        """Return the position after the part of some whitespace that is at a position.

        Raises:
            Undecided: If that depends on text that has not come yet; `start` is its position.
        """
        if self.text.startswith(space, position):  # mostly
            return position + len(space)
        found = shared_start(self.text[position : position + len(space)], space)
        if not self.is_whole and found < len(space) and position + found == len(self.text):
            raise Undecided(start)
        return position + found

    def need(self, position: int) -> None:
        """Require that the text goes on at a position, or is whole.

        Raises:
            Undecided: If not.
        """
        if not self.is_whole and position >= len(self.text):
            raise Undecided(position)

    def _next(
        self,
        known: dict[Pattern, re.Match[str] | None],
        pattern: Pattern,
        expression: re.Pattern[str],
        position: int,
    ) -> re.Match[str] | None:
        if pattern in known:
            found = known[pattern]
            if found is None or found.start() >= position:
                return found
        found = known[pattern] = expression.search(self.text, position)
        return found


def shared_start(first: str, second: str) -> int:
    """Return the length of the common start of a text and whitespace."""
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return length


def _rank(found: re.Match[str]) -> tuple[int, int]:
    """Return what a pattern prefers: the first match, and of several the first alternative."""
    return found.start(), found.lastindex or 0


def _compiled(patterns: Sequence[tuple[str, str]]) -> re.Pattern[str]:
    """Compile alternatives, each given as its first character and its rest, which is its group.

    What follows a choice of characters is only tried where one of them is, which Python's `re` finds fast.
    """
    firsts = [*dict.fromkeys(first for first, _ in patterns)]
    if not all(firsts) or not firsts:
        return re.compile("|".join(f"({first}{rest})" for first, rest in patterns) or "(?!)")
    rests = (rest if len(firsts) == 1 else f"(?<={first}){rest}" for first, rest in patterns)
    return re.compile(f"(?:{'|'.join(firsts)})(?:{'|'.join(f'({rest})' for rest in rests)})")


def _whole(parts: Sequence[Part]) -> str:
    return "".join(part if isinstance(part, str) else f"(?:{'|'.join(map(_whole, part))})" for part in parts)


def _begun(parts: Sequence[Part]) -> str:
    """Return what matches at the end of a text if it ends inside these parts; halving keeps the nesting flat."""
    if len(parts) > 1:
        half = len(parts) // 2
        return f"(?:{_begun(parts[:half])}|{_whole(parts[:half])}{_begun(parts[half:])})"
    if not parts:
        return "(?!)"
    part = parts[0]
    return _RUNS.get(part, "") + r"\Z" if isinstance(part, str) else f"(?:{'|'.join(map(_begun, part))})"
