"""Intervals of means and of differences, by a bootstrap over tasks: episodes of one task are not independent."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ...rollouts.scores import bootstrap_means, interval_of, p_value_of
from ._figures import MeanReward, QuantityDifference, RunComparison, RunFigures

if TYPE_CHECKING:
    from numpy.typing import NDArray

RESAMPLES = 5_000
FEW_TASKS = 20
"""Below this number of tasks, an interval of a bootstrap is too narrow."""
_FIRST = ("reward", "failed", "steps", "observed_tokens", "sampled_tokens")

TaskValues: TypeAlias = Mapping[str, Mapping[str, Sequence[float]]]
"""The values of each quantity by task, of the episodes of one run."""


def mean_reward(values: TaskValues) -> MeanReward | None:
    """Return the mean reward with its interval; None if no episode was scored."""
    by_task = values.get("reward")
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
    common = [name for name in one if name in other]
    ordered = [name for name in _FIRST if name in common] + sorted(name for name in common if name not in _FIRST)
    differences = tuple(_difference(name, one[name], other[name]) for name in ordered)
    notes: list[str] = []
    if first.envs.keys() != second.envs.keys():
        notes.append("The runs have different environments, so a difference may come from the tasks.")
    if not differences:
        notes.append("There is nothing to compare: a run has no episode that could be read.")
    if any(difference.low is None for difference in differences):
        notes.append("Where a run has fewer than two tasks, there is no interval.")
    if any(difference.low is not None and min(difference.tasks) < FEW_TASKS for difference in differences):
        notes.append(f"With fewer than {FEW_TASKS} tasks, the intervals are too narrow.")
    return RunComparison(first.name, second.name, differences, tuple(notes))


def _difference(
    quantity: str, one: Mapping[str, Sequence[float]], other: Mapping[str, Sequence[float]]
) -> QuantityDifference:
    """Compare two runs, paired by task if they share at least half of the tasks of each, and at least two."""
    common = one.keys() & other.keys()
    is_paired = len(common) >= max(2, len(one) / 2, len(other) / 2)
    tasks = (common, common) if is_paired else (one.keys(), other.keys())
    means = _means(one, tasks[0]), _means(other, tasks[1])
    drawn, low, high, rng = None, None, None, np.random.default_rng(0)
    if min(map(len, means)) > 1:
        if is_paired:
            drawn = bootstrap_means(means[1] - means[0], RESAMPLES, rng)
        else:
            drawn = bootstrap_means(means[1], RESAMPLES, rng) - bootstrap_means(means[0], RESAMPLES, rng)
        low, high = interval_of(drawn)
    return QuantityDifference(
        quantity=quantity,
        method="paired" if is_paired else "unpaired",
        first=float(means[0].mean()),
        second=float(means[1].mean()),
        difference=float(means[1].mean() - means[0].mean()),
        low=low,
        high=high,
        p_value=None if drawn is None else p_value_of(drawn),
        tasks=(len(means[0]), len(means[1])),
        episodes=(sum(len(one[task]) for task in tasks[0]), sum(len(other[task]) for task in tasks[1])),
    )


def _means(by_task: Mapping[str, Sequence[float]], tasks: Iterable[str]) -> "NDArray[np.float64]":
    """Return the mean of each task, in the order of the tasks' names: the draws are then the same for the same run."""
    return np.array([math.fsum(by_task[task]) / len(by_task[task]) for task in sorted(tasks)], dtype=np.float64)
