"""The lines of one episode: its entries, wrapped to the width, each folded or open."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from rich.cells import cell_len, chop_cells
from rich.text import Text

from .._contents import find
from .._transcript import Entry, Part

_ROLE_STYLES = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow", "inherited": "dim"}
_PART_STYLES = {"reasoning": "dim italic", "call": "blue", "error": "bold red", "note": "dim", "image": "magenta"}


class StyledLine(NamedTuple):
    """A line and its style."""

    text: str
    style: str


class ConversationLines:
    """The entries of an episode as lines.

    Args:
        entries: The entries.
        width: The width to wrap to.

    Attributes:
        entries: The entries.
        searched: A text that is marked wherever it occurs, as `str.casefold` returns it.
    """

    def __init__(self, entries: Sequence[Entry], width: int) -> None:
        self.entries = entries
        self.searched = ""
        self._open: set[int] = set()
        self.resize(width, 0)

    def __len__(self) -> int:
        return self._starts[-1]

    def line(self, index: int, width: int) -> Text:
        """Return a line."""
        entry = self.entry_at(index)
        text, style = self._lines[entry][index - self._starts[entry]]
        line = Text(text, style)
        at = 0
        while self.searched and (place := find(text[at:], self.searched)) is not None:
            line.stylize("black on yellow", at + place[0], at + place[1])
            at += place[1]
        return line

    def resize(self, width: int, cursor: int) -> int:
        """Wrap to another width; return the line of the entry that the cursor is in."""
        entry = self.entry_at(cursor) if cursor else 0
        self._width = max(width, 10)
        self._lines = [self._wrapped(number) for number in range(len(self.entries))]
        self._place()
        return self.first_line(entry)

    def entry_at(self, index: int) -> int:
        """Return the index of the entry that a line belongs to."""
        return bisect_right(self._starts, index, hi=len(self.entries)) - 1

    def first_line(self, entry: int) -> int:
        """Return the first line of an entry."""
        return self._starts[entry]

    def toggle(self, entry: int) -> None:
        """Open or fold an entry."""
        self._open ^= {entry}
        self._lines[entry] = self._wrapped(entry)
        self._place()

    def open_with(self, entry: int, folded: str) -> int:
        """Open an entry if a text in it is folded away; return the line with the text, or else the entry's first."""
        if all(find(line.text, folded) is None for line in self._lines[entry]) and entry not in self._open:
            self.toggle(entry)
        own = (at for at, line in enumerate(self._lines[entry]) if find(line.text, folded) is not None)
        return self._starts[entry] + next(own, 0)

    def toggle_all(self) -> None:
        """Open all entries, or fold them if all are open."""
        self._open = set() if len(self._open) == len(self.entries) else set(range(len(self.entries)))
        self._lines = [self._wrapped(number) for number in range(len(self.entries))]
        self._place()

    def find(self, start: int, step: int, holds: Callable[[Entry], bool]) -> int | None:
        """Return the next entry for which something holds, from after `start` on, forwards (1) or backwards (-1)."""
        stop = len(self.entries) if step > 0 else -1
        return next((number for number in range(start + step, stop, step) if holds(self.entries[number])), None)

    def _wrapped(self, number: int) -> list[StyledLine]:
        return [
            StyledLine(piece, line.style)
            for line in entry_lines(self.entries[number], number in self._open)
            for piece in wrapped(line.text, self._width)
        ]

    def _place(self) -> None:
        self._starts = [0, *accumulate(len(lines) for lines in self._lines)]


def entry_lines(entry: Entry, is_open: bool) -> Iterator[StyledLine]:
    """Yield the lines of an entry, each as wide as it is."""
    for break_ in entry.breaks:
        yield StyledLine(f"──✂── {break_}", "red")
    style = "red" if entry.kind == "break" else f"bold {_ROLE_STYLES.get(entry.kind, '')}"
    mark = ("▾ " if is_open else "▸ ") if entry.kind == "inherited" else ""
    for heading in entry.headings:
        yield StyledLine(mark + heading, style)
    for part in entry.parts:
        for line in _part(part, is_open):
            yield StyledLine(line, _PART_STYLES.get(part.kind, ""))
    if is_open:
        for own in entry.inherited:
            yield from entry_lines(own, False)
    yield StyledLine("", "")


def _part(part: Part, is_open: bool) -> Iterator[str]:
    if part.kind == "reasoning" and not is_open:
        first, _, rest = part.text.strip("\n").partition("\n")
        shown = first if len(first) <= 60 else first[:60] + "…"
        yield f"▸ thinking: {shown}" + (f" (+{rest.count(chr(10)) + 1} lines)" if rest else "")
        return
    text, left_out = (part.text, "") if is_open else part.folded()
    if part.kind == "reasoning":
        yield "▾ thinking:"
    yield from text.expandtabs(4).split("\n")
    if left_out:
        yield f"▸ {left_out} more"


def wrapped(line: str, width: int) -> Iterator[str]:
    """Yield a line in pieces that are at most `width` cells wide, cut at spaces where there are any."""
    while cell_len(line) > width:
        piece = line[:width] if line.isascii() else chop_cells(line[: 2 * width], width)[0]
        at = piece.rfind(" ", len(piece) // 2) + 1 or len(piece)
        yield line[:at]
        line = line[at:]
    yield line
