"""A report as one HTML page, which needs neither a network nor a script. Its charts are SVG."""

from collections.abc import Mapping
from html import escape

from ..._palette import BAD, GOOD, SAMPLED
from ..._visible import on_one_line, shorten, visible
from ._figures import QuantityDifference, RunReport
from ._sections import (
    Block,
    Cell,
    Command,
    Histogram,
    Intervals,
    Link,
    Table,
    interval_of,
    number,
    sections_of,
    signed,
)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_LONG = 40
"""Cells with more characters than this may have several lines."""
_KINDS = {"steps": "", "sampled tokens": "sampled"}
"""The colors of the quantities that are not rewards, whose bars are green above zero and purple elsewhere."""
_WIDTH, _HEIGHT = 320, 120
_LABELS, _ROW = 130, 26
_MAX_LABELED = 10
"""Up to this number of bins, each whole number has a label."""
_COLORS = {"sampled": SAMPLED, "good": GOOD, "bad": BAD}
_LIGHT, _DARK = (
    "".join(f" --{name}: {getattr(one, theme)};" for name, one in _COLORS.items()) for theme in ("light", "dark")
)
_STYLE = (
    f"""
:root {{ color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d8dee4; --back: #fff; --card: #f6f8fa;
  --link: #0550ae;{_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e6edf3; --soft: #9aa4af; --line: #30363d; --back: #0d1117;
  --card: #161b22; --link: #79c0ff;{_DARK} }} }}
"""
    """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 82rem; padding: 2rem 1.25rem 4rem; color: var(--ink); background: var(--back);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.25rem 0 .6rem; }
p { margin: .5rem 0; color: var(--soft); max-width: 60rem; } a { color: var(--link); }
nav { color: var(--soft); line-height: 1.9; } nav a { white-space: nowrap; margin-right: 1rem; }
.scroll { overflow-x: auto; } .scroll:focus { outline: 2px solid var(--link); }
table { border-collapse: collapse; margin: .4rem 0 .8rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; } .number { text-align: right; white-space: nowrap; }
td { white-space: nowrap; }
td.long { white-space: normal; overflow-wrap: anywhere; min-width: 16rem; max-width: 30rem; }
code { font: .85em/1.4 ui-monospace, SFMono-Regular, Menlo, monospace; background: var(--card); padding: .1em .35em;
  border-radius: 4px; }
.charts { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: .5rem 0; padding: .8rem 1rem; max-width: 100%;
  background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
figcaption { font-size: .85rem; color: var(--soft); margin-bottom: .4rem; overflow-wrap: anywhere; max-width: 24rem; }
svg { display: block; max-width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 11px; }
.bar { fill: var(--soft); } .bar.sampled { fill: var(--sampled); } .bar.good { fill: var(--good); }
.bar.bad { fill: var(--bad); } .axis { stroke: var(--line); } .range { stroke: var(--soft); stroke-width: 2; }
@media print { body { max-width: none; padding: 0; } nav { display: none; } }
"""
)


def as_html(report: RunReport) -> str:
    """Return a report as one HTML page. Strings of a record are shown as text.

    The page loads nothing: its content security policy forbids it. Its links lead to the viewer.
    """
    sections = sections_of(report)
    names = ", ".join(_data(run.name) for run in report.runs)
    links = " ".join(f'<a href="#section-{n}">{_data(one.title)}</a>' for n, one in enumerate(sections, start=1))
    body = "\n".join(
        f'<section aria-labelledby="section-{n}">\n<h2 id="section-{n}">{_data(one.title)}</h2>\n'
        f"{_blocks(one.blocks)}\n</section>"
        for n, one in enumerate(sections, start=1)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="referrer" content="no-referrer">
<title>Report: {", ".join(_text(run.name) for run in report.runs)}</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>Report: {names}</h1>
<nav aria-label="Sections">{links}</nav>
</header>
<main>
{body}
</main>
</body>
</html>
"""


def _blocks(blocks: tuple[Block, ...]) -> str:
    """Return blocks as HTML. Charts that follow each other are in one row."""
    shown: list[str] = []
    is_row_open = False
    for block in blocks:
        is_chart = isinstance(block, Histogram | Intervals)
        if is_chart != is_row_open:
            shown.append('<div class="charts">' if is_chart else "</div>")
            is_row_open = is_chart
        match block:
            case Histogram():
                shown.append(f"<figure><figcaption>{_data(block.title)}</figcaption>{_histogram(block)}</figure>")
            case Intervals(title, differences, scales):
                drawing = _intervals(differences, scales)
                shown.append(f"<figure><figcaption>{_data(title)}</figcaption>{drawing}</figure>")
            case Table():
                shown.append(_table(block))
            case Command(text):
                shown.append(f"<p><code>{_text(text)}</code></p>")
            case _:
                shown.append(f"<p>{_data(block)}</p>")
    return "\n".join([*shown, *(["</div>"] if is_row_open else [])])


def _table(table: Table) -> str:
    def cell_of(index: int, cell: Cell, tag: str) -> str:
        """Return a cell: numbers are on the right, and only long cells have several lines."""
        text = cell if isinstance(cell, str) else cell.text
        kind = ' class="number"' if index >= table.texts else ' class="long"' if len(text) > _LONG else ""
        match cell:
            case Link(text, url):
                shown = f'<a href="{escape(url)}">{_data(text)}</a>'
            case Command(text):
                shown = f"<code>{_text(text)}</code>"
            case _:
                shown = _data(cell)
        return f"<{tag}{kind}>{shown}</{tag.partition(' ')[0]}>"

    heads = "".join(cell_of(index, head, 'th scope="col"') for index, head in enumerate(table.heads))
    rows = ["".join(cell_of(index, cell, "td") for index, cell in enumerate(row)) for row in table.rows]
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    parts = f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>"
    return f'<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>\n{parts}</table></div>'


def _text(text: str) -> str:
    return escape(visible(text))


def _data(text: str) -> str:
    """Return text as HTML, isolated so that a right-to-left script does not reorder the text around it."""
    return _text(text) if text.isascii() else f"<bdi>{_text(text)}</bdi>"


def _histogram(chart: Histogram) -> str:
    """Draw a histogram. Its full height is the largest share that a bin of any run has."""
    own, bins = chart.distribution, len(chart.distribution.counts)
    most, step, bottom = chart.share * own.count, _WIDTH / bins, 16 + _HEIGHT
    width = max(1.0, min(step - 1, 60))
    bars: list[str] = []
    for index, count in enumerate(own.counts):
        if count:
            x, y, height = (index + 0.5) * step - width / 2, 16 + _HEIGHT * (1 - count / most), _HEIGHT * count / most
            title = f"{number(own.edges[index])} to {number(own.edges[index + 1])}: {count:,}"
            size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
            kind = _KINDS.get(
                chart.quantity, "good" if own.edges[index] > 0 or (index and own.edges[index] == 0) else "bad"
            )
            bars.append(f'<rect class="bar {kind}" {size}><title>{title}</title></rect>')
    if bins <= _MAX_LABELED and chart.high - chart.low == bins - 1:  # the bins are a few whole numbers
        labels = [((index + 0.5) * step, chart.low + index, "middle") for index in range(bins)]
    else:
        labels = [(0.0, chart.low, "start"), (float(_WIDTH), chart.high, "end")]
    axis = "".join(
        f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="{anchor}">{number(at)}</text>' for x, at, anchor in labels
    )
    about = f"Histogram of {own.count:,} values from {number(own.minimum)} to {number(own.maximum)}"
    return (
        f'<svg role="img" aria-label="{about}" width="{_WIDTH}" height="{bottom + 18}" '
        f'viewBox="0 0 {_WIDTH} {bottom + 18}">{"".join(bars)}'
        f'<text x="0" y="10">{chart.share:.0%} of {own.count:,}</text>'
        f'<line class="axis" x1="0" y1="{bottom}" x2="{_WIDTH}" y2="{bottom}"/>{axis}</svg>'
    )


def _intervals(differences: tuple[QuantityDifference, ...], scales: Mapping[str, float]) -> str:
    """Draw differences with their intervals around 0, each on the scale of its quantity."""
    width, height = _LABELS + _WIDTH + 60, _ROW * len(differences) + 10
    zero = _LABELS + _WIDTH / 2
    rows: list[str] = []
    for index, one in enumerate(differences):
        y = _ROW * index + 18
        left, middle, right = (zero + end * (_WIDTH / 2 - 8) / scales[one.quantity] for end in interval_of(one))
        name = escape(on_one_line(shorten(one.quantity.replace("_", " "), 20)))
        rows.append(
            f'<text x="0" y="{y + 4}">{name}</text>'
            f'<line class="range" x1="{left:.1f}" y1="{y}" x2="{right:.1f}" y2="{y}"/>'
            f'<circle class="bar" cx="{middle:.1f}" cy="{y}" r="4"/>'
            f'<text x="{_LABELS + _WIDTH + 4}" y="{y + 4}">{signed(one.difference)}</text>'
        )
    return (
        f'<svg role="img" aria-label="Differences with 95 % intervals; the table has the figures" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}">'
        f'<line class="axis" x1="{zero}" y1="2" x2="{zero}" y2="{height - 2}"/>{"".join(rows)}</svg>'
    )
