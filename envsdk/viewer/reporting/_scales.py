"""What the charts of several runs share, so that they can be compared by eye: edges of histograms, and scales."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ._figures import Difference, Distribution, RunComparison, histogram_edges


def shared_edges(runs: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, tuple[float, ...]]:
    """Return the edges of a histogram of each quantity, over the values of all runs.

    Args:
        runs: The values of each run, by quantity.
    """
    names = dict.fromkeys(name for run in runs for name in run)
    every = {name: [value for run in runs for value in run.get(name, ())] for name in names}
    return {name: tuple(histogram_edges(np.asarray(own)).tolist()) for name, own in every.items() if own}


@dataclass(frozen=True, slots=True)
class HistogramScale:
    """The scale of the histograms of a quantity.

    Attributes:
        low: The smallest value of all runs.
        high: The largest value.
        share: The largest share of the values of a run that one bin has.
    """

    low: float
    high: float
    share: float

    @classmethod
    def of(cls, distributions: Iterable[Distribution]) -> "HistogramScale":
        """Return the scale of several histograms, at least one."""
        found = [*distributions]
        return cls(
            min(own.minimum for own in found),
            max(own.maximum for own in found),
            max(max(own.counts) / own.count for own in found),
        )


def interval_scales(comparisons: Iterable[RunComparison]) -> dict[str, float]:
    """Return the largest distance from 0 of each quantity's differences and their intervals, over all comparisons."""
    found: dict[str, float] = {}
    for one in (difference for comparison in comparisons for difference in comparison.differences):
        found[one.quantity] = max(found.get(one.quantity, 0.0), *map(abs, interval_of(one)))
    return {quantity: distance if distance and math.isfinite(distance) else 1.0 for quantity, distance in found.items()}


def interval_of(one: Difference) -> tuple[float, float, float]:
    """Return the lower end, the difference, and the upper end; without an interval, all are the difference."""
    low, high = (one.difference if end is None else end for end in (one.low, one.high))
    return low, one.difference, high
