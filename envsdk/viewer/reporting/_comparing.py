"""Intervals of means and of differences, by a bootstrap over tasks: episodes of one task are not independent."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from ...rollouts.scores import bootstrap_means, interval_of, p_value_of
from ._figures import Difference, MeanReward, RunComparison, RunFigures

if TYPE_CHECKING:
    from numpy.typing import NDArray

RESAMPLES = 5_000
FEW_TASKS = 20
"""Below this number of tasks, an interval of a bootstrap is too narrow."""
_FIRST = ("reward", "failed", "steps", "observed_tokens", "sampled_tokens")


class TaskValues:
    """The values of each quantity by task, of the episodes of one run."""

    def __init__(self) -> None:
        self._values: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def add(self, task: str, quantities: Mapping[str, float]) -> None:
        """Add the values of an episode."""
        for name, value in quantities.items():
            self._values[name][task].append(value)

    @property
    def quantities(self) -> tuple[str, ...]:
        """The names of the quantities that have a value."""
        return tuple(self._values)

    def of(self, quantity: str) -> Mapping[str, list[float]]:
        """Return the values of a quantity by task."""
        return self._values.get(quantity, {})


def mean_reward(values: TaskValues) -> MeanReward | None:
    """Return the mean reward with its interval; None if no episode was scored."""
    by_task = values.of("reward")
    if not by_task:
        return None
    means = _means(by_task, by_task)
    drawn = bootstrap_means(means, RESAMPLES, np.random.default_rng(0)) if len(means) > 1 else None
    low, high = (None, None) if drawn is None else interval_of(drawn)
    return MeanReward(float(means.mean()), low, high, len(means), sum(map(len, by_task.values())))


def compare_runs(first: RunFigures, one: TaskValues, second: RunFigures, other: TaskValues) -> RunComparison:
    """Compare a run with another, by every quantity that both have.

    Args:
        first: The run to compare with.
        one: Its values.
        second: The run that is compared.
        other: Its values.
    """
    common = [name for name in one.quantities if name in other.quantities]
    ordered = [name for name in _FIRST if name in common] + sorted(name for name in common if name not in _FIRST)
    differences = tuple(_difference(name, one.of(name), other.of(name)) for name in ordered)
    return RunComparison(first.name, second.name, differences, tuple(_notes(first, second, differences)))


def _difference(quantity: str, one: Mapping[str, list[float]], other: Mapping[str, list[float]]) -> Difference:
    """Compare paired by task if the runs have the same tasks: at least half of the tasks of each, and at least two."""
    common = one.keys() & other.keys()
    is_paired = len(common) >= max(2, len(one) / 2, len(other) / 2)
    chosen = (common, common) if is_paired else (one.keys(), other.keys())
    means = _means(one, chosen[0]), _means(other, chosen[1])
    drawn = _drawn(*means, is_paired=is_paired)
    low, high = (None, None) if drawn is None else interval_of(drawn)
    return Difference(
        quantity=quantity,
        method="paired" if is_paired else "unpaired",
        first=float(means[0].mean()),
        second=float(means[1].mean()),
        difference=float(means[1].mean() - means[0].mean()),
        low=low,
        high=high,
        p_value=None if drawn is None else p_value_of(drawn),
        tasks=(len(means[0]), len(means[1])),
        episodes=(sum(len(one[task]) for task in chosen[0]), sum(len(other[task]) for task in chosen[1])),
    )


def _drawn(
    one: "NDArray[np.float64]", other: "NDArray[np.float64]", *, is_paired: bool
) -> "NDArray[np.float64] | None":
    """Return draws of the difference of the means; None if a run has fewer than two tasks."""
    if min(len(one), len(other)) < 2:
        return None
    rng = np.random.default_rng(0)
    if is_paired:
        return bootstrap_means(other - one, RESAMPLES, rng)
    return bootstrap_means(other, RESAMPLES, rng) - bootstrap_means(one, RESAMPLES, rng)


def _means(by_task: Mapping[str, list[float]], tasks: Iterable[str]) -> "NDArray[np.float64]":
    """Return the mean of each task, in the order of the tasks' names: the draws are then the same for the same run."""
    return np.array([math.fsum(by_task[task]) / len(by_task[task]) for task in sorted(tasks)], dtype=np.float64)


def _notes(first: RunFigures, second: RunFigures, differences: Iterable[Difference]) -> Iterable[str]:
    found = list(differences)
    if first.envs.keys() != second.envs.keys():
        yield "The runs have different environments, so a difference may be one of the tasks."
    if not found:
        yield "There is nothing to compare: a run has no episode that could be read."
    if any(one.low is None for one in found):
        yield "Where a run has fewer than two tasks, there is no interval."
    if any(one.low is not None and min(one.tasks) < FEW_TASKS for one in found):
        yield f"With fewer than {FEW_TASKS} tasks, the intervals are too narrow."
