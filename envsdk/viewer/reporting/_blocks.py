"""The parts of a report for any page: sections with paragraphs, tables, charts and commands; short numbers.

Strings are as recorded: a page escapes them.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ._figures import Distribution, QuantityDifference, RunComparison

_MAX_OPTION, _MAX_HISTORY = 24, 48


@dataclass(frozen=True, slots=True)
class Link:
    """A link.

    Attributes:
        text: The text that is shown.
        url: The target.
    """

    text: str
    url: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the command line."""

    text: str


Cell: TypeAlias = str | Link | Command


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        heads: The heading of each column.
        rows: The cells.
        texts: The number of columns, from the left, that hold text; the others hold numbers.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    texts: int = 1


@dataclass(frozen=True, slots=True)
class Histogram:
    """The distribution of a quantity in one run, on the scale of all runs.

    Attributes:
        title: The caption.
        distribution: The values of the run.
        low: The smallest value of all runs.
        high: The largest value of all runs.
        share: The largest share of the values of a run that one bin has.
    """

    title: str
    distribution: Distribution
    low: float
    high: float
    share: float


@dataclass(frozen=True, slots=True)
class Intervals:
    """Differences with their intervals. Each quantity has a separate scale, the same in all comparisons."""

    title: str
    differences: tuple[QuantityDifference, ...]
    scales: Mapping[str, float]


Block: TypeAlias = str | Table | Histogram | Intervals | Command


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report.

    Attributes:
        title: Its heading.
        blocks: Paragraphs, tables, charts and commands, in order.
    """

    title: str
    blocks: tuple[Block, ...]


def interval_of(one: QuantityDifference) -> tuple[float, float, float]:
    """Return the lower end, the difference, and the upper end; without an interval, all three are the difference."""
    low, high = (one.difference if end is None else end for end in (one.low, one.high))
    return low, one.difference, high


def interval_scales(comparisons: Iterable[RunComparison]) -> dict[str, float]:
    """Return the largest distance from 0 of each quantity's differences and their intervals, over all comparisons."""
    found: dict[str, float] = {}
    for one in (difference for comparison in comparisons for difference in comparison.differences):
        found[one.quantity] = max(found.get(one.quantity, 0.0), *map(abs, interval_of(one)))
    return {quantity: distance if distance and math.isfinite(distance) else 1.0 for quantity, distance in found.items()}


def number(value: float) -> str:
    """Format a number for reading: thousands with commas, and about four digits."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.1f}" if abs(value) >= 1_000 else f"{value:.4g}"


def signed(value: float) -> str:
    """Format a number with its sign."""
    return number(value) if value < 0 or value == 0 else f"+{number(value)}"


def clipped(text: str, most: int) -> str:
    """Return a string, cut with an ellipsis if it is longer than `most`."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def short_history(history: str) -> str:
    """Return a history policy with its long options left out, such as the instruction of `summarize`."""
    name, _, options = history.partition(":")
    parts = [part.partition("=") for part in options.split(",") if len(part) <= _MAX_OPTION]
    shown = ["".join(part) for part in parts if part[2] and part[2][0] not in "[{"]
    return clipped(f"{name}:{','.join(shown)}" if shown else name, _MAX_HISTORY)
