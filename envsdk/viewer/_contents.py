"""Search in the contents of episodes: their messages, reasoning, calls and results.

A line is searched as it is stored. Most lines that do not have a text are left without being read as JSON, so that
thousands of episodes are searched in a second. Case does not matter, in any script: texts are compared by `casefold`.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, cast

import orjson

from .._untrusted import check_values

_BEFORE, _AFTER, _MOST_FOUND = 40, 90, 90
"""How many characters of a text are shown before and after what was found, and of what was found."""
_MOST_HITS = 3
"""How many places of an episode are shown."""
_PLAIN = re.compile(r"[ !#-.0-\[\]-~]+")
"""Characters that JSON never has to escape."""
FOLDED_TO_ASCII: tuple[bytes, ...] = (
    *(character.encode() for character in "ßİŉſǰ\u212a"),
    *(b"\xe1\xba", b"\xef\xac"),  # the beginnings of ẖẗẘẙẚẞ, and of the ligatures of Latin letters
)
"""In UTF-8, the characters that are not ASCII, but whose folded form has ASCII characters, such as ß and the Kelvin."""


class Hit(NamedTuple):
    """A message in which a text was found. Its texts are as recorded: escape them before you print them.

    Attributes:
        context: The name of the context.
        message: The index of the message in the context.
        step: The index of the step that wrote the message, or else was the first to observe it; None if there is none.
        role: The role of the message.
        part: What of the message has the text: `text`, `reasoning`, `call`, `result` or `error`.
        before: What is before the text, shortened.
        found: The text as it is in the message.
        after: What is after it, shortened.
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
        count: In how many messages the texts of the filter were found.
        hits: The first of them.
        searched: The texts, as `str.casefold` returns them.
    """

    line: int
    count: int = 0
    hits: tuple[Hit, ...] = ()
    searched: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON, but not what was searched."""
        return {"line": self.line, "count": self.count, "hits": [hit._asdict() for hit in self.hits]}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Match":
        """Return what `to_dict` was called on."""
        return cls(fields["line"], fields["count"], tuple(Hit(**hit) for hit in fields["hits"]))


class Contents:
    """The contents of a line of a file of trajectories.

    Args:
        line: The line; a line that cannot be read has no contents.
    """

    def __init__(self, line: bytes) -> None:
        self._line = line

    def has(self, folded: str) -> bool:
        """Return whether a text occurs in a message. It is given as `str.casefold` returns it."""
        return self._may_have(folded) and any(folded in text for text in self._texts)

    @cached_property
    def _lowered(self) -> bytes:
        return self._line.lower()

    @cached_property
    def _texts(self) -> list[str]:
        messages = (message for own in self._contexts.values() for message in own)
        return [text.casefold() for message in messages for _, text in texts_of(message)]

    @cached_property
    def _fields(self) -> Mapping[str, Any]:
        try:
            check_values(self._line)
            return _mapping(orjson.loads(self._line))
        except ValueError:
            return {}

    @cached_property
    def _contexts(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        contexts = _mapping(self._fields.get("contexts"))
        return {name: [*map(_mapping, _list(_mapping(log).get("messages")))] for name, log in contexts.items()}

    def _may_have(self, folded: str) -> bool:
        """Return False only if the bytes of the line show that a text is not in it."""
        if b"\\u" in self._line:
            return True
        if not self._line.isascii():
            if any(character in self._line for character in FOLDED_TO_ASCII):
                return True
        elif not folded.isascii():
            return False
        return max(_PLAIN.findall(folded), key=len, default="").encode() in self._lowered

    def match(self, number: int, folded: Collection[str]) -> Match:
        """Return where any of several texts occur.

        Args:
            number: The number of the line.
            folded: The texts, as `str.casefold` returns them; without one, nothing is found.
        """
        found = [*self._hits(folded)] if folded else []
        return Match(number, len(found), tuple(found[:_MOST_HITS]), tuple(folded))

    def _hits(self, folded: Collection[str]) -> Iterator[Hit]:
        steps = [*map(_mapping, _list(self._fields.get("steps")))]
        known = self._contexts
        for name, messages in known.items():
            for index in range(_inherited(name, known, steps), len(messages)):
                if (place := _first(messages[index], folded)) is not None:
                    part, text, start, stop = place
                    yield Hit(
                        *(name, index, _step_of(name, index, steps), str(messages[index].get("role", "")), part),
                        before=_shown(text[max(0, start - _BEFORE) : start], start > _BEFORE, False),
                        found=_shown(text[start : min(stop, start + _MOST_FOUND)], False, stop - start > _MOST_FOUND),
                        after=_shown(text[stop : stop + _AFTER], False, len(text) - stop > _AFTER),
                    )


def texts_of(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the texts of a message that are searched, each with the part that it is: see `Hit.part`."""
    is_result = message.get("role") == "tool"
    calls = [_mapping(call) for call in _list(message.get("tool_calls"))]
    found = [
        ("reasoning", message.get("reasoning")),
        ("result" if is_result else "text", message.get("content")),
        *((part, text) for call in calls for part, text in _texts_of_call(call)),
        *(("error", error) for error in _list(message.get("errors"))),
    ]
    yield from ((part, text) for part, text in found if isinstance(text, str) and text)


def _texts_of_call(call: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "call", call.get("name")
    given = call.get("arguments")
    if isinstance(given, dict):
        for name, value in cast("dict[str, Any]", given).items():
            yield "call", name
            yield "call", _as_text(value)
    elif given is not None:
        yield "call", _as_text(given)
    yield "error", call.get("error")


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def find(text: str, folded: str) -> tuple[int, int] | None:
    """Return where a text occurs in another one first, without regard to case: the start and the stop; or None.

    Args:
        text: Where to look.
        folded: What to look for, as `str.casefold` returns it.
    """
    whole = text.casefold()
    at = whole.find(folded)
    if at < 0:
        return None
    if len(whole) == len(text):
        return at, at + len(folded)
    ends = [*accumulate(len(character.casefold()) for character in text)]  # such as 2 for ß
    return bisect_right(ends, at), bisect_left(ends, at + len(folded)) + 1


def _first(message: Mapping[str, Any], folded: Collection[str]) -> tuple[str, str, int, int] | None:
    """Return the part and the text of a message that have any of the texts, and where."""
    for part, text in texts_of(message):
        for one in folded:
            if (place := find(text, one)) is not None:
                return part, text, *place
    return None


def _shown(text: str, is_cut_before: bool, is_cut_after: bool) -> str:
    """Return a text in which each run of spaces is one space, with marks where it was cut."""
    return "…" * is_cut_before + re.sub(r"\s+", " ", text) + "…" * is_cut_after


def _inherited(name: str, known: Mapping[str, Sequence[Any]], steps: Sequence[Any]) -> int:
    """Return how many messages at the start of a context are those of the context that it began from."""
    base = next((step.get("base") for step in steps if step.get("context") == name), None)
    if base is None or base == name or base not in known:
        return 0
    pairs = enumerate(zip(known[name], known[base], strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(known[name]), len(known[base])))


def _step_of(name: str, message: int, steps: Sequence[Any]) -> int | None:
    """Return the index of the step that wrote a message, or else was the first to observe it."""
    own = [(index, step.get("reply")) for index, step in enumerate(steps) if step.get("context") == name]
    known = (index for index, reply in own if reply is None or reply >= message)
    return next(known, own[-1][0] if own else None)


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: Any) -> Sequence[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
