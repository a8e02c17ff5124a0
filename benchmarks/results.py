"""The figures of a run, as `benchmarks.json` holds them: what was measured, and why something was not."""

import math
from statistics import linear_regression, median
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from .contender import Size


class Strict(BaseModel):
    """A record of a run's file."""

    model_config = ConfigDict(extra="forbid")


class Cell(Strict):
    """The repetitions of one contender at one size, or the reason why there are none."""

    size: Size
    values: list[float] = []
    reason: str | None = None

    @property
    def median(self) -> float | None:
        """The median of the repetitions; None if it was not measured."""
        return median(self.values) if self.values else None

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a part of the median."""
        low, middle, high = np.quantile(self.values, (0.25, 0.5, 0.75))
        return float((high - low) / (2 * middle)) if middle else 0.0


class Measured(Strict):
    """One contender of a row."""

    name: str
    environment: str
    note: str = ""
    versions: dict[str, str] = {}
    is_reimplemented: bool = False
    cells: list[Cell] = []

    def at(self, size: Size) -> Cell:
        """Return the cell of a size."""
        return next(cell for cell in self.cells if cell.size == size)

    @property
    def growth(self) -> float | None:
        """The exponent e of the figure, which grows like size^e: the slope of a straight line on logarithmic axes.

        None unless it was measured at two sizes that are numbers.
        """
        points = [
            (math.log(cell.size), math.log(cell.median))
            for cell in self.cells
            if isinstance(cell.size, int) and cell.size > 0 and cell.median
        ]
        if len(points) < 2:
            return None
        slope, _ = linear_regression(*zip(*points, strict=True))
        return slope


class RowResult(Strict):
    """The figures of one row."""

    id: str
    contenders: list[Measured]

    def named(self, name: str) -> Measured:
        """Return a contender."""
        return next(contender for contender in self.contenders if contender.name == name)


class RunResult(Strict):
    """Everything that one run measured, and where.

    `is_complete` is False for a run of some rows or sizes, or a quick one: no page of the documentation is made of it.
    """

    date: str
    commit: str
    machine: dict[str, Any]
    repetitions: int
    is_complete: bool
    seconds: float = 0.0
    rows: list[RowResult] = []
