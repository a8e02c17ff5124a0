"""The screen with one episode as a conversation, and the one with the drawing of its contexts."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import ClassVar, NamedTuple, cast

from rich.cells import cell_len, chop_cells
from rich.text import Text
from textual import work
from textual.binding import Binding, BindingType

from ..._palette import OBSERVED, SAMPLED, TROUBLE
from ..._visible import on_one_line, shorten
from ...errors import EnvsdkError
from ...trajectories._scoring import ending
from .._contents import Hit, find
from .._drawing import DrawnRow, drawing
from .._json import EpisodeJSON
from .._ranges import Range
from .._resources import Resources
from .._rows import EpisodeRow
from .._transcript import TranscriptEntry, transcript
from ._lines import LineSource, Question, ViewerScreen
from ._tokens import TokensScreen

_ROLE_STYLES = {
    **dict.fromkeys(("system", "user", "tool"), OBSERVED.text),
    "assistant": SAMPLED.text,
    "inherited": "dim",
}
_PART_STYLES = {
    "reasoning": "dim italic",
    "call": SAMPLED.text,
    "error": f"bold {TROUBLE.text}",
    "note": "dim",
    "image": OBSERVED.text,
}
_DRAWING_STYLES = {"rewrite": "bold", "handoff": "cyan", "return": "cyan", "switch": "cyan", "end": "dim"}

NO_EPISODE = cast("EpisodeJSON", {"contexts": [], "steps": []})
"""The episode that is shown until one is read."""


class ListedEpisode(NamedTuple):
    """A row of a list, and the index of its run."""

    run: int
    row: EpisodeRow


class StyledLine(NamedTuple):
    """A line and its style."""

    text: str
    style: str


class ConversationLines(LineSource):
    """The entries of an episode as lines, each folded or open.

    Args:
        entries: The entries.
        width: The width to wrap to.

    Attributes:
        entries: The entries.
        searched: A string that is marked wherever it occurs, as `str.casefold` returns it.
        open_entries: The indices of the entries that are not folded.
        starts: The first line of each entry, and the number of lines.
    """

    def __init__(self, entries: Sequence[TranscriptEntry], width: int, searched: str = "") -> None:
        self.entries, self.searched = entries, searched
        self.open_entries: set[int] = set()
        self.starts = [0]
        self.resize(width, 0)

    def __len__(self) -> int:
        return self.starts[-1]

    def line(self, index: int, width: int) -> Text:
        """Return a line."""
        entry = self.entry_at(index)
        text, style = self._lines[entry][index - self.starts[entry]]
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
        self.fold(self.open_entries)
        return self.starts[entry]

    def fold(self, open_entries: set[int]) -> None:
        """Open these entries, and fold all others."""
        self.open_entries = open_entries
        self._lines = [
            [*wrapped_lines(entry_lines(entry, number in open_entries), self._width)]
            for number, entry in enumerate(self.entries)
        ]
        self.starts = [0, *accumulate(map(len, self._lines))]

    def entry_at(self, index: int) -> int:
        """Return the index of the entry that a line belongs to."""
        return bisect_right(self.starts, index, hi=len(self.entries)) - 1

    def open_at_searched(self, entry: int) -> int:
        """Open an entry if the searched text in it is folded away; return the line with it, or the entry's first."""
        for _ in range(2):
            for at, line in enumerate(self._lines[entry]):
                if find(line.text, self.searched) is not None:
                    return self.starts[entry] + at
            self.fold(self.open_entries | {entry})
        return self.starts[entry]

    def next_entry(self, start: int, step: int, holds: Callable[[TranscriptEntry], bool]) -> int | None:
        """Return the next entry after `start` that satisfies a condition, forwards (1) or backwards (-1)."""
        stop = len(self.entries) if step > 0 else -1
        return next((number for number in range(start + step, stop, step) if holds(self.entries[number])), None)


def entry_lines(entry: TranscriptEntry, is_open: bool) -> Iterator[StyledLine]:
    """Yield the lines of an entry, without wrapping."""
    for break_ in entry.breaks:
        yield StyledLine(f"──✂── {break_}", "bold")
    style = "bold" if entry.kind == "break" else f"bold {_ROLE_STYLES.get(entry.kind, '')}"
    mark = ("▾ " if is_open else "▸ ") if entry.kind == "inherited" else ""
    for heading in entry.headings:
        yield StyledLine(mark + heading, style)
    for part in entry.parts:
        if part.kind == "reasoning" and not is_open:
            first, _, rest = part.text.strip("\n").partition("\n")
            lines = [f"▸ thinking: {shorten(first, 60)}" + (f" (+{rest.count(chr(10)) + 1} lines)" if rest else "")]
        else:
            text, left_out = (part.text, "") if is_open else part.folded()
            lines = ["▾ thinking:"] if part.kind == "reasoning" else []
            lines += text.expandtabs(4).split("\n") + ([f"▸ {left_out} more"] if left_out else [])
        for line in lines:
            yield StyledLine(line, _PART_STYLES.get(part.kind, ""))
    if is_open:
        for own in entry.inherited:
            yield from entry_lines(own, False)
    yield StyledLine("", "")


def wrapped_lines(lines: Iterable[StyledLine], width: int) -> Iterator[StyledLine]:
    """Yield lines in pieces that are at most `width` cells wide, cut at spaces where there are any."""
    for text, style in lines:
        while cell_len(text) > width:
            piece = text[:width] if text.isascii() else chop_cells(text[: 2 * width], width)[0]
            at = piece.rfind(" ", len(piece) // 2) + 1 or len(piece)
            yield StyledLine(text[:at], style)
            text = text[at:]
        yield StyledLine(text, style)


class EpisodeScreen(ViewerScreen[ConversationLines]):
    """One episode of a list.

    Args:
        resources: The runs.
        listed: The episodes of the list.
        index: The index of the episode in the list.
        hit: The match to show first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "app.pop_screen", "Back"),
        Binding("f", "fold(True)", "Fold"),
        Binding("n", "go('step', 1)", "Step"),
        Binding("N", "go('step', -1)", "Step before", show=False),
        Binding("b", "go('break', 1)", "Break"),
        Binding("B", "go('break', -1)", "Break before", show=False),
        Binding("e", "go('error of a reply', 1)", "Next error of a reply", show=False),
        Binding("t", "tokens", "Tokens"),
        Binding("p", "prompt", "Prompt"),
        Binding("c", "contexts", "Contexts"),
        Binding("slash", "search", "Search"),
        Binding("right_square_bracket", "episode(1)", "Next episode", show=False),
        Binding("left_square_bracket", "episode(-1)", "Episode before", show=False),
    ]

    def __init__(
        self, resources: Resources, listed: Sequence[ListedEpisode], index: int, hit: Hit | None = None
    ) -> None:
        super().__init__()
        self.source = ConversationLines([], 80)
        self._resources, self._listed, self._index, self._hit = resources, listed, index, hit
        self._shown = NO_EPISODE
        self._searched = "" if hit is None else hit.found.rstrip("…")

    def on_mount(self) -> None:
        """Start reading."""
        self.action_episode(0)

    @work(exclusive=True)
    async def action_episode(self, direction: int) -> None:
        """Go to the next episode of the list: read it, and show it."""
        if not 0 <= self._index + direction < len(self._listed):
            return
        self._index += direction
        run, row = self._listed[self._index]
        self.write("title", Text(f"reading {on_one_line(row.id)}"))
        try:
            self._shown = await asyncio.to_thread(self._resources.episode, run, row.line)
            trajectory = await asyncio.to_thread(self._resources.trajectory, run, row.line)
            entries = [*transcript(trajectory, self._shown)]
        except (EnvsdkError, OSError) as error:
            self._shown, entries = NO_EPISODE, list[TranscriptEntry]()
            self.write("title", str(error), TROUBLE.text)
        else:
            facts = (
                ending(self._shown["status"], self._shown["stop_reason"]),
                trajectory.reward_text,
                f"{len(self._shown['steps'])} steps",
                f"{trajectory.observed_tokens + trajectory.sampled_tokens:,} tokens",
                f"{self._index + 1} of {len(self._listed)}",
            )
            title = Text(on_one_line(trajectory.id), "bold")
            self.write("title", title.append("  " + on_one_line(" · ".join(facts)), "not bold"))
        self.source = ConversationLines(entries, self.lines.size.width or 80, self._searched.casefold())
        self.lines.move_to(0)
        if self._hit is not None and entries:
            place, self._hit = (self._hit.context, self._hit.message), None
            found = self.source.next_entry(-1, 1, lambda entry: (entry.context, entry.message) == place)
            self._show_entry(found, at_searched=True)

    def _show_entry(self, entry: int | None, *, at_searched: bool = False) -> None:
        """Go to the first line of an entry, or to its line that has the searched text."""
        if entry is not None:
            line = self.source.open_at_searched(entry) if at_searched else self.source.starts[entry]
            self.lines.move_to(line, top=self.source.starts[entry])

    @property
    def entry(self) -> TranscriptEntry | None:
        """The entry with the cursor, or None."""
        return self.source.entries[self.source.entry_at(self.lines.cursor)] if len(self.source) else None

    def on_line_view_moved(self) -> None:
        """Describe the entry with the cursor."""
        facts = [f"line {self.lines.cursor + 1:,} of {len(self.source):,}"]
        if self.entry is not None and self.entry.steps:
            step = self._shown["steps"][self.entry.steps[0]]
            left = ", ".join(f"{name} {count:,}" for name, count in step["left"].items())
            facts += [
                f"step {step['index'] + 1} of {len(self._shown['steps'])}",
                f"prompt {step['prompt_tokens']:,} tokens",
                *([f"left: {left}"] if left else []),
                *(f"{name} {value:g}" for name, value in step["metrics"].items()),
            ]
        self.write("status", " · ".join(facts))

    def on_line_view_chosen(self) -> None:
        """Open or fold the entry with the cursor."""
        self.action_fold(every=False)

    def action_fold(self, every: bool) -> None:
        """Open or fold the entry with the cursor, or all of them; the cursor stays in its entry."""
        if len(self.source):
            entry, is_open = self.source.entry_at(self.lines.cursor), self.source.open_entries
            all_entries = set(range(len(self.source.entries)))
            all_or_none = set[int]() if is_open == all_entries else all_entries
            self.source.fold(all_or_none if every else is_open ^ {entry})
            self.lines.move_to(self.source.starts[entry])

    def action_go(self, what: str, direction: int) -> None:
        """Go to the next step, break, or reply with errors."""

        def holds(entry: TranscriptEntry) -> bool:
            if what == "step":
                return bool(entry.steps)
            if what == "break":
                return bool(entry.breaks) or entry.kind == "break"
            return any(part.kind == "error" for part in entry.parts)

        found = None
        if len(self.source):
            found = self.source.next_entry(self.source.entry_at(self.lines.cursor), direction, holds)
        if found is None:
            self.notify(f"There is no further {what}.", markup=False)
        self._show_entry(found)

    def action_search(self) -> None:
        """Ask for a string, and go to the next entry that contains it."""

        def has(entry: TranscriptEntry, text: str) -> bool:
            own = (*entry.headings, *entry.breaks, *(part.text for part in entry.parts))
            return any(text in one.casefold() for one in own) or any(has(one, text) for one in entry.inherited)

        def search(text: str | None) -> None:
            if not text:
                return
            self._searched, self.source.searched = text, text.casefold()
            at = self.source.entry_at(self.lines.cursor)
            found = self.source.next_entry(at, 1, lambda entry: has(entry, text.casefold()))
            if found is None:
                self.notify(f"There is no further entry with {on_one_line(text)!r}.", markup=False)
            self._show_entry(found, at_searched=True)
            self.lines.refresh()

        self.open_screen(Question("Search in the conversation", self._searched), search)

    def action_tokens(self) -> None:
        """Show the tokens of the context with the cursor, from its step on."""
        if self.entry is None or not self._shown["contexts"]:
            return
        lengths = {context["name"]: context["tokens"] for context in self._shown["contexts"]}
        name = self.entry.context or next(iter(lengths))
        steps = self.entry.steps
        start = self._shown["steps"][steps[0]]["action_start"] if steps else 0
        self._show_tokens(f"tokens of {name}", [Range(name, 0, lengths[name])], start)

    def action_prompt(self) -> None:
        """Show the prompt of the step with the cursor, as the model saw it."""
        if self.entry is None or not self.entry.steps:
            self.notify("Choose a reply first: its step has the prompt.", markup=False)
            return
        step = self.entry.steps[0]
        run, row = self._listed[self._index]
        ranges = [Range(*one) for one in self._resources.prompt(run, row.line, step)["ranges"]]
        self._show_tokens(f"prompt of step {step + 1}", ranges, 0)

    def _show_tokens(self, title: str, ranges: list[Range], start: int) -> None:
        run, row = self._listed[self._index]
        read = partial(self._resources.tokens, run, row.line)
        self.open_screen(TokensScreen(title, ranges, read, start, self._shown["images"]))

    def action_contexts(self) -> None:
        """Show the drawing of the contexts; a step that is chosen there has the cursor here."""
        if self._shown["steps"]:
            steps = () if self.entry is None else self.entry.steps
            screen = DrawingScreen(self._shown["id"], drawing(self._shown), steps[0] if steps else None)
            next_entry = self.source.next_entry
            self.open_screen(
                screen, lambda step: self._show_entry(next_entry(-1, 1, lambda entry: step in entry.steps))
            )


@dataclass(eq=False, repr=False)
class DrawingLines(LineSource):
    """The rows of a drawing as lines.

    Args:
        rows: The rows.
    """

    rows: Sequence[DrawnRow]

    def __len__(self) -> int:
        return len(self.rows)

    def line(self, index: int, width: int) -> Text:
        """Return a line."""
        row = self.rows[index]
        style = f"not bold {_DRAWING_STYLES.get(row.kind, 'default')}"
        return Text(f"{row.lanes}  ", "bold").append(row.text, style)


class DrawingScreen(ViewerScreen[DrawingLines]):
    """The contexts of an episode as lanes. Choosing a row returns the index of its first step.

    Args:
        title: The id of the episode.
        rows: The rows of the drawing.
        step: The index of the step that has the cursor at first, or None.
    """

    PARTS = ("title", "lines", "details")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss(None)", "Back")]

    def __init__(self, title: str, rows: Sequence[DrawnRow], step: int | None) -> None:
        super().__init__()
        self.source = DrawingLines(rows)
        self._title, self._step = title, step

    def on_mount(self) -> None:
        """Put the cursor on the step."""
        self.write("title", f"contexts of {self._title}", "bold")
        rows = enumerate(self.source.rows)
        self.lines.move_to(next((n for n, row in rows if row.kind == "steps" and self._step in row.steps), 0))

    def on_line_view_moved(self) -> None:
        """Show the text of the row with the cursor in full."""
        self.write("details", Text(self.source.rows[self.lines.cursor].text))

    def on_line_view_chosen(self) -> None:
        """Return the first step of the row with the cursor."""
        steps = self.source.rows[self.lines.cursor].steps
        self.dismiss(steps[0] if steps else None)
