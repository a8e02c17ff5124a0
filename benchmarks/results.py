"""The figures of rows, as `benchmarks.json` holds them: what was measured, and why something was not."""

import math
from statistics import linear_regression, median
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from .contender import Size


class Strict(BaseModel):
    """A record of `benchmarks.json`."""

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
    """The figures of one row, of one run, and where they were measured."""

    id: str
    date: str
    commit: str
    machine: dict[str, Any]
    repetitions: int
    contenders: list[Measured]

    def named(self, name: str) -> Measured:
        """Return a contender."""
        return next(contender for contender in self.contenders if contender.name == name)


class Results(Strict):
    """All rows of a page. Each was measured in one run; rows may be of different runs."""

    rows: list[RowResult] = []

    def replaced(self, measured: RowResult) -> "Results":
        """Return the results with a row that was measured again or is new."""
        return Results(rows=[*(row for row in self.rows if row.id != measured.id), measured])
