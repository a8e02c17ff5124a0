"""Whether a target is met, and by how much it is missed."""

from dataclasses import dataclass
from typing import NamedTuple

from .contender import Size
from .formats import figure, times
from .results import RowResult
from .row import OURS, AnyTarget, Bound, Growth, Row, Target


@dataclass(frozen=True)
class Verdict:
    """What came of a target.

    Attributes:
        target: The target in words.
        is_met: None if a figure that it needs is missing.
        detail: What was measured, and by how much the target is missed.
    """

    target: str
    is_met: bool | None
    detail: str

    @property
    def word(self) -> str:
        """The verdict in one or two words."""
        return {True: "met", False: "**missed**", None: "**not measured**"}[self.is_met]


class _Pair(NamedTuple):
    size: Size
    ours: float
    theirs: float
    name: str

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs


def verdicts(row: Row, result: RowResult) -> list[Verdict]:
    """Compare a row's figures with its targets."""
    return [_verdict(target, row, result) for target in row.targets]


def _verdict(target: AnyTarget, row: Row, result: RowResult) -> Verdict:
    match target:
        case Target():
            return _compared(target, row, result)
        case Growth(exponent):
            return _growth(exponent, row, result)
        case Bound(limit):
            return _bound(limit, row, result)


def _compared(target: Target, row: Row, result: RowResult) -> Verdict:
    measured = [cell.size for cell in result.named(OURS).cells]
    sizes = [size for size in target.at or row.sizes if size in measured]
    words = _words(target, row)
    if not sizes:
        return Verdict(words, None, "no figure at these sizes")
    pairs: list[_Pair] = []
    for size in sizes:
        ours = result.named(OURS).at(size)
        others = [(other.at(size), other.name) for other in result.contenders if other.name in target.of]
        found = [(cell.median, name) for cell, name in others if cell.median is not None]
        if ours.median is None:
            return Verdict(words, None, f"envsdk at {size}: {ours.reason}")
        if not found:
            return Verdict(words, None, f"at {size}: " + "; ".join(f"{name}: {cell.reason}" for cell, name in others))
        pairs.append(_Pair(size, ours.median, *min(found)))
    worst = max(pairs, key=lambda pair: pair.ratio)
    return Verdict(words, worst.ratio <= target.factor, _detail(worst, target, row, len(pairs) > 1))


def _words(target: Target, row: Row) -> str:
    of = row.limit if target.of == (row.limit,) else target.of[0] if len(target.of) == 1 else "the fastest other"
    name = f"the limit ({of})" if of == row.limit else of
    where = f" at {row.size_name} = {', '.join(f'{_size(size)}' for size in target.at)}" if target.at else ""
    if target.factor >= 1:
        return f"at most {times(target.factor)} {name}" + (where or (" at every size" if len(row.sizes) > 1 else ""))
    return f"at least {times(1 / target.factor)} ahead of {name}" + where


def _detail(worst: _Pair, target: Target, row: Row, is_worst: bool) -> str:
    is_ahead = target.factor < 1
    shown = f"{times(1 / worst.ratio)} ahead" if is_ahead else times(worst.ratio)
    where = f" at {row.size_name} = {_size(worst.size)}" if is_worst else ""
    of = f" of {worst.name}" if len(target.of) > 1 else ""
    missed = worst.ratio / target.factor
    return f"{shown}{of}{where}" + (f"; missed by a factor of {missed:.2f}" if missed > 1 else "")


def _growth(exponent: float, row: Row, result: RowResult) -> Verdict:
    words = f"grows at most like {row.size_name}^{exponent:g}"
    found = result.named(OURS).growth
    if found is None:
        return Verdict(words, None, "fewer than two sizes were measured")
    return Verdict(words, found <= exponent, f"{row.size_name}^{found:.2f}")


def _bound(limit: float, row: Row, result: RowResult) -> Verdict:
    words = f"at most {figure(limit, row.unit)}"
    cells = result.named(OURS).cells
    found = [cell.median for cell in cells if cell.median is not None]
    if not found:
        return Verdict(words, None, "; ".join(str(cell.reason) for cell in cells))
    missed = max(found) / limit
    detail = figure(max(found), row.unit) + (f"; missed by a factor of {missed:.2f}" if missed > 1 else "")
    return Verdict(words, missed <= 1, detail)


def _size(size: Size) -> str:
    return f"{size:,}" if isinstance(size, int) else size
