"""A report as Markdown, for a model card or an issue."""

import re

from ..._visible import on_one_line
from ._figures import RunReport
from ._sections import Cell, Command, Link, Table, sections_of

_SPECIAL = re.compile(r"[\\`*_{}\[\]<>|~#$&@!^=]|:(?=\S)|(?<=www)\.", re.IGNORECASE)


def as_markdown(report: RunReport) -> str:
    """Return a report as Markdown. Strings of a record are shown as text: they add no markup, HTML or links.

    Links to the viewer are left out: they would lead to a server on the reader's machine. Charts are, too: the tables
    have the same figures.
    """
    lines: list[str] = ["# Report", ""]
    for section in sections_of(report):
        lines += [f"## {escaped(section.title)}", ""]
        for block in section.blocks:
            if isinstance(block, Table):
                rule = ["---" if index < block.texts else "---:" for index in range(len(block.heads))]
                rows = [[*map(_cell, block.heads)], rule, *([*map(_cell, row)] for row in block.rows)]
                lines += [*(f"| {' | '.join(row)} |" for row in rows), ""]
            elif isinstance(block, str | Command):
                lines += [_cell(block), ""]
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Return a string on one line, with the special characters of Markdown and HTML as character references."""
    return _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", on_one_line(text))


def _cell(cell: Cell) -> str:
    match cell:
        case Link(text, _):
            return escaped(text)
        case Command(text):
            return f"<code>{escaped(text)}</code>"
        case _:
            return escaped(cell)
