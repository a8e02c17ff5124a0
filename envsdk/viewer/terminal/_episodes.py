"""The lines of the list of episodes: one for each, with the columns that fit."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich.text import Text

from ..._visible import on_one_line
from .._contents import Match
from .._rows import EpisodeRow
from .._transcript import hit_text

_STATUS_STYLES = {"terminated": "green", "truncated": "yellow", "error": "red", "damaged": "bold red"}


class Listed(NamedTuple):
    """A row and the index of its run."""

    run: int
    row: EpisodeRow


class Group(NamedTuple):
    """The heading of the episodes of one task."""

    key: str
    rows: tuple[EpisodeRow, ...]

    @property
    def text(self) -> str:
        """What the heading has: how many episodes there are, their rewards, and the task."""
        rewards = [row.reward for row in self.rows if row.is_scored]
        spread = f", {min(rewards):.4g} to {max(rewards):.4g}" if rewards and min(rewards) < max(rewards) else ""
        mean = f"mean reward {math.fsum(rewards) / len(rewards):.4g}{spread}" if rewards else "not scored"
        count = "1 episode" if len(self.rows) == 1 else f"{len(self.rows):,} episodes"
        return on_one_line(" · ".join(filter(None, [self.key, count, mean, self.rows[0].task])))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the list.

    Attributes:
        title: Its heading.
        width: Its width; 0 takes what is left.
        text: What it shows of a row.
        key: What it is sorted by: None comes last.
        is_right: Whether it is aligned to the right.
        from_width: The width of the terminal from which on it is shown.
    """

    title: str
    width: int
    text: Callable[[EpisodeRow], str]
    key: Callable[[EpisodeRow], Any]
    is_right: bool = False
    from_width: int = 0

    def cell(self, text: str, width: int) -> str:
        """Return a text in the width of the column."""
        fitted = Text(on_one_line(text))
        fitted.truncate(width, overflow="ellipsis")
        fitted.align("right" if self.is_right else "left", width)
        return fitted.plain


def _reward(row: EpisodeRow) -> str:
    return f"{row.reward:.4g}" if row.is_scored else "–"


def _ended(row: EpisodeRow) -> str:
    return row.status if row.is_damaged else row.stop_reason


def _duration(row: EpisodeRow) -> str:
    return "" if row.duration_s is None else f"{row.duration_s:.1f}s"


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


class EpisodeLines:
    """The chosen rows of one or more runs, in order.

    Args:
        listed: The rows.
        names: The names of the runs; with several, each line begins with its run's.
        is_grouped: Whether the episodes of a task follow each other, after a heading. Tasks are in the order of their
            first rows.

    Attributes:
        listed: The rows, in the order in which they are shown.
        items: What the lines show: rows, and the headings of groups.
    """

    def __init__(self, listed: Sequence[Listed], names: Sequence[str], *, is_grouped: bool = False) -> None:
        self._names = names
        self.items: Sequence[Listed | Group] = _grouped(listed) if is_grouped else listed
        self.listed = [item for item in self.items if isinstance(item, Listed)]

    def __len__(self) -> int:
        return len(self.items)

    def resize(self, width: int, cursor: int) -> int:
        """Nothing depends on the width."""
        return cursor

    def line(self, index: int, width: int) -> Text:
        """Return the line of a row."""
        item = self.items[index]
        if isinstance(item, Group):
            return Text(item.text, "bold cyan")
        run, row = item
        line = Text(self._run_cell(self._names[run]))
        for column, column_width in self._columns(width):
            style = _STATUS_STYLES.get(row.status, "") if column.title == "ended" else ""
            line.append(column.cell(column.text(row), column_width) + " ", style)
        return line

    def heading(self, width: int, sorted_by: Column, is_reversed: bool) -> Text:
        """Return the line with the titles of the columns."""
        line = Text(self._run_cell("run"), style="bold")
        for column, column_width in self._columns(width):
            mark = ("▼" if is_reversed else "▲") if column is sorted_by else ""
            line.append(column.cell(column.title + mark, column_width) + " ")
        return line

    def _run_cell(self, name: str) -> str:
        return Column("run", 10, str, str).cell(name, 10) + " " if len(self._names) > 1 else ""

    def _columns(self, width: int) -> list[tuple[Column, int]]:
        shown = [column for column in COLUMNS if width >= column.from_width]
        used = sum(column.width + 1 for column in shown) + (11 if len(self._names) > 1 else 0)
        return [(column, column.width or max(8, width - used)) for column in shown]


def _grouped(listed: Sequence[Listed]) -> list[Listed | Group]:
    groups: dict[str, list[Listed]] = {}
    for one in listed:
        groups.setdefault(one.row.task_key, []).append(one)
    return [item for key, own in groups.items() for item in (Group(key, tuple(row for _, row in own)), *own)]


def in_order(listed: Sequence[Listed], column: Column, is_reversed: bool) -> list[Listed]:
    """Return rows sorted by a column. Rows without a value come last in both directions."""

    def key(one: Listed) -> Any:
        value = None if one.row.is_damaged and column.title != "#" else column.key(one.row)
        return None if value is None or (isinstance(value, float) and math.isnan(value)) else value

    keyed = [(key(one), one) for one in listed]
    known = [(value, one) for value, one in keyed if value is not None]
    known.sort(key=lambda pair: pair[0], reverse=is_reversed)
    return [one for _, one in known] + [one for value, one in keyed if value is None]


def details(row: EpisodeRow, match: Match | None = None) -> Text:
    """Return what the columns of a row have no room for, as two lines; of a search, what was found."""
    if row.is_damaged:
        return Text(on_one_line(row.damage), "red")
    named = ", ".join(f"{name} {value:g}" for name, value in (*row.rewards.items(), *row.metrics.items()))
    facts = [row.id, f"group {row.group_id}" if row.group_id else "", row.status, named]
    head = Text(on_one_line(" · ".join(filter(None, facts))) + "\n")
    if match is not None and match.hits:
        return head.append(hit_text(match.hits[0]), "yellow")
    return head.append(on_one_line(row.error), "red") if row.error else head.append(on_one_line(row.task), "dim")
