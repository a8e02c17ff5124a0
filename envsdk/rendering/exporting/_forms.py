"""The forms in which families write messages, as measured texts with words in place of what varies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ._probes import PROBE


class NotRegular(Exception):
    """A renderer writes something in a form that is not measured."""


class Slot(NamedTuple):
    """A way in which a family writes the text of a message."""

    jinja: str = ""
    """The Jinja code after the text."""
    strips: str = ""
    """The method of `str` that does the same; empty for a text that stays as it is."""
    chars: str | None = None
    """The method's argument."""

    def of(self, text: str) -> str:
        """Return the text as it is written."""
        return str(getattr(text, self.strips)(self.chars)) if self.strips else text


_SLOTS = (
    Slot(),
    Slot(" | trim", "strip"),
    *(Slot(f".{name}('\\n')", name, "\n") for name in ("strip", "lstrip", "rstrip")),
)


@dataclass(frozen=True)
class Start:
    """The text before the first message that is not a system message."""

    without: str
    """Without a system message. It contains `TOOLS` where the list of tools is."""
    with_system: str
    """With a system message, whose text is `SYSTEM`."""
    slot: Slot
    needs_text: bool
    """True if a system message without text is written like none."""


@dataclass(frozen=True)
class Body:
    """A reply of one shape, up to its end."""

    without: str
    """Without text; `REASONING` and `CALLS` are where they are written."""
    with_text: str
    """With the text `CONTENT`."""
    slot: Slot
    needs_text: bool
    """True if a text of only spaces is written like none."""


@dataclass(frozen=True)
class Calls:
    """The format of the calls of a reply: names and arguments, with this text around them."""

    middle: str
    """The text between a name and its arguments."""
    separator: str | None
    """The text between two calls; None if a reply has at most one."""
    argument: tuple[str, str, str] | None = None
    """The text before a key, before its value, and after the value; None if the arguments are one JSON object."""
    is_python: bool = False
    """True if numbers, booleans and null are written as Python does, not as JSON."""
    text_arguments: str = "refused"
    """True if arguments given as a text are `verbatim`, a `JSON` string, or refused."""


def shared_length(texts: Sequence[str]) -> int:
    """Return the length of the common start of texts."""
    different = (i for i, chars in enumerate(zip(*texts, strict=False)) if len(set(chars)) > 1)
    return next(different, min(map(len, texts)))


def between(text: str, first: str, second: str) -> str:
    """Return the text between two words.

    Raises:
        NotRegular: If they are not in the text, in this order.
    """
    _, found, rest = text.partition(first)
    found_text, also, _ = rest.partition(second)
    if not found or not also:
        raise NotRegular(f"calls are written in a form that is not measured: {text[-160:]!r}")
    return found_text


def slot_of(text: str, word: str, probed: Callable[[str], str | None]) -> Slot:
    """Return how the text in place of `word` is written; `probed` renders another text there."""
    written = probed(PROBE)
    for slot in _SLOTS:
        if written == text.replace(word, slot.of(PROBE)):
            return slot
    raise NotRegular(f"a text is written in a form that is not measured: {written!r:.120}")
