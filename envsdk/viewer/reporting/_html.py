"""A report as one HTML page, which needs neither a network nor a script."""

from collections.abc import Iterator
from html import escape

from ..._visible import visible
from ._blocks import Block, Cell, Command, Histogram, Intervals, Link, Section, Table
from ._charts import histogram, intervals
from ._figures import RunReport
from ._sections import sections_of

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_LONG = 40
"""Texts with more characters than this may have several lines."""
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d8dee4; --back: #fff; --card: #f6f8fa;
  --bar: #0072b2; --link: #0550ae; --warn: #b54708; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa4af; --line: #30363d; --back: #0d1117;
  --card: #161b22; --bar: #56b4e9; --link: #79c0ff; --warn: #e3a56b; } }
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
.bar { fill: var(--bar); } .axis { stroke: var(--line); } .range { stroke: var(--bar); stroke-width: 2; }
@media print { body { max-width: none; padding: 0; } nav { display: none; } }
"""


def as_html(report: RunReport) -> str:
    """Return a report as one HTML page. What a record holds is shown as text.

    The page loads nothing: its content security policy forbids it. Its links lead to the viewer.
    """
    sections = sections_of(report)
    names = ", ".join(_data(run.name) for run in report.runs)
    links = " ".join(f'<a href="#section-{n}">{_data(one.title)}</a>' for n, one in enumerate(sections, start=1))
    body = "\n".join(_section(n, one) for n, one in enumerate(sections, start=1))
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


def _section(number: int, section: Section) -> str:
    blocks = "\n".join(_blocks(section.blocks))
    heading = f'<h2 id="section-{number}">{_data(section.title)}</h2>'
    return f'<section aria-labelledby="section-{number}">\n{heading}\n{blocks}\n</section>'


def _blocks(blocks: tuple[Block, ...]) -> Iterator[str]:
    """Yield the blocks as HTML. Charts that follow each other are in one row."""
    charts: list[str] = []
    for block in blocks:
        match block:
            case Histogram(title, distribution, scale):
                charts.append(_figure(title, histogram(distribution, scale)))
            case Intervals(title, differences, scales):
                charts.append(_figure(title, intervals(differences, scales)))
            case _:
                yield from _row_of(charts)
                yield _block(block)
    yield from _row_of(charts)


def _row_of(charts: list[str]) -> Iterator[str]:
    if charts:
        yield f'<div class="charts">\n{"".join(charts)}</div>'
        charts.clear()


def _figure(title: str, drawing: str) -> str:
    return f"<figure><figcaption>{_data(title)}</figcaption>{drawing}</figure>\n"


def _block(block: "str | Table | Command") -> str:
    match block:
        case Table():
            return _table(block)
        case Command(text):
            return f"<p><code>{_text(text)}</code></p>"
        case _:
            return f"<p>{_data(block)}</p>"


def _table(table: Table) -> str:
    heads = "".join(
        f'<th scope="col"{_class(index, table, head)}>{_data(head)}</th>' for index, head in enumerate(table.heads)
    )
    rows = "\n".join(
        f"<tr>{''.join(f'<td{_class(index, table, cell)}>{_cell(cell)}</td>' for index, cell in enumerate(row))}</tr>"
        for row in table.rows
    )
    parts = f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>"
    return f'<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>\n{parts}</table></div>'


def _class(index: int, table: Table, cell: Cell) -> str:
    """Return the class of a cell: numbers are on the right, and only long texts have several lines."""
    if index >= table.texts:
        return ' class="number"'
    return ' class="long"' if len(cell if isinstance(cell, str) else cell.text) > _LONG else ""


def _cell(cell: Cell) -> str:
    match cell:
        case Link(text, url):
            return f'<a href="{escape(url)}">{_data(text)}</a>'
        case Command(text):
            return f"<code>{_text(text)}</code>"
        case _:
            return _data(cell)


def _text(text: str) -> str:
    return escape(visible(text))


def _data(text: str) -> str:
    """Return a text that cannot reorder the text around it, whatever script it is in."""
    return _text(text) if text.isascii() else f"<bdi>{_text(text)}</bdi>"
