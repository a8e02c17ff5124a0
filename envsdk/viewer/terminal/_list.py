"""The screen with the list of episodes: one line for each, with the columns that fit."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.binding import Binding, BindingType

from ..._palette import BAD, GOOD, TROUBLE
from ..._visible import on_one_line
from .._contents import Match
from .._filters import parse_filter
from .._resources import Resources
from .._rows import EpisodeRow
from .._transcript import hit_text
from ._comparison import ComparisonScreen
from ._episode import EpisodeScreen, ListedEpisode
from ._lines import LineSource, Question, ViewerScreen

_REDRAW_S = 0.3
_RUN_WIDTH = 10


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the list.

    Attributes:
        title: Its heading.
        width: Its width; 0 takes what is left.
        text: A function that returns the cell of a row.
        key: A function that returns the sort key of a row; None comes last.
        is_right: Whether it is aligned to the right.
        from_width: The minimum width of a terminal that shows it.
    """

    title: str
    width: int
    text: Callable[[EpisodeRow], str]
    key: Callable[[EpisodeRow], Any]
    is_right: bool = False
    from_width: int = 0


def _cell(text: str, width: int, *, is_right: bool = False) -> str:
    """Return a string, cut or padded to the width of a column, and a space."""
    fitted = Text(on_one_line(text))
    fitted.truncate(width, overflow="ellipsis")
    fitted.align("right" if is_right else "left", width)
    return fitted.plain + " "


def _reward(row: EpisodeRow) -> str:
    return f"{row.reward:.4g}" if row.is_scored else "–"


def _duration(row: EpisodeRow) -> str:
    return "" if row.duration_s is None else f"{row.duration_s:.1f}s"


def _ended(row: EpisodeRow) -> str:
    return row.status if row.is_damaged else row.stop_reason


def _breaks(row: EpisodeRow) -> str:
    """Return the number of breaks by reason. Those that drop nothing come last."""
    in_order = sorted(row.breaks.items(), key=lambda pair: pair[0] in ("handoff", "return"))
    return ", ".join(f"{count} {reason}" for reason, count in in_order)


COLUMNS: tuple[Column, ...] = (
    Column("#", 5, lambda row: str(row.line), lambda row: row.line, True),
    Column("reward", 7, _reward, lambda row: row.reward if row.is_scored else None, True),
    Column("ended", 12, _ended, _ended),
    Column("steps", 6, lambda row: str(row.steps), lambda row: row.steps, True),
    Column("tokens", 8, lambda row: f"{row.tokens:,}", lambda row: row.tokens, True),
    Column("errors", 7, lambda row: str(row.reply_errors or ""), lambda row: row.reply_errors, True, 100),
    Column("time", 8, _duration, lambda row: row.duration_s, True, 100),
    Column("breaks", 15, _breaks, lambda row: sum(row.breaks.values())),
    Column("id", 28, lambda row: row.id, lambda row: row.id, False, 120),
    Column("task", 0, lambda row: row.damage or row.task, lambda row: row.task.lower()),
)


class EpisodeLines(LineSource):
    """The chosen rows of one or more runs, in order.

    Args:
        listed: The rows.
        names: The names of the runs; with several, each line begins with its run's.
        is_grouped: Whether the episodes of a task follow each other, after a heading. Tasks are in the order of their
            first rows.

    Attributes:
        listed: The rows, in the order in which they are shown.
        items: The lines: rows, and the headings of tasks as strings.
    """

    def __init__(self, listed: Sequence[ListedEpisode], names: Sequence[str], *, is_grouped: bool = False) -> None:
        self._names = names
        self.items: list[ListedEpisode | str] = []
        tasks: dict[str, list[ListedEpisode]] = {}
        for one in listed:
            tasks.setdefault(one.row.task_key if is_grouped else "", []).append(one)
        for key, own in tasks.items():
            if is_grouped:
                rewards = [row.reward for _, row in own if row.is_scored]
                is_spread = bool(rewards) and min(rewards) < max(rewards)
                spread = f", {min(rewards):.4g} to {max(rewards):.4g}" if is_spread else ""
                mean = f"mean reward {math.fsum(rewards) / len(rewards):.4g}{spread}" if rewards else "not scored"
                count = "1 episode" if len(own) == 1 else f"{len(own):,} episodes"
                self.items.append(on_one_line(" · ".join(filter(None, [key, count, mean, own[0].row.task]))))
            self.items += own
        self.listed = [item for item in self.items if isinstance(item, ListedEpisode)]

    def __len__(self) -> int:
        return len(self.items)

    def line(self, index: int, width: int) -> Text:
        """Return the line of a row, or of a heading."""
        item = self.items[index]
        if isinstance(item, str):
            return Text(item, "bold cyan")
        run, row = item
        line = Text(_cell(self._names[run], _RUN_WIDTH) if len(self._names) > 1 else "")
        for column, column_width in self._columns(width):
            style = TROUBLE.text if column.title == "ended" and row.status in ("error", "damaged") else ""
            if column.title == "reward" and row.is_scored:
                style = GOOD.text if row.reward > 0 else BAD.text
            line.append(_cell(column.text(row), column_width, is_right=column.is_right), style)
        return line

    def heading(self, width: int, sorted_by: Column, is_reversed: bool) -> Text:
        """Return the line with the titles of the columns."""
        line = Text(_cell("run", _RUN_WIDTH) if len(self._names) > 1 else "", style="bold")
        for column, column_width in self._columns(width):
            mark = ("▼" if is_reversed else "▲") if column is sorted_by else ""
            line.append(_cell(column.title + mark, column_width, is_right=column.is_right))
        return line

    def _columns(self, width: int) -> list[tuple[Column, int]]:
        shown = [column for column in COLUMNS if width >= column.from_width]
        used = sum(column.width + 1 for column in shown) + (_RUN_WIDTH + 1 if len(self._names) > 1 else 0)
        return [(column, column.width or max(8, width - used)) for column in shown]


@dataclass(slots=True)
class RunProgress:
    """The rows of a run that were read, and its matches so far, for one generation of its file."""

    generation: int
    rows: list[EpisodeRow] = field(default_factory=list[EpisodeRow])
    searched: int = 0
    searched_generation: int = 0
    matches: dict[int, Match] = field(default_factory=dict[int, Match])
    """The episodes that match, by line."""


class ListScreen(ViewerScreen[EpisodeLines]):
    """The episodes of runs: sorted, filtered, and read while it is shown.

    Args:
        resources: The runs.
        filter: The initial filter.
        follow: Whether to look for new episodes once a second.
    """

    PARTS = ("title", "heading", "lines", "details", "status")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter"),
        Binding("s", "sort(1)", "Sort"),
        Binding("S", "sort(-1)", "Sort by the column before", show=False),
        Binding("r", "reverse", "Reverse"),
        Binding("t", "group", "Group by task"),
        Binding("c", "compare", "Compare"),
        Binding("m", "mark", "Mark for a comparison", show=False),
        Binding("escape", "use_filter('')", "Remove the filter", show=False),
    ]

    def __init__(self, resources: Resources, filter: str = "", *, follow: bool = False) -> None:
        super().__init__()
        infos = [source.info for source in resources.sources]
        self._names = [on_one_line(info.name) for info in infos]
        self.source = EpisodeLines([], self._names)
        self._resources, self._follow, self._filter = resources, follow, parse_filter(filter)
        self._column, self._is_reversed, self._is_grouped, self._is_reading = 0, False, False, True
        self._marked: ListedEpisode | None = None
        self._runs = [RunProgress(source.generation) for source in resources.sources]
        self._title = Text(", ".join(self._names), "bold")
        if len(infos) == 1:
            info = infos[0]
            about = [one for one in (info.env, info.policy, info.model, info.renderer, info.history) if one]
            self._title.append(f"  {on_one_line(' · '.join(about))}", "not bold")

    def on_mount(self) -> None:
        """Start reading."""
        self.write("title", self._title)
        self.read_rows()
        if self._follow:
            self.set_interval(1.0, lambda: None if self._is_reading else self.read_rows())

    @work(exclusive=True)
    async def read_rows(self) -> None:
        """Read the new rows, and show them from time to time."""

        async def read(run: int) -> bool:
            known = self._runs[run]
            answer = await asyncio.to_thread(self._resources.rows, run, len(known.rows), known.generation)
            if answer["generation"] != known.generation:  # its file was replaced
                known.rows, known.generation = [], answer["generation"]
            known.rows.extend(answer["rows"])
            return answer["more"]

        self._is_reading = True
        await self._work_through(read, "A file cannot be read")
        self._is_reading = False
        self.show_rows()
        self.search_rows()

    @work(exclusive=True, group="search")
    async def search_rows(self) -> None:
        """Search the contents of the rows that were not searched yet, and show the matches from time to time."""

        async def search(run: int) -> bool:
            own = self._runs[run]
            answer = await asyncio.to_thread(
                *(self._resources.search, run, self._filter.text, own.searched, own.searched_generation)
            )
            if answer["generation"] != own.searched_generation:
                own.matches, own.searched_generation = {}, answer["generation"]
            own.searched = answer["searched"]
            for found in answer["matches"]:
                own.matches[found["line"]] = Match(found["line"], found["count"], tuple(found["hits"]))
            return answer["more"]

        if self._filter.texts:
            await self._work_through(search, "A file cannot be searched")
            self.show_rows()

    async def _work_through(self, read: Callable[[int], Awaitable[bool]], problem: str) -> None:
        """Read each run to its end, and show the rows from time to time."""
        drawn = time.monotonic()
        try:
            for run in range(len(self._runs)):
                while await read(run):
                    if time.monotonic() - drawn > _REDRAW_S:
                        self.show_rows()
                        drawn = time.monotonic()
        except OSError as error:
            self.notify(on_one_line(str(error)), title=problem, severity="error", markup=False)

    def show_rows(self) -> None:
        """Filter and sort the rows; the cursor stays on its episode."""
        before, column = self.current, COLUMNS[self._column]
        known: list[tuple[Any, ListedEpisode]] = []
        unknown: list[ListedEpisode] = []  # they come last in both directions
        for run, own in enumerate(self._runs):
            for row in own.rows:
                if row.line in own.matches if self._filter.texts else self._filter.matches(row):
                    value = None if row.is_damaged and column.title != "#" else column.key(row)
                    if value is None or (isinstance(value, float) and math.isnan(value)):
                        unknown.append(ListedEpisode(run, row))
                    else:
                        known.append((value, ListedEpisode(run, row)))
        known.sort(key=lambda pair: pair[0], reverse=self._is_reversed)
        listed = [one for _, one in known] + unknown
        self.source = EpisodeLines(listed, self._names, is_grouped=self._is_grouped)
        same = [n for n, one in enumerate(self.source.items) if before is not None and _is_same(one, before)]
        self.lines.move_to(same[0] if same else 0)

    @property
    def current(self) -> ListedEpisode | None:
        """The row with the cursor, or None."""
        cursor = self.lines.cursor
        item = self.source.items[cursor] if cursor < len(self.source) else None
        return item if isinstance(item, ListedEpisode) else None

    def on_line_view_moved(self) -> None:
        """Describe the row with the cursor, and the list."""
        self.write("heading", self.source.heading(self.size.width, COLUMNS[self._column], self._is_reversed))
        match = None if self.current is None else self._runs[self.current.run].matches.get(self.current.row.line)
        self.write("details", Text() if self.current is None else _details(self.current.row, match))
        total, searched = sum(len(own.rows) for own in self._runs), sum(own.searched for own in self._runs)
        facts = [
            f"{self.lines.cursor + 1 if len(self.source) else 0} of {len(self.source):,}",
            ("1 episode" if total == 1 else f"{total:,} episodes") + (", reading" if self._is_reading else ""),
            f"filter: {self._filter.text}" if self._filter.text else "",
            f"searched {searched:,}" if self._filter.texts and searched < total else "",
            "following" if self._follow else "",
        ]
        self.write("status", " · ".join(filter(None, facts)))

    def on_line_view_chosen(self) -> None:
        """Open the episode with the cursor."""
        one = self.current
        if one is None:
            return
        if one.row.is_damaged:
            self.notify(on_one_line(one.row.damage), title="This line is damaged", markup=False)
            return
        listed = [other for other in self.source.listed if not other.row.is_damaged]
        match = self._runs[one.run].matches.get(one.row.line)
        hit = match.hits[0] if match is not None and match.hits else None
        self.open_screen(EpisodeScreen(self._resources, listed, listed.index(one), hit))

    def action_group(self) -> None:
        """Turn grouping by task on or off."""
        self._is_grouped = not self._is_grouped
        self.show_rows()

    def action_mark(self) -> None:
        """Mark the episode with the cursor, to compare another one with it."""
        self._marked = self.current
        if self._marked is not None:
            self.notify(f"Marked {on_one_line(self._marked.row.id)}; c on another one compares.", markup=False)

    def action_compare(self) -> None:
        """Compare the episode with the cursor with the marked one, or else with the next one of its task."""
        one = other = self.current
        if self._marked is not None:
            one, other = self._marked, one
        elif one is not None:
            own = [another for another in self.source.listed if another.row.task_key == one.row.task_key]
            other = own[(own.index(one) + 1) % len(own)]
        if one is None or other is None or _is_same(one, other) or one.row.is_damaged or other.row.is_damaged:
            self.notify("Mark an episode with m, and compare another one with it.", markup=False)
        else:
            self.open_screen(ComparisonScreen(self._resources, one, other))
            self._marked = None

    def action_filter(self) -> None:
        """Ask for a filter."""
        question = "Filter: reward<0.5 break:summary -status:error text:contents word"
        self.open_screen(Question(question, self._filter.text, parse_filter), self.action_use_filter)

    def action_use_filter(self, text: str | None) -> None:
        """Use another filter; an empty string removes it, and None changes nothing."""
        if text is not None:
            self._filter = parse_filter(text)
            for own in self._runs:
                own.searched, own.searched_generation, own.matches = 0, 0, {}
            self.show_rows()
            self.search_rows()

    def action_sort(self, step: int) -> None:
        """Sort by the next visible column."""
        shown = [n for n, column in enumerate(COLUMNS) if self.size.width >= column.from_width]
        at = shown.index(self._column) if self._column in shown else 0
        self._column, self._is_reversed = shown[(at + step) % len(shown)], False
        self.show_rows()

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._is_reversed = not self._is_reversed
        self.show_rows()


def _is_same(one: ListedEpisode | str, other: ListedEpisode) -> bool:
    return isinstance(one, ListedEpisode) and (one.run, one.row.line) == (other.run, other.row.line)


def _details(row: EpisodeRow, match: Match | None) -> Text:
    """Return two lines with facts of a row that the columns do not show, and with the match of a search."""
    if row.is_damaged:
        return Text(on_one_line(row.damage), TROUBLE.text)
    named = ", ".join(f"{name} {value:g}" for name, value in (*row.rewards.items(), *row.metrics.items()))
    facts = [row.id, f"group {row.group_id}" if row.group_id else "", row.status, named]
    head = Text(on_one_line(" · ".join(filter(None, facts))) + "\n")
    if match is not None and match.hits:
        return head.append(hit_text(match.hits[0]), "yellow")
    return head.append(on_one_line(row.error), TROUBLE.text) if row.error else head.append(on_one_line(row.task), "dim")
