"""Search in the contents of episodes: their messages, reasoning, calls and results.

A line is searched as it is stored. Most lines without a match are skipped without being read as JSON, so that
thousands of episodes are searched in a second. Case does not matter, in any script: strings are compared by `casefold`.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, cast

import orjson

from .._untrusted import check_values

_BEFORE, _AFTER, _MOST_FOUND = 40, 90, 90
"""The maximum number of characters shown before a match, after it, and of the match itself."""
_MOST_HITS = 3
"""The maximum number of matches shown for an episode."""
_PLAIN = re.compile(r"[ !#-.0-\[\]-~]+")
"""Characters that JSON never has to escape."""
FOLDED_TO_ASCII: tuple[bytes, ...] = (
    *(character.encode() for character in "ßİŉſǰ\u212a"),
    *(b"\xe1\xba", b"\xef\xac"),  # the beginnings of ẖẗẘẙẚẞ, and of the ligatures of Latin letters
)
"""Non-ASCII characters, as UTF-8, whose case-folded form contains ASCII characters, such as ß and the Kelvin sign."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that contains a searched string. Its strings are as recorded: escape them before you print them.

    Attributes:
        context: The name of the context.
        message: The index of the message in the context.
        step: The index of the step that wrote the message or first observed it; None if there is no such step.
        role: The role of the message.
        part: The part of the message with the match: `text`, `reasoning`, `call`, `result` or `error`.
        before: The text before the match, shortened.
        found: The match as it is in the message.
        after: The text after the match, shortened.
    """

    context: str
    message: int
    step: int | None
    role: str
    part: str
    before: str
    found: str
    after: str


@dataclass(frozen=True, slots=True)
class Match:
    """An episode that matches a filter.

    Attributes:
        line: The number of its line, from 1.
        count: The number of messages with a match.
        hits: The first of these messages.
        searched: The searched strings, as `str.casefold` returns them.
    """

    line: int
    count: int = 0
    hits: tuple[Hit, ...] = ()
    searched: tuple[str, ...] = ()


@dataclass(eq=False, repr=False)
class Contents:
    """The contents of a line of a file of trajectories.

    Args:
        line: The line; a line that cannot be read has no contents.
    """

    _line: bytes

    @cached_property
    def _fields(self) -> Mapping[str, Any]:
        try:
            check_values(self._line)
            return _mapping(orjson.loads(self._line))
        except ValueError:
            return {}

    @cached_property
    def _messages(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """The messages of each context."""
        contexts = _mapping(self._fields.get("contexts"))
        return {name: [*map(_mapping, _list(_mapping(log).get("messages")))] for name, log in contexts.items()}

    @cached_property
    def _texts(self) -> list[str]:
        messages = (message for own in self._messages.values() for message in own)
        return [text.casefold() for message in messages for _, text in texts_of(message)]

    def has(self, folded: str) -> bool:
        """Return whether a message contains a string, which is given as `str.casefold` returns it.

        The line is read as JSON only if its bytes do not rule out a match.
        """
        line = self._line
        if b"\\u" not in line and (line.isascii() or not any(character in line for character in FOLDED_TO_ASCII)):
            if line.isascii() and not folded.isascii():
                return False
            if max(_PLAIN.findall(folded), key=len, default="").encode() not in line.lower():
                return False
        return any(folded in text for text in self._texts)

    def match(self, number: int, folded: Collection[str]) -> Match:
        """Return the messages that contain any of several strings.

        Args:
            number: The number of the line.
            folded: The strings, as `str.casefold` returns them; if there are none, nothing is found.
        """
        hits: list[Hit] = []
        steps = [*map(_mapping, _list(self._fields.get("steps")))] if folded else []
        for name, messages in self._messages.items() if folded else ():
            own = [(index, step) for index, step in enumerate(steps) if step.get("context") == name]
            base = own[0][1].get("base") if own else None
            given = self._messages.get(base, ()) if isinstance(base, str) and base != name else ()
            is_inherited = True  # messages that are in the context that this one began from are found there
            for index, message in enumerate(messages):
                is_inherited = is_inherited and index < len(given) and message == given[index]
                places = (
                    (part, text, *place)
                    for part, text in texts_of(message)
                    for one in folded
                    if (place := find(text, one)) is not None
                )
                if is_inherited or (first := next(places, None)) is None:
                    continue
                part, text, start, stop = first
                known = (at for at, step in own if step.get("reply") is None or step["reply"] >= index)
                before, found, after = (
                    re.sub(r"\s+", " ", text[first:last])
                    for first, last in (
                        (max(0, start - _BEFORE), start),
                        (start, min(stop, start + _MOST_FOUND)),
                        (stop, stop + _AFTER),
                    )
                )
                hits.append(
                    Hit(
                        context=name,
                        message=index,
                        step=next(known, own[-1][0] if own else None),
                        role=str(message.get("role", "")),
                        part=part,
                        before="…" * (start > _BEFORE) + before,
                        found=found + "…" * (stop - start > _MOST_FOUND),
                        after=after + "…" * (len(text) - stop > _AFTER),
                    )
                )
        return Match(number, len(hits), tuple(hits[:_MOST_HITS]), tuple(folded))


def texts_of(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the strings of a message that are searched, each with its part: see `Hit.part`."""
    found: list[tuple[str, Any]] = [
        ("reasoning", message.get("reasoning")),
        ("result" if message.get("role") == "tool" else "text", message.get("content")),
    ]
    for call in map(_mapping, _list(message.get("tool_calls"))):
        found.append(("call", call.get("name")))
        given = call.get("arguments")
        values = [] if given is None else [given]
        if isinstance(given, dict):
            values = [one for pair in _mapping(given).items() for one in pair]
        for value in values:
            is_text = isinstance(value, str)
            found.append(("call", value if is_text else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()))
        found.append(("error", call.get("error")))
    found += [("error", error) for error in _list(message.get("errors"))]
    yield from ((part, text) for part, text in found if isinstance(text, str) and text)


def find(text: str, folded: str) -> tuple[int, int] | None:
    """Return the start and the stop of the first match in a string, ignoring case; None if there is none.

    Args:
        text: The string to search in.
        folded: The string to search for, as `str.casefold` returns it.
    """
    whole = text.casefold()
    at = whole.find(folded)
    if at < 0:
        return None
    if len(whole) == len(text):
        return at, at + len(folded)
    ends = [*accumulate(len(character.casefold()) for character in text)]  # such as 2 for ß
    return bisect_right(ends, at), bisect_left(ends, at + len(folded)) + 1


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: Any) -> Sequence[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
