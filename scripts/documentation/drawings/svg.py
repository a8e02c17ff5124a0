"""Drawings as SVG text: rectangles, lines and words on a light card, so that they are readable on a dark page, too."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape

from envsdk import _palette

INK, SOFT, LINE = "#1f2430", "#5b6472", "#aab2bf"
KEPT, OBSERVED, SAMPLED, TROUBLE = (
    one.light for one in (_palette.KEPT, _palette.OBSERVED, _palette.SAMPLED, _palette.TROUBLE)
)
DROPPED = "url(#dropped)"
"""The hatching of dropped tokens."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


@dataclass
class Drawing:
    """A drawing of a width and a height in pixels, with a title for screen readers."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list[str])

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        stroke: str = "none",
        *,
        opacity: float | None = None,
    ) -> None:
        """Draw a rectangle."""
        shown_through = "" if opacity is None else f' opacity="{opacity}"'
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" fill="{fill}" '
            f'stroke="{stroke}"{shown_through}/>'
        )

    def line(self, x: float, y: float, to_x: float, to_y: float, color: str = LINE, *, arrow: bool = False) -> None:
        """Draw a line, optionally with an arrow at its end."""
        end = ' marker-end="url(#arrow)"' if arrow else ""
        self.parts.append(
            f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{color}" '
            f'stroke-width="1.5"{end}/>'
        )

    def path(self, points: Iterable[tuple[float, float]], *, stroke: str = "none", fill: str = "none") -> None:
        """Draw a line through points, or fill what they enclose so that what is under it shows through."""
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        style = f'stroke="{stroke}" fill="{fill}" fill-opacity="0.15" stroke-width="2"'
        self.parts.append(f'<polyline points="{places}" {style}/>')

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 13,
        color: str = INK,
        anchor: str = "start",
        code: bool = False,
        bold: bool = False,
    ) -> None:
        """Write one line of text."""
        weight = ' font-weight="600"' if bold else ""
        family = ' font-family="ui-monospace, Menlo, Consolas, monospace"' if code else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}" text-anchor="{anchor}"{family}{weight}>'
            f"{escape(text)}</text>"
        )

    def legend(self, x: float, y: float, entries: dict[str, str]) -> None:
        """Write the meaning of each color, in one row."""
        for meaning, color in entries.items():
            self.box(x, y - 10, 12, 12, color)
            self.text(x + 18, y, meaning, size=12, color=SOFT)
            x += 36 + 6.4 * len(meaning)

    def svg(self) -> str:
        """Return the drawing as SVG."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" font-family="{FONT}" role="img">\n<title>{escape(self.title)}</title>\n'
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{SOFT}"/></marker>'
            '<pattern id="dropped" width="4" height="4" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
            '<rect width="4" height="4" fill="#fbfcfe"/>'
            f'<rect width="1.6" height="4" fill="{SOFT}"/></pattern></defs>\n'
        )
        card = f'<rect width="{self.width}" height="{self.height}" rx="8" fill="#fbfcfe" stroke="#e3e7ee"/>\n'
        return head + card + "\n".join(self.parts) + "\n</svg>\n"
