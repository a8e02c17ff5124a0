"""The lines of two episodes side by side, message by message, from where they diverge."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from rich.text import Text

from ..._visible import on_one_line
from .._divergence import ContextPair, context_pairs
from .._transcript import Entry
from ._conversation import StyledLine, entry_lines, wrapped

_NONE = StyledLine("", "")
_BETWEEN = " │ "


class Shown(NamedTuple):
    """An episode: what `episodes.episode` returns for it, and its entries."""

    episode: Mapping[str, Any]
    entries: Sequence[Entry]


class _Row(NamedTuple):
    """A line: two cells, or one text over the whole width."""

    left: StyledLine
    right: StyledLine | None
    is_different: bool = False


class ComparisonLines:
    """Two episodes as lines. Equal messages are one line.

    Args:
        one: The first episode.
        other: The second one.
        width: The width to wrap to.
    """

    def __init__(self, one: Shown, other: Shown, width: int) -> None:
        self.pairs = context_pairs(one.episode, other.episode)
        self._messages = [_by_message(own.entries) for own in (one, other)]
        self.resize(width, 0)

    def __len__(self) -> int:
        return len(self._rows)

    def resize(self, width: int, cursor: int) -> int:
        """Wrap to another width; return the line of the difference that the cursor is at."""
        before = 0 if not cursor else sum(row.is_different for row in self._rows[: cursor + 1])
        self._cell = max((width - len(_BETWEEN)) // 2, 10)
        self._rows = [row for pair in self.pairs for row in self._of_context(pair)]
        starts = [index for index, row in enumerate(self._rows) if row.is_different]
        return starts[before - 1] if before else 0

    def next_difference(self, index: int, step: int) -> int | None:
        """Return the line of the next message that differs (1), or of the one before (-1)."""
        stop = len(self._rows) if step > 0 else -1
        return next((at for at in range(index + step, stop, step) if self._rows[at].is_different), None)

    def line(self, index: int, width: int) -> Text:
        """Return a line."""
        left, right, _ = self._rows[index]
        if right is None:
            return Text(left.text, left.style)
        line = Text(left.text, left.style)
        line.truncate(self._cell, pad=True)
        return Text().append_text(line).append(_BETWEEN, "dim").append(right.text, right.style)

    def _of_context(self, pair: ContextPair) -> Iterator[_Row]:
        name = on_one_line(pair.name)
        yield _Row(StyledLine(f"{name}: {_summary(pair)}", "bold"), None)
        equal = 0
        for index in range(max(pair.counts)):
            if index not in pair.different:
                equal += 1
                continue
            yield from _equal(equal)
            equal = 0
            if index == pair.different[0]:
                yield _Row(StyledLine("── they diverge here ──", "bold red"), None)
            yield from self._message(pair.name, index)
        yield from _equal(equal)
        yield _Row(_NONE, None)

    def _message(self, context: str, index: int) -> Iterator[_Row]:
        cells = [self._wrapped(messages.get((context, index))) for messages in self._messages]
        for number, (left, right) in enumerate(zip_longest(*cells, fillvalue=_NONE)):
            yield _Row(left, right, number == 0)

    def _wrapped(self, entry: Entry | None) -> list[StyledLine]:
        lines = [StyledLine("(no message)", "dim"), _NONE] if entry is None else entry_lines(entry, False)
        return [StyledLine(piece, line.style) for line in lines for piece in wrapped(line.text, self._cell)]


def _by_message(entries: Sequence[Entry]) -> dict[tuple[str, int], Entry]:
    every = [own for entry in entries for own in (entry, *entry.inherited)]
    return {(entry.context, entry.message): entry for entry in every if entry.message is not None}


def _summary(pair: ContextPair) -> str:
    if not all(pair.counts):
        return f"only in the {'second' if not pair.counts[0] else 'first'}"
    if not pair.different:
        return "all messages are the same"
    first = pair.different[0]
    return (
        f"the first {first:,} messages are the same"
        if first > 1
        else "the first message is the same"
        if first
        else "the first message differs"
    )


def _equal(count: int) -> Iterator[_Row]:
    if count:
        yield _Row(StyledLine("1 equal message" if count == 1 else f"{count} equal messages", "dim"), None)
