"""Runs the rows: every contender at every size, alternating between repetitions."""

from collections.abc import Iterator, Sequence

from .contender import NotMeasured, Size
from .machine import commit, machine, today
from .pool import Pool
from .results import Cell, Measured, RowResult
from .row import Entry, Row

FEWEST = 3
"""The repetitions that a slow contender gets at least."""


def measure(row: Row, pool: Pool, *, sizes: Sequence[Size], repetitions: int, budget_s: float) -> RowResult:
    """Measure all contenders of a row.

    Args:
        row: The row.
        pool: The workers.
        sizes: The sizes to measure.
        repetitions: The repetitions of each contender at each size.
        budget_s: The time for one contender at one size, after which it gets no more than `FEWEST` repetitions.
    """
    result = RowResult(
        id=row.id, date=today(), commit=commit(), machine=machine(), repetitions=repetitions, contenders=[]
    )
    found = {entry: Measured(name=entry.name, environment=entry.environment) for entry in row.contenders}
    for size in sizes:
        for entry, cell in _at_size(row, pool, size, found, repetitions, budget_s):
            found[entry].cells.append(cell)
        pool.drop()
    return result.model_copy(update={"contenders": list(found.values())})


def _at_size(
    row: Row, pool: Pool, size: Size, found: dict[Entry, Measured], repetitions: int, budget_s: float
) -> Iterator[tuple[Entry, Cell]]:
    cells = {entry: Cell(size=size) for entry in row.contenders}
    seconds = dict.fromkeys(row.contenders, 0.0)
    for entry in row.contenders:
        try:
            described = pool.describe(entry.environment, row.id, entry.name, size)
            found[entry] = found[entry].model_copy(update=described)
            if row.repetitions is None:
                seconds[entry] = pool.repeat(entry.environment, row.id, entry.name, size).seconds  # a warm-up
        except NotMeasured as reason:
            cells[entry].reason = str(reason)
    for repetition in range(min(repetitions, row.repetitions or repetitions)):
        for entry in _rotated(row.contenders, repetition):
            is_spent = (repetition >= FEWEST and seconds[entry] > budget_s) or (
                row.cap_s is not None and seconds[entry] > pool.cap_s
            )
            if cells[entry].reason is None and not is_spent:
                try:
                    taken = pool.repeat(entry.environment, row.id, entry.name, size, cap_s=row.cap_s)
                except NotMeasured as reason:
                    cells[entry] = Cell(size=size, reason=str(reason))
                else:
                    cells[entry].values.append(float(f"{taken.value:.4g}"))
                    seconds[entry] += taken.seconds
    yield from cells.items()


def _rotated(entries: Sequence[Entry], by: int) -> list[Entry]:
    """Return the contenders, each time beginning with another one."""
    start = by % len(entries)
    return [*entries[start:], *entries[:start]]
