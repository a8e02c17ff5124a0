"""Drawings of tables of other pages: the ladder of on-policy checks, and the layers of the code."""

import math
import re

from ..names import CHECKOUT
from .svg import INK, LINE, OBSERVED, SOFT, TROUBLE, Drawing


def on_policy() -> str:
    """Draw the table that `examples/onpolicy_check.py --ladder` printed, from docs/rollouts.md."""
    rows = table_after("docs/rollouts.md", "| case | k1 | k2 |")
    drawing = Drawing(820, 110 + 46 * len(rows), "k2 between sampler and trainer for five ways from messages to tokens")
    drawing.text(20, 30, "k2 between sampler and trainer in nats per token, on a logarithmic scale", size=16)
    drawing.text(20, 52, "Measured by examples/onpolicy_check.py --ladder with a small gpt-oss", size=12, color=SOFT)
    for index, (case, _, k2, match, _) in enumerate(rows):
        y = 72 + 46 * index
        length = 20 * (math.log10(abs(float(k2))) + 14)
        healthy = abs(float(k2)) < 1e-3
        drawing.text(20, y + 20, case, size=12)
        drawing.box(230, y + 4, length, 24, OBSERVED if healthy else TROUBLE)
        drawing.text(240 + length, y + 20, f"{k2}   ({match} of the tokens match)", size=12)
    limit = 230 + 20 * 11
    drawing.line(limit, 66, limit, 72 + 46 * len(rows), SOFT)
    drawing.text(limit + 4, 72 + 46 * len(rows) + 14, "0.001: healthy below", size=11, color=SOFT)
    return drawing.svg()


def layers() -> str:
    """Draw the layers of the code, from the table in CONTRIBUTING.md."""
    rows = [(cells[0], cells[1]) for cells in table_after("CONTRIBUTING.md", "| layer | content | put here |")]
    drawing = Drawing(820, 70 + 30 * len(rows), "The layers of envsdk; each imports only from those below it")
    drawing.text(20, 30, "Each layer imports only from layers below it", size=16)
    for index, (layer, content) in enumerate(reversed(rows)):
        y = 48 + 30 * index
        drawing.box(20, y, 780, 26, "#eef3fa", LINE)
        drawing.text(30, y + 17, layer.replace("`", ""), size=11, color=INK, code=True)
        drawing.text(470, y + 17, clipped(content), size=11, color=SOFT)
    return drawing.svg()


def clipped(text: str) -> str:
    """Return the beginning of a string, so that it fits next to a layer."""
    text = re.sub(r"[`]", "", text)
    return text if len(text) <= 54 else f"{text[:52]} ..."


def table_after(page: str, head: str) -> list[list[str]]:
    """Return the cells of a table of a page.

    Raises:
        ValueError: If the page has no such table.
    """
    lines = [line.strip() for line in (CHECKOUT / page).read_text(encoding="utf-8").splitlines()]
    start = next((index for index, line in enumerate(lines) if line.startswith(head)), None)
    if start is None:
        raise ValueError(f"{page} has no table that begins with {head!r}")
    rows: list[list[str]] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows
