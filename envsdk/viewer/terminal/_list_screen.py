"""The screen with the list of episodes."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Static

from ..._visible import on_one_line
from .._contents import Match
from .._filters import parse_filter
from .._resources import Resources
from .._rows import EpisodeRow
from .._sources import RunInfo
from ._comparison_screen import ComparisonScreen
from ._dialogs import Question
from ._episode_screen import EpisodeScreen
from ._episodes import COLUMNS, EpisodeLines, Listed, details, in_order
from ._lines import Lines
from ._viewer_screen import ViewerScreen

_REDRAW_S = 0.3


@dataclass(slots=True)
class KnownRows:
    """The rows of a run that were read, of one generation of its file."""

    generation: int
    rows: list[EpisodeRow] = field(default_factory=list[EpisodeRow])


@dataclass(slots=True)
class SearchedRows:
    """How far a run was searched, and the episodes that match, by line."""

    searched: int = 0
    generation: int = 0
    matches: dict[int, Match] = field(default_factory=dict[int, Match])


class ListScreen(ViewerScreen):
    """The episodes of runs: sorted, filtered, and read while it is shown.

    Args:
        resources: The runs.
        filter: The filter at first.
        follow: Whether new episodes are looked for once a second.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter"),
        Binding("s", "sort(1)", "Sort"),
        Binding("S", "sort(-1)", "Sort by the column before", show=False),
        Binding("r", "reverse", "Reverse"),
        Binding("t", "group", "Group by task"),
        Binding("c", "compare", "Compare"),
        Binding("m", "mark", "Mark for a comparison", show=False),
        Binding("escape", "clear", "Remove the filter", show=False),
    ]

    def __init__(self, resources: Resources, filter: str = "", *, follow: bool = False) -> None:
        super().__init__()
        self.resources = resources
        self.filter = parse_filter(filter)
        self._follow = follow
        self._column, self._is_reversed, self._is_reading = 0, False, True
        self._is_grouped = False
        self._marked: Listed | None = None
        self._searches = [SearchedRows() for _ in resources.sources]
        self._infos = [source.info for source in resources.sources]
        self._runs = [KnownRows(source.generation) for source in resources.sources]
        self._names = [on_one_line(info.name) for info in self._infos]
        self.source = EpisodeLines([], self._names)

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield Static(_title(self._infos), id="title")
        yield Static(id="heading")
        yield Lines(self.source)
        yield Static(id="details")
        yield Static(id="status")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to read."""
        self.read_rows()
        if self._follow:
            self.set_interval(1.0, self._read_again)

    def _read_again(self) -> None:
        if not self._is_reading:
            self.read_rows()

    @work(exclusive=True)
    async def read_rows(self) -> None:
        """Read the rows that are new, and show them now and then meanwhile."""
        self._is_reading, drawn = True, time.monotonic()
        try:
            for run in range(len(self._runs)):
                while await self._read_some(run):
                    if time.monotonic() - drawn > _REDRAW_S:
                        self.show_rows()
                        drawn = time.monotonic()
        except OSError as error:
            self.notify(on_one_line(str(error)), title="A file cannot be read", severity="error", markup=False)
        self._is_reading = False
        self.show_rows()
        self.search_rows()

    @work(exclusive=True, group="search")
    async def search_rows(self) -> None:
        """Search the contents of the rows that were not searched yet, and show what was found now and then."""
        if not self.filter.texts:
            return
        drawn = time.monotonic()
        try:
            for run in range(len(self._runs)):
                while await self._search_some(run):
                    if time.monotonic() - drawn > _REDRAW_S:
                        self.show_rows()
                        drawn = time.monotonic()
        except OSError as error:
            self.notify(on_one_line(str(error)), title="A file cannot be searched", severity="error", markup=False)
        self.show_rows()

    async def _search_some(self, run: int) -> bool:
        """Search some rows of a run; return whether there are more."""
        own = self._searches[run]
        search = self.resources.search
        answer = await asyncio.to_thread(search, run, self.filter.text, own.searched, own.generation)
        if answer["generation"] != own.generation:
            own = self._searches[run] = SearchedRows(generation=answer["generation"])
        own.searched = answer["searched"]
        own.matches.update((found["line"], Match.from_dict(found)) for found in answer["matches"])
        return answer["more"]

    async def _read_some(self, run: int) -> bool:
        """Read some rows of a run; return whether there are more."""
        known = self._runs[run]
        answer = await asyncio.to_thread(self.resources.rows, run, len(known.rows), known.generation)
        if answer["generation"] != known.generation:  # its file was replaced
            known = self._runs[run] = KnownRows(answer["generation"])
        known.rows.extend(answer["rows"])
        return answer["more"]

    def show_rows(self) -> None:
        """Filter and sort the rows; the cursor stays on its episode."""
        lines = self.query_one(Lines)
        before = self.current
        listed = [
            Listed(run, row) for run, known in enumerate(self._runs) for row in known.rows if self._matches(run, row)
        ]
        ordered = in_order(listed, COLUMNS[self._column], self._is_reversed)
        self.source = EpisodeLines(ordered, self._names, is_grouped=self._is_grouped)
        same = (
            index
            for index, one in enumerate(self.source.items)
            if before is not None and isinstance(one, Listed) and _is_same(one, before)
        )
        lines.show(self.source, next(same, 0))

    def _matches(self, run: int, row: EpisodeRow) -> bool:
        return row.line in self._searches[run].matches if self.filter.texts else self.filter.matches(row)

    @property
    def current(self) -> Listed | None:
        """The row with the cursor, or None."""
        cursor = self.query_one(Lines).cursor
        item = self.source.items[cursor] if cursor < len(self.source) else None
        return item if isinstance(item, Listed) else None

    @property
    def _match(self) -> Match | None:
        """What was found in the row with the cursor."""
        one = self.current
        return None if one is None else self._searches[one.run].matches.get(one.row.line)

    def on_resize(self) -> None:
        """Draw the heading for the new width."""
        self._describe()

    def on_lines_moved(self) -> None:
        """Describe the row with the cursor."""
        self._describe()

    def on_lines_chosen(self) -> None:
        """Open the episode with the cursor."""
        self.open_episode()

    def _describe(self) -> None:
        lines, column = self.query_one(Lines), COLUMNS[self._column]
        self.query_one("#heading", Static).update(self.source.heading(self.size.width, column, self._is_reversed))
        self.query_one("#details", Static).update(
            Text("") if self.current is None else details(self.current.row, self._match)
        )
        total = sum(len(known.rows) for known in self._runs)
        facts = [
            f"{lines.cursor + 1 if len(self.source) else 0} of {len(self.source):,}",
            ("1 episode" if total == 1 else f"{total:,} episodes") + (", reading" if self._is_reading else ""),
            f"filter: {self.filter.text}" if self.filter.text else "",
            self._progress(),
            "following" if self._follow else "",
        ]
        self.query_one("#status", Static).update(Text(on_one_line(" · ".join(filter(None, facts)))))

    def _progress(self) -> str:
        """Return how far a search is, or nothing."""
        searched, total = sum(own.searched for own in self._searches), sum(len(known.rows) for known in self._runs)
        return f"searched {searched:,}" if self.filter.texts and searched < total else ""

    def open_episode(self) -> None:
        """Open the episode with the cursor."""
        if self.current is None:
            return
        if self.current.row.is_damaged:
            self.notify(on_one_line(self.current.row.damage), title="This line is damaged", markup=False)
            return
        listed = [one for one in self.source.listed if not one.row.is_damaged]
        match = self._match
        hit = match.hits[0] if match is not None and match.hits else None
        found = "" if hit is None else hit.found.rstrip("…")
        self.open_screen(EpisodeScreen(self.resources, listed, listed.index(self.current), hit, found))

    def action_group(self) -> None:
        """Put the episodes of a task together, or not."""
        self._is_grouped = not self._is_grouped
        self.show_rows()

    def action_mark(self) -> None:
        """Mark the episode with the cursor, to compare another one with it."""
        self._marked = self.current
        if self._marked is not None:
            self.notify(f"Marked {on_one_line(self._marked.row.id)}; c on another one compares.", markup=False)

    def action_compare(self) -> None:
        """Compare the episode with the cursor with the marked one, or else with the next one of its task."""
        one = self.current
        other = self._marked if self._marked is not None else self._next_of_task()
        if one is None or other is None or _is_same(one, other) or one.row.is_damaged or other.row.is_damaged:
            self.notify("Mark an episode with m, and compare another one with it.", markup=False)
        else:
            first, second = (other, one) if other is self._marked else (one, other)
            self.open_screen(ComparisonScreen(self.resources, first, second))
            self._marked = None

    def _next_of_task(self) -> Listed | None:
        one = self.current
        if one is None:
            return None
        own = [other for other in self.source.listed if other.row.task_key == one.row.task_key]
        return own[(own.index(one) + 1) % len(own)]

    def action_filter(self) -> None:
        """Ask for a filter."""
        question = "Filter: reward<0.5 break:summary -status:error text:contents word"
        self.open_screen(Question(question, self.filter.text, parse_filter), self._use_filter)

    def action_clear(self) -> None:
        """Remove the filter."""
        self._use_filter("")

    def _use_filter(self, text: str | None) -> None:
        if text is not None:
            self.filter = parse_filter(text)
            self._searches = [SearchedRows() for _ in self._runs]
            self.show_rows()
            self.search_rows()

    def action_sort(self, step: int) -> None:
        """Sort by the next column that is in sight."""
        shown = [n for n, column in enumerate(COLUMNS) if self.size.width >= column.from_width]
        at = shown.index(self._column) if self._column in shown else 0
        self._column, self._is_reversed = shown[(at + step) % len(shown)], False
        self.show_rows()

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._is_reversed = not self._is_reversed
        self.show_rows()


def _is_same(one: Listed, other: Listed) -> bool:
    return one.run == other.run and one.row.line == other.row.line


def _title(infos: Sequence[RunInfo]) -> Text:
    if len(infos) > 1:
        return Text(on_one_line(", ".join(info.name for info in infos)), "bold")
    info = infos[0]
    about = " · ".join(filter(None, [info.env, info.policy, info.model, info.renderer, info.history]))
    return Text(on_one_line(info.name), "bold").append(f"  {on_one_line(about)}", "not bold")
