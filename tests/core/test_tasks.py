"""How drawn tasks are split, and which one a seed gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk import errors
from envsdk.authoring.tasks import draw_in_split, pick_task, split_of


@given(key=st.text())
def test_a_task_is_always_of_the_same_split(key: str) -> None:
    assert split_of(key) == split_of(key) in ("train", "test")


def test_one_task_in_five_is_for_tests() -> None:
    assert sum(split_of(str(number)) == "test" for number in range(10_000)) == pytest.approx(2000, abs=100)
    assert split_of("0") == "train"  # the same in every version: the splits of others' tasks depend on it


def test_drawing_goes_on_until_a_task_is_of_the_split() -> None:
    numbers = iter(range(100))
    found = [draw_in_split("test", lambda: next(numbers)) for _ in range(5)]
    assert found == [number for number in range(100) if split_of(str(number)) == "test"][:5]
    with pytest.raises(errors.ConfigError, match="the options leave too few tasks"):
        draw_in_split("test", lambda: "0")


RNG = np.random.default_rng(0)
TEN = [8, 5, 3, 7, 6, 4, 1, 2, 9, 0]
MANY = [372357, 144923, 70159, 265363]


def picked(count: int, seed: int) -> int:
    return pick_task(range(count), seed, RNG)


@given(count=st.integers(1, 300), epoch=st.integers(0, 10**30))
def test_each_task_comes_once_in_each_run_of_as_many_seeds(count: int, epoch: int) -> None:
    assert sorted(picked(count, epoch * count + position) for position in range(count)) == list(range(count))


@given(count=st.integers(1, 2**63 - 1), seed=st.integers(0, 10**40))
def test_any_seed_gives_a_task_and_always_the_same_one(count: int, seed: int) -> None:
    assert picked(count, seed) == picked(count, seed) in range(count)


@given(count=st.integers(2, 10**12), seed=st.integers(0, 10**12), apart=st.integers(1, 1000))
def test_near_seeds_give_other_tasks(count: int, seed: int, apart: int) -> None:
    if seed // count == (seed + apart) // count:
        assert picked(count, seed) != picked(count, seed + apart)


def test_every_order_is_as_likely_and_no_place_has_a_favourite() -> None:
    orders = [tuple(picked(4, 4 * epoch + position) for position in range(4)) for epoch in range(4800)]
    assert len({*orders}) == 24
    assert all(orders.count(order) == pytest.approx(200, abs=70) for order in {*orders})
    firsts = [picked(1000, 1000 * epoch) for epoch in range(5000)]
    assert sum(firsts) / 5000 == pytest.approx(500, abs=20)
    steps = [abs(picked(10_000, seed + 1) - picked(10_000, seed)) for seed in range(5000)]
    assert sum(steps) / 5000 == pytest.approx(10_000 / 3, rel=0.05)


def test_the_order_is_the_same_in_every_version_and_on_every_machine() -> None:
    assert [picked(10, seed) for seed in range(10)] == TEN
    assert [picked(526_176, seed) for seed in (0, 1, 10**9, 10**18)] == MANY
    assert picked(526_176, np.int64(10**9)) == MANY[2]


def test_seeds_that_are_far_apart_cost_no_more_than_near_ones() -> None:
    numbers = [picked(2**40, number * 10**15) for number in range(500)]  # an order of so many would need terabytes
    assert len({*numbers}) == 500
    assert all(0 <= number < 2**40 for number in numbers)
