"""What a report consists of: sections with paragraphs, tables, charts and commands, for any page.

All texts are as recorded, so whoever writes them escapes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ._figures import Difference, Distribution
from ._scales import HistogramScale


@dataclass(frozen=True, slots=True)
class Link:
    """A text that leads somewhere.

    Attributes:
        text: The text.
        url: Where it leads.
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
        texts: How many columns, from the left, have texts; the others have numbers.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    texts: int = 1


@dataclass(frozen=True, slots=True)
class Histogram:
    """How a quantity is distributed in one run, on the scale of all runs."""

    title: str
    distribution: Distribution
    scale: HistogramScale


@dataclass(frozen=True, slots=True)
class Intervals:
    """Differences with their intervals. Each quantity has a scale of its own, the same in all comparisons."""

    title: str
    differences: tuple[Difference, ...]
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
