"""Writes the page: versions, and for each row its table, targets, notes, machine and plot."""

from collections.abc import Iterator, Sequence

from .formats import figure, times
from .machine import LOAD
from .results import Cell, Measured, Results, RowResult
from .row import OURS, Row
from .verdicts import Verdict, verdicts

HEAD = """# Benchmarks

envsdk and other projects on the same workloads, measured side by side by `make bench-peers`, which wrote this page.
[benchmarks.json](benchmarks.json) has every repetition.
"""
METHOD = """## How it is measured

- Each project runs in an environment of its own, with pinned versions, in a process that holds nothing else.
  The contenders of a row take turns after every repetition, so that a change in the machine's load affects all of them.
- A figure is the median of the repetitions; ± is half the distance between their quartiles. Times are CPU times of the
  process unless the row states otherwise.
- Each project runs in the fastest mode that its documentation describes; the notes under a table name it.
- `growth` is the exponent e of size^e that fits the medians best: 0 is flat, 1 is linear.
- A contender without a figure is listed with the reason.
"""


def page(results: Results, rows: Sequence[Row]) -> str:
    """Return the page of all rows that were measured, in Markdown."""
    measured = {result.id: result for result in results.rows}
    pairs = [(row, measured[row.id]) for row in rows if row.id in measured]
    sections = [_section(row, result) for row, result in pairs]
    return "\n".join([HEAD, _summary(pairs), METHOD, _versions(results), *sections])


def _origin(row: Row, result: RowResult) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in result.machine.items())
    is_slowed = row.unit == "s" and result.machine.get(LOAD, 0) > 0.5 * result.machine.get("cores", 1)
    note = " Other programs ran on the machine at the same time, so times are too high; ratios are less affected."
    return (
        f"Measured on {result.date} at commit `{result.commit}` with {result.repetitions} repetitions (fewer of what "
        f"takes long; without ±: one): {machine}.{note * is_slowed}\n"
    )


def _summary(pairs: Sequence[tuple[Row, RowResult]]) -> str:
    lines = ["## Targets\n", "| workload | target | measured | |", "|---|---|---|---|"]
    for row, result in pairs:
        lines += [
            f"| [{row.title}](#{anchor(row.title)}) | {verdict.target} | {verdict.detail} | {verdict.word} |"
            for verdict in verdicts(row, result)
        ]
    return "\n".join([*lines, ""])


def anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub and the site make it."""
    return "-".join("".join(char for char in title.lower() if char.isalnum() or char in " -").split())


def _versions(results: Results) -> str:
    found: dict[str, set[str]] = {}
    for result in results.rows:
        for contender in result.contenders:
            for package, version in contender.versions.items():
                found.setdefault(package, set()).add(version)
    listed = ", ".join(f"{package} {' and '.join(sorted(found[package]))}" for package in sorted(found, key=str.lower))
    return f"Versions: {listed}.\n"


def _section(row: Row, result: RowResult) -> str:
    parts = [f"## {row.title}\n", f"{row.measures}\n", *_table(row, result), ""]
    parts += [*_targets(verdicts(row, result)), *_notes(result), _origin(row, result)]
    if has_plot(result):
        parts += [f"![{row.title}](benchmarks/{row.id}.svg)\n"]
    return "\n".join(parts)


def has_plot(result: RowResult) -> bool:
    """Return whether anything was measured at all."""
    return any(cell.values for contender in result.contenders for cell in contender.cells)


def _table(row: Row, result: RowResult) -> Iterator[str]:
    sizes = [cell.size for cell in result.contenders[0].cells]
    has_growth = len([size for size in sizes if isinstance(size, int)]) > 1
    heads = [f"{row.size_name} = {size:,}" if isinstance(size, int) else size for size in sizes]
    yield f"| | {' | '.join(heads)} |" + (" growth |" if has_growth else "")
    yield "|---" * (1 + len(sizes) + has_growth) + "|"
    ours = result.named(OURS)
    for contender in result.contenders:
        cells = [_cell(cell, ours.at(cell.size), row, is_ours=contender is ours) for cell in contender.cells]
        growth = contender.growth
        last = [f"{row.size_name}^{growth:.2f}" if growth is not None else ""] if has_growth else []
        yield f"| {_label(contender, row)} | {' | '.join([*cells, *last])} |"


def _label(contender: Measured, row: Row) -> str:
    name = f"**{contender.name}**" if contender.name == OURS else contender.name
    return f"{name} (the limit)" if contender.name == row.limit else name


def _cell(cell: Cell, ours: Cell, row: Row, *, is_ours: bool) -> str:
    if cell.median is None:
        return cell.reason or "not run"
    spread = f" ± {100 * cell.spread:.0f} %" if len(cell.values) > 1 else ""
    text = figure(cell.median, row.unit) + spread
    return text if is_ours or not ours.median else f"{text} ({times(cell.median / ours.median)})"


def _targets(found: Sequence[Verdict]) -> Iterator[str]:
    for verdict in found:
        yield f"- Target: {verdict.target}. Measured: {verdict.detail}: {verdict.word}."
    if found:
        yield ""


def _notes(result: RowResult) -> Iterator[str]:
    yield "In brackets: times the figure of envsdk.\n"
    for contender in result.contenders:
        note = "Written here by the project's public rules. " * contender.is_reimplemented + contender.note
        if note:
            yield f"- {contender.name}: {note.strip()}"
    yield ""
