"""A report as Markdown, for a model card or an issue."""

import re
from collections.abc import Iterator

from ..._visible import on_one_line
from ._blocks import Block, Cell, Command, Histogram, Intervals, Link, Table
from ._figures import RunReport
from ._sections import sections_of

_SPECIAL = re.compile(r"[\\`*_{}\[\]<>|~#$&@!^=]|:(?=\S)|(?<=www)\.", re.IGNORECASE)


def as_markdown(report: RunReport) -> str:
    """Return a report as Markdown. What a record holds is text: it has no markup, no HTML and no links.

    Links to the viewer are left out: they would lead to a server on the reader's machine.
    """
    lines: list[str] = ["# Report", ""]
    for section in sections_of(report):
        lines += [f"## {escaped(section.title)}", ""]
        for block in section.blocks:
            found = [*_lines(block)]
            lines += [*found, ""] if found else []
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Return a text on one line, with all that means something in Markdown or HTML as character references."""
    return _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", on_one_line(text))


def _lines(block: Block) -> Iterator[str]:
    match block:
        case Table():
            yield _row(block.heads)
            yield _row(["---" if index < block.texts else "---:" for index in range(len(block.heads))], is_rule=True)
            yield from map(_row, block.rows)
        case Command(text):
            yield _code(text)
        case Histogram() | Intervals():  # the tables have the same figures
            return
        case _:
            yield escaped(block)


def _row(cells: "tuple[Cell, ...] | list[str]", *, is_rule: bool = False) -> str:
    return f"| {' | '.join(cell if is_rule and isinstance(cell, str) else _cell(cell) for cell in cells)} |"


def _cell(cell: Cell) -> str:
    match cell:
        case Link(text, _):
            return escaped(text)
        case Command(text):
            return _code(text)
        case _:
            return escaped(cell)


def _code(text: str) -> str:
    return f"<code>{escaped(text)}</code>"
