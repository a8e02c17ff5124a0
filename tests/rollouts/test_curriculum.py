"""Tasks are drawn by how often they are solved."""

from collections import Counter
from typing import Any

import pytest

from envsdk import Trajectory, errors
from envsdk.rollouts import Rollouts, TaskSampler


def played(task: Any, *, solved: bool, status: Any = "terminated") -> Trajectory:
    return Trajectory("t", "env", task, status, status, {}, [], config={"solved": solved})


def sampler(tasks: Any = range(4), **options: Any) -> TaskSampler:
    return TaskSampler(tasks, is_success=lambda one: one.config["solved"], **options)


def test_the_weight_of_a_task_is_how_much_there_is_to_learn():
    some = sampler(range(3), uniform=0.0, decay=1.0)
    some.update([played(0, solved=True)] * 8 + [played(1, solved=i < 4) for i in range(8)])
    assert some.success_rates == pytest.approx({0: 0.9, 1: 0.5, 2: 0.5})
    weights = {task: rate * (1 - rate) for task, rate in some.success_rates.items()}
    total = sum(weights.values())
    assert some.probabilities == pytest.approx({task: weight / total for task, weight in weights.items()})


def test_draws_have_the_probabilities():
    some = sampler(range(3), uniform=0.2, decay=1.0, seed=1)
    some.update([played(0, solved=True)] * 30 + [played(1, solved=True)] * 3)
    counts = Counter(task for _ in range(4000) for task in some.draw(1))
    for task, probability in some.probabilities.items():
        assert counts[task] / 4000 == pytest.approx(probability, abs=0.03)


def test_a_draw_has_no_task_twice_unless_there_are_too_few():
    some = sampler(range(5))
    assert sorted(some.draw(5)) == list(range(5))
    assert all(len(set(some.draw(3))) == 3 for _ in range(50))
    assert Counter(some.draw(12)).most_common()[-1][1] == 2


def test_older_episodes_count_less():
    some = sampler(range(1), decay=0.5)
    some.update([played(0, solved=True)] * 3 + [played(0, solved=False)] * 2)
    successes, episodes = 1.75 * 0.25, 1.9375
    assert some.success_rates[0] == pytest.approx((successes + 1) / (episodes + 2))


def test_failed_episodes_and_other_tasks_are_not_counted():
    some = sampler()
    some.update([played(0, solved=True, status="error"), played(99, solved=True), played(None, solved=True)])
    assert set(some.success_rates.values()) == {0.5}


def test_a_sampler_continues_from_its_state():
    first, second = sampler(seed=3), sampler(seed=4)
    first.draw(3)
    first.update([played(1, solved=True)])
    second.restore(first.state())
    assert second.success_rates == first.success_rates
    assert [first.draw(2) for _ in range(5)] == [second.draw(2) for _ in range(5)]


def test_seeds_of_real_episodes_are_counted_by_their_reward():
    some = TaskSampler(range(4), uniform=0.0)
    for policy in ("reference", "null"):
        some.update(Rollouts("envsdk/MathChat-v0", policy, seeds=range(2), group_size=2).run())
    assert {rate != 0.5 for task, rate in some.success_rates.items() if task > 1} == {False}
    assert (
        some.success_rates[0]
        == some.success_rates[1]
        == pytest.approx((0.9**2 + 0.9**3 + 1) / (1 + 0.9 + 0.9**2 + 0.9**3 + 2))
    )


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: TaskSampler([]), "at least one task"),
        (lambda: TaskSampler([1, 1]), "each once"),
        (lambda: TaskSampler([1], uniform=2), "uniform is 2"),
        (lambda: TaskSampler([1], decay="a"), "decay is 'a'"),  # pyright: ignore[reportArgumentType]
        (lambda: sampler().draw(0), "count is 0"),
        (lambda: sampler().restore("{}"), "cannot be read"),
        (lambda: sampler().restore(sampler(range(9)).state()), "it has 9 tasks, and there are 4"),
    ],
)
def test_what_is_no_sampler_is_refused(make: Any, error: str):
    with pytest.raises(errors.ConfigError, match=error):
        make()
