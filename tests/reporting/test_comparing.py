"""Two runs are compared with intervals: paired by task where they have the same tasks, else unpaired."""

from pathlib import Path

import numpy as np
import pytest
from made_runs import episodes, store

from envsdk.rollouts.scores import compare
from envsdk.viewer.reporting import report
from envsdk.viewer.reporting._figures import QuantityDifference


def difference(path: Path, first: list, second: list, quantity: str = "reward") -> QuantityDifference:
    one, other = store(path / "one", first), store(path / "other", second)
    (comparison,) = report(one, other).comparisons
    return next(own for own in comparison.differences if own.quantity == quantity)


def test_runs_over_the_same_tasks_are_paired_as_an_evaluation_pairs_them(tmp_path: Path):
    rng = np.random.default_rng(0)
    difficulty = rng.normal(size=60)
    first, second = (
        episodes([[float(task + shift + 0.1 * rng.normal())] * 2 for task in difficulty]) for shift in (0, 0.1)
    )
    found, expected = difference(tmp_path, first, second), compare(second, first, resamples=5_000)
    assert (found.method, found.tasks, found.episodes) == ("paired", (60, 60), (120, 120))
    assert found.difference == pytest.approx(expected.difference)
    assert (found.low, found.high, found.p_value) == pytest.approx((expected.low, expected.high, expected.p_value))
    assert found.low is not None and found.high is not None
    assert 0 < found.low < 0.1 < found.high < 0.2  # the tasks differ by far more


def test_runs_over_other_tasks_are_compared_unpaired(tmp_path: Path):
    rng = np.random.default_rng(1)
    values = rng.normal(size=(2, 100))
    first, second = (
        episodes([[float(value)] for value in own], prefix) for own, prefix in zip(values, "ab", strict=True)
    )
    found = difference(tmp_path, first, second)
    assert found.method == "unpaired"
    assert found.difference == pytest.approx(values[1].mean() - values[0].mean())
    error = np.sqrt(values[0].var() / 100 + values[1].var() / 100)
    assert found.low is not None and found.high is not None
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.1)


def test_paired_means_are_over_the_common_tasks(tmp_path: Path):
    found = difference(tmp_path, episodes([[1.0], [0.0], [0.5]]), episodes([[1.0], [1.0], ["Oops: no"]]))
    assert (found.method, found.tasks) == ("paired", (2, 2))
    assert (found.first, found.second, found.difference) == (0.5, 1.0, 0.5)


def test_a_few_common_tasks_do_not_make_a_pair(tmp_path: Path):
    found = difference(tmp_path, episodes([[1.0]] * 10), episodes([[0.0]] * 2))
    assert (found.method, found.tasks, found.difference) == ("unpaired", (10, 2), -1.0)


def test_episodes_of_one_task_do_not_narrow_the_interval(tmp_path: Path):
    rewards = [[float(value)] for value in np.random.default_rng(2).normal(size=30)]
    intervals = []
    for copies in (1, 3):
        first = episodes([own * copies for own in rewards])
        found = difference(tmp_path / str(copies), first, episodes([[0.0] * copies for _ in rewards]))
        intervals.append((found.low, found.high))
    assert intervals[0] == pytest.approx(intervals[1])


def test_the_share_of_failures_is_compared_over_all_episodes(tmp_path: Path):
    first, second = episodes([["Oops: no"], [1.0], [1.0], [1.0]]), episodes([[1.0]] * 4)
    found = difference(tmp_path, first, second, "failed")
    assert (found.first, found.second, found.difference, found.tasks) == (0.25, 0.0, -0.25, (4, 4))


def test_named_rewards_are_compared_if_both_runs_have_them(tmp_path: Path):
    first = episodes([[{"correct": 1.0, "style": 1.0}]] * 3)
    second = episodes([[{"correct": 0.0, "speed": 1.0}]] * 3)
    (comparison,) = report(store(tmp_path / "a", first), store(tmp_path / "b", second)).comparisons
    names = [own.quantity for own in comparison.differences]
    assert names == ["reward", "failed", "steps", "observed_tokens", "sampled_tokens", "reward.correct"]


def test_too_few_tasks_give_a_difference_without_an_interval(tmp_path: Path):
    found = difference(tmp_path, episodes([[1.0]]), episodes([[0.0]]))
    assert (found.difference, found.low, found.high, found.p_value) == (-1.0, None, None, None)


@pytest.mark.parametrize("rewards", [[], [["Oops: no"]]], ids=["empty", "failed"])
def test_a_run_without_rewards_is_compared_by_what_it_has(tmp_path: Path, rewards: list):
    paths = store(tmp_path / "a", episodes([[1.0], [0.0]])), store(tmp_path / "b", episodes(rewards))
    (comparison,) = report(*paths).comparisons
    assert [own.quantity for own in comparison.differences] == (["failed"] if rewards else [])
    assert comparison.notes


def test_further_runs_are_compared_with_the_first(tmp_path: Path):
    made = [
        store(tmp_path / name, episodes([[value], [value]])) for name, value in (("a", 0.0), ("b", 0.5), ("c", 1.0))
    ]
    found = [(one.first, one.second, one.differences[0].difference) for one in report(*made).comparisons]
    assert found == [("a", "b", 0.5), ("a", "c", 1.0)]


def test_the_order_in_which_episodes_ended_changes_nothing(tmp_path: Path):
    rng = np.random.default_rng(3)
    first, second = (episodes([list(map(float, rng.normal(size=3))) for _ in range(20)]) for _ in range(2))
    found = difference(tmp_path / "a", first, second)
    assert difference(tmp_path / "b", first[::-1], second[::-1]) == found
