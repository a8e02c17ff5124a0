"""Small HTML cards for notebooks: a title, facts, a bar, and folded sections, without scripts or style sheets.

Colors are inherited from the page, so that a card is readable in dark and in light themes. All text is escaped.
"""

from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from ._palette import OBSERVED, SAMPLED
from ._visible import on_one_line, visible

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CARD = f"border-left:3px solid {OBSERVED.light};padding:.1em .8em;margin:.3em 0;line-height:1.5"
_TEXT = "white-space:pre-wrap;overflow:auto;max-height:24em;margin:.2em 0;background:none;color:inherit;text-align:left"
_BINS = 200


def card(title: str, facts: Mapping[str, object], *, bar: str = "", folded: Mapping[str, str] | None = None) -> str:
    """Return a card as HTML.

    Args:
        title: The title.
        facts: Values by name; None and empty strings are left out.
        bar: HTML to show after the facts, such as `mask_bar` returns.
        folded: The text of each section by its heading. Sections are collapsed at first; empty ones are left out.
    """
    shown = " ".join(
        f"<span style='margin-right:1em'><span style='opacity:.65'>{_inline(name)}</span> {_inline(str(value))}</span>"
        for name, value in facts.items()
        if value is not None and value != ""
    )
    parts = [f"<div><strong>{_inline(title)}</strong></div>", f"<div>{shown}</div>", bar]
    parts += [
        f"<details><summary>{_inline(heading)}</summary><pre style='{_TEXT}'>{escape(visible(text))}</pre></details>"
        for heading, text in (folded or {}).items()
        if text
    ]
    return f"<div style='{_CARD}'>{''.join(parts)}</div>"


def _inline(text: str) -> str:
    return escape(on_one_line(text))


def mask_bar(mask: "NDArray[np.bool_]") -> str:
    """Return a bar as HTML that shows which tokens are trained, from left to right.

    Args:
        mask: bool, shape (L,): True for trained tokens.
    """
    if not len(mask):
        return ""
    edges = np.linspace(0, len(mask), min(_BINS, len(mask)) + 1).astype(np.int64)
    shares = np.add.reduceat(mask.astype(np.float64), edges[:-1]) / np.diff(edges)
    bins = "".join(
        f"<rect x='{index}' width='1.05' height='1' opacity='{share:.2f}'/>"
        for index, share in enumerate(shares.tolist())
        if share
    )
    label = f"{int(np.count_nonzero(mask)):,} of {len(mask):,} tokens are trained"
    return (
        f"<svg role='img' aria-label='{label}' viewBox='0 0 {len(shares)} 1' preserveAspectRatio='none' "
        "style='width:100%;max-width:40em;height:.7em;border:1px solid currentColor;"
        f"fill:{SAMPLED.light};display:block'>"
        f"<title>{label}</title>{bins}</svg>"
    )


def named(numbers: Mapping[str, float]) -> str:
    """Return named numbers as one string, `name value, name value`."""
    return ", ".join(f"{name} {number:g}" for name, number in numbers.items())


def shortened(texts: Iterable[str], most: int, chars: int) -> str:
    """Return strings as paragraphs: at most `most` of them, each cut to `chars` characters."""
    every = list(texts)
    shown = [
        text if len(text) <= chars else f"{text[:chars]} … ({len(text) - chars:,} more characters)"
        for text in every[:most]
    ]
    rest = [f"… {len(every) - most:,} more"] if len(every) > most else []
    return "\n\n".join([*shown, *rest])
