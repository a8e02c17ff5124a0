"""Drawings of the HTML page: SVG without scripts, colored by the classes of the page."""

from collections.abc import Mapping, Sequence
from html import escape

from ..._visible import on_one_line
from ._figures import Difference, Distribution
from ._labels import clipped, number, signed
from ._scales import HistogramScale, interval_of

_WIDTH, _HEIGHT = 320, 120
_LABELS, _ROW = 130, 26
_MAX_LABELED = 10
"""Up to this number of bins, each whole number has a label."""


def histogram(distribution: Distribution, scale: HistogramScale) -> str:
    """Draw a histogram. Its height is the largest share that a bin of any run has."""
    most, bins = scale.share * distribution.count, len(distribution.counts)
    step = _WIDTH / bins
    width = max(1.0, min(step - 1, 60))
    bars = "".join(
        f'<rect class="bar" x="{(index + 0.5) * step - width / 2:.1f}" y="{16 + _HEIGHT * (1 - count / most):.1f}" '
        f'width="{width:.1f}" height="{_HEIGHT * count / most:.1f}">'
        f"<title>{_bin(distribution, index)}: {count:,}</title></rect>"
        for index, count in enumerate(distribution.counts)
        if count
    )
    bottom = 16 + _HEIGHT
    label = f"Histogram of {distribution.count:,} values from {number(distribution.minimum)} to "
    return (
        f'<svg role="img" aria-label="{label}{number(distribution.maximum)}" width="{_WIDTH}" height="{bottom + 18}" '
        f'viewBox="0 0 {_WIDTH} {bottom + 18}">{bars}'
        f'<text x="0" y="10">{scale.share:.0%} of {distribution.count:,}</text>'
        f'<line class="axis" x1="0" y1="{bottom}" x2="{_WIDTH}" y2="{bottom}"/>'
        f"{_axis(distribution, scale, bottom + 14)}</svg>"
    )


def _axis(distribution: Distribution, scale: HistogramScale, y: int) -> str:
    """Label each bin if the bins are a few whole numbers, else the ends."""
    bins = len(distribution.counts)
    if bins <= _MAX_LABELED and scale.high - scale.low == bins - 1:
        places = [((index + 0.5) * _WIDTH / bins, scale.low + index, "middle") for index in range(bins)]
    else:
        places = [(0.0, scale.low, "start"), (float(_WIDTH), scale.high, "end")]
    return "".join(f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}">{number(at)}</text>' for x, at, anchor in places)


def _bin(distribution: Distribution, index: int) -> str:
    return f"{number(distribution.edges[index])} to {number(distribution.edges[index + 1])}"


def intervals(differences: Sequence[Difference], scales: Mapping[str, float]) -> str:
    """Draw differences with their intervals around 0, each on the scale of its quantity."""
    width, height = _LABELS + _WIDTH + 60, _ROW * len(differences) + 10
    zero = _LABELS + _WIDTH / 2
    rows = "".join(_row(one, _ROW * index + 18, zero, scales[one.quantity]) for index, one in enumerate(differences))
    return (
        f'<svg role="img" aria-label="Differences with 95 % intervals; the table has the figures" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}">'
        f'<line class="axis" x1="{zero}" y1="2" x2="{zero}" y2="{height - 2}"/>{rows}</svg>'
    )


def _row(one: Difference, y: int, zero: float, distance: float) -> str:
    left, middle, right = (zero + end * (_WIDTH / 2 - 8) / distance for end in interval_of(one))
    name = escape(on_one_line(clipped(one.quantity.replace("_", " "), 20)))
    return (
        f'<text x="0" y="{y + 4}">{name}</text>'
        f'<line class="range" x1="{left:.1f}" y1="{y}" x2="{right:.1f}" y2="{y}"/>'
        f'<circle class="bar" cx="{middle:.1f}" cy="{y}" r="4"/>'
        f'<text x="{_LABELS + _WIDTH + 4}" y="{y + 4}">{signed(one.difference)}</text>'
    )
