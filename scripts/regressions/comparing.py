"""Find the rows of a run that differ from the stored ones by more than their noise."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from .figures import Figure, Stored

SMALLEST_MARGIN = 0.1
"""Smaller changes are never reported."""
NOISES = 3
"""A row is reported if it changes by more than this multiple of its noise."""
Verdict: TypeAlias = Literal["slower", "faster", "same", "new", "missing"]


class Change(NamedTuple):
    """The difference of a row from the stored one."""

    row: str
    verdict: Verdict
    factor: float
    """The cost, relative to the stored one; 1.0 for a row that is new or missing."""
    margin: float
    """The noise, relative to the stored cost."""

    def __str__(self) -> str:
        if self.verdict in ("new", "missing"):
            return f"{self.verdict:8} {self.row}"
        return f"{self.verdict:8} {self.row}: {self.factor:.2f} times the stored cost (noise: {self.margin:.0%})"


def compare(stored: Mapping[str, Stored], measured: Mapping[str, Figure]) -> list[Change]:
    """Return the change of each row: those that cost more first.

    Args:
        stored: The figures of the release.
        measured: The figures of this run.
    """
    changes = [_change(name, row, measured.get(name)) for name, row in stored.items()]
    changes += [Change(name, "new", 1.0, 0.0) for name in measured if name not in stored]
    return sorted(changes, key=lambda change: -change.factor)


def _change(name: str, stored: Stored, figure: Figure | None) -> Change:
    margin = max(SMALLEST_MARGIN, NOISES * stored.noise)
    if figure is None or (figure.unit, figure.lower_is_better) != (stored.unit, stored.lower_is_better):
        return Change(name, "missing", 1.0, margin)
    before, now = (stored.value, figure.value) if stored.lower_is_better else (figure.value, stored.value)
    if before == now:
        return Change(name, "same", 1.0, margin)
    factor = now / before if before > 0 else float("inf")
    is_slower, is_faster = factor > 1 + margin, factor < 1 / (1 + margin)
    return Change(name, "slower" if is_slower else "faster" if is_faster else "same", factor, margin)


def better(first: Figure, second: Figure) -> Figure:
    """Return the better one of two figures of a row, because disturbances make a measurement worse."""
    return first if (first.value <= second.value) == first.lower_is_better else second
