"""Draws one plot for each row, as a small SVG file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envsdk.viewer.reporting._plots import check_matplotlib

from .formats import figure
from .results import RowResult
from .row import OURS, Row

COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#555555", "#a0a000")
"""Colors that most color-blind people can tell apart (Okabe and Ito, and two more)."""
SETTINGS = {
    "svg.hashsalt": "envsdk",
    "svg.fonttype": "none",  # text stays text: small files
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
}


def plot(row: Row, result: RowResult, path: Path) -> None:
    """Draw the medians of a row on logarithmic axes: lines over sizes that are numbers, else bars."""
    matplotlib, figures = check_matplotlib()
    with matplotlib.rc_context(SETTINGS):
        drawn = figures.Figure(figsize=(6.4, 3.2), layout="constrained")
        axes = drawn.add_subplot()
        sizes = [cell.size for cell in result.contenders[0].cells]
        if len(sizes) > 1 and all(isinstance(size, int) for size in sizes):
            _lines(axes, row, result)
        else:
            _bars(axes, row, result, sizes)
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn.savefig(path, metadata={"Date": None})


def _lines(axes: Any, row: Row, result: RowResult) -> None:
    for contender, color in zip(result.contenders, _colors(result), strict=True):
        points = [(cell.size, cell.median) for cell in contender.cells if cell.median is not None]
        if points:
            style = "--" if contender.name == row.limit else "-"
            width = 2.4 if contender.name == OURS else 1.3
            axes.plot(*zip(*points, strict=True), style, marker="o", ms=3, lw=width, color=color, label=contender.name)
    axes.set(xscale="log", yscale="log", xlabel=row.size_name)
    ticks = [cell.size for cell in result.contenders[0].cells]
    axes.set_xticks(ticks, labels=[f"{size:,}" for size in ticks], minor=False)
    axes.xaxis.minorticks_off()
    _label_figures(axes.yaxis, row)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


def _bars(axes: Any, row: Row, result: RowResult, sizes: Sequence[int | str]) -> None:
    bars: list[tuple[str, float, str]] = []
    for size in sizes:
        for contender, color in zip(result.contenders, _colors(result), strict=True):
            median = contender.at(size).median
            if median is not None:
                label = contender.name if len(sizes) == 1 else f"{contender.name}, {size}"
                bars.append((label, median, color))
    labels, values, colors = zip(*bars, strict=True)
    axes.barh(labels, values, color=colors)
    axes.invert_yaxis()
    axes.set_xscale("log")
    _label_figures(axes.xaxis, row)


def _label_figures(axis: Any, row: Row) -> None:
    def label(value: float, _: object) -> str:
        return figure(value, row.unit)

    axis.set_major_formatter(label)
    axis.minorticks_off()


def _colors(result: RowResult) -> list[str]:
    return [COLORS[index % len(COLORS)] for index, _ in enumerate(result.contenders)]
