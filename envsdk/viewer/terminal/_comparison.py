"""The screen with two episodes side by side, message by message, from where they diverge."""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, ClassVar, NamedTuple

import numpy as np
from rich.text import Text
from textual import work
from textual.binding import Binding, BindingType

from ..._palette import TROUBLE
from ..._visible import on_one_line
from ...errors import EnvsdkError
from .._json import EpisodeJSON, MessageJSON
from .._resources import Resources
from .._transcript import TranscriptEntry, transcript
from ._episode import NO_EPISODE, ListedEpisode, StyledLine, entry_lines, wrapped_lines
from ._lines import LineSource, ViewerScreen

_NONE = StyledLine("", "")
_NO_MESSAGE = (StyledLine("(no message)", "dim"), _NONE)
_BETWEEN = " │ "


class ContextPair(NamedTuple):
    """A context of two episodes, message by message.

    Attributes:
        name: The name of the context.
        counts: How many messages the first and the second episode have in it.
        different: The indices of the messages that differ, or that only one of them has.
    """

    name: str
    counts: tuple[int, int]
    different: tuple[int, ...]


def context_pairs(one: EpisodeJSON, other: EpisodeJSON) -> list[ContextPair]:
    """Return the contexts of two episodes, each with the messages that differ.

    Args:
        one: The first episode, as `episode` returns it.
        other: The second episode.
    """

    def compared(message: MessageJSON) -> tuple[Any, ...]:
        calls = [(call["name"], call["arguments"]) for call in message["calls"]]
        return message["role"], message["content"], message["parts"], message["reasoning"], calls

    first, second = (
        {context["name"]: [*map(compared, context["messages"])] for context in shown["contexts"]}
        for shown in (one, other)
    )
    pairs: list[ContextPair] = []
    for name in {**first, **second}:
        messages = first.get(name, []), second.get(name, [])
        different = [n for n, (left, right) in enumerate(zip_longest(*messages)) if left != right]
        pairs.append(ContextPair(name, (len(messages[0]), len(messages[1])), tuple(different)))
    return pairs


class _Row(NamedTuple):
    """A line: two cells, or one cell over the whole width."""

    left: StyledLine
    right: StyledLine | None
    is_different: bool = False


class ComparisonLines(LineSource):
    """Two episodes as lines. Equal messages are one line.

    Args:
        shown: The episodes, as `episode` returns them.
        entries: The entries of each.
        width: The width to wrap to.
    """

    def __init__(self, shown: Sequence[EpisodeJSON], entries: Sequence[Sequence[TranscriptEntry]], width: int) -> None:
        self._pairs = context_pairs(*shown)
        self._messages = [
            {(entry.context, entry.message): entry for outer in own for entry in (outer, *outer.inherited)}
            for own in entries
        ]
        self.rows: list[_Row] = []
        self.resize(width, 0)

    def __len__(self) -> int:
        return len(self.rows)

    def resize(self, width: int, cursor: int) -> int:
        """Wrap to another width; return the line of the difference that the cursor is at."""
        before = 0 if not cursor else sum(row.is_different for row in self.rows[: cursor + 1])
        self._cell = max((width - len(_BETWEEN)) // 2, 10)
        self.rows = [row for pair in self._pairs for row in self._rows_of(pair)]
        starts = [index for index, row in enumerate(self.rows) if row.is_different]
        return starts[before - 1] if before else 0

    def line(self, index: int, width: int) -> Text:
        """Return a line."""
        left, right, _ = self.rows[index]
        line = Text(left.text, left.style)
        if right is None:
            return line
        line.truncate(self._cell, pad=True)
        return Text().append_text(line).append(_BETWEEN, "dim").append(right.text, right.style)

    def _rows_of(self, pair: ContextPair) -> Iterator[_Row]:
        """Yield a heading, then the messages that differ, with one line for the equal ones between two of them."""
        first = pair.different[0] if pair.different else -1
        if not all(pair.counts):
            summary = f"only in the {'second' if not pair.counts[0] else 'first'}"
        elif first < 0:
            summary = "all messages are the same"
        elif first == 0:
            summary = "the first message differs"
        else:
            summary = f"the first {first:,} messages are the same" if first > 1 else "the first message is the same"
        yield _Row(StyledLine(f"{on_one_line(pair.name)}: {summary}", "bold"), None)
        begin = 0
        for index in (*pair.different, max(pair.counts)):
            if equal := index - begin:
                yield _Row(StyledLine("1 equal message" if equal == 1 else f"{equal} equal messages", "dim"), None)
            if index == first:
                yield _Row(StyledLine("── they diverge here ──", "bold"), None)
            if index in pair.different:
                entries = [messages.get((pair.name, index)) for messages in self._messages]
                cells = [_NO_MESSAGE if entry is None else entry_lines(entry, False) for entry in entries]
                pieces = [wrapped_lines(lines, self._cell) for lines in cells]
                for number, (left, right) in enumerate(zip_longest(*pieces, fillvalue=_NONE)):
                    yield _Row(left, right, number == 0)
            begin = index + 1
        yield _Row(_NONE, None)


class ComparisonScreen(ViewerScreen[ComparisonLines]):
    """Two episodes, message by message, and where they diverge.

    Args:
        resources: The runs.
        one: The first episode.
        other: The second one.
    """

    PARTS = ("title", "lines", "details", "status")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "app.pop_screen", "Back"),
        Binding("n", "difference(1)", "Next difference"),
        Binding("N", "difference(-1)", "Difference before"),
    ]

    def __init__(self, resources: Resources, one: ListedEpisode, other: ListedEpisode) -> None:
        super().__init__()
        self.source = ComparisonLines([NO_EPISODE, NO_EPISODE], [[], []], 80)
        self._resources, self._pair = resources, (one, other)

    @work(exclusive=True)
    async def on_mount(self) -> None:
        """Read both episodes, and show where they diverge."""
        try:
            own = [await asyncio.to_thread(self._resources.trajectory, run, row.line) for run, row in self._pair]
            shown = [await asyncio.to_thread(self._resources.episode, run, row.line) for run, row in self._pair]
            entries = [list(transcript(*one)) for one in zip(own, shown, strict=True)]
        except (EnvsdkError, OSError) as error:
            self.write("title", str(error), TROUBLE.text)
            return
        self.source = ComparisonLines(shown, entries, self.lines.size.width or 80)
        self.write("title", f"{own[0].id}  │  {own[1].id}", "bold")
        rewards = " │ ".join(f"{one.stop_reason}, {one.reward_text}, {len(one.steps)} steps" for one in own)
        details, context = [rewards], next(iter(own[0].contexts), "")
        if all(context in one.contexts for one in own) and own[0].tokenizer == own[1].tokenizer:
            first, second = (one.contexts[context].tokens for one in own)
            shorter = min(len(first), len(second))
            different = np.flatnonzero(first[:shorter] != second[:shorter])
            if len(different) or len(first) != len(second):
                at = int(different[0]) if len(different) else shorter
                details.append(f"first different token of {context}: {at:,}")
        self.write("details", Text("\n".join(map(on_one_line, details))))
        self.lines.move_to(0)
        self.action_difference(1)

    def on_line_view_moved(self) -> None:
        """Describe where the cursor is."""
        self.write("status", f"line {self.lines.cursor + 1:,} of {len(self.source):,}")

    def action_difference(self, direction: int) -> None:
        """Go to the next message that differs."""
        rows = self.source.rows
        further = range(self.lines.cursor + direction, len(rows) if direction > 0 else -1, direction)
        found = next((index for index in further if rows[index].is_different), None)
        if found is None:
            self.notify("There is no further difference.", markup=False)
        else:
            self.lines.move_to(found, top=found - 3)
