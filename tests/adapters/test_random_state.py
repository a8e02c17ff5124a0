"""Random state that belongs to one environment."""

import copy
import random

import numpy as np
import pytest

from envsdk.authoring.adapters._random_state import GlobalRandom


def draw(state: GlobalRandom) -> tuple[float, float]:
    with state.active():
        return random.random(), float(np.random.random())


def test_it_continues_where_it_was_and_is_that_of_its_seed():
    first, second = GlobalRandom(1), GlobalRandom(2)
    mixed = [draw(state) for state in (first, second, first, second)]
    random.seed(1)
    np.random.seed(1)
    alone = [(random.random(), float(np.random.random())) for _ in range(2)]
    assert [mixed[0], mixed[2]] == alone
    assert len(set(mixed)) == 4


def test_a_copy_continues_in_the_same_way():
    state = GlobalRandom(3)
    draw(state)
    assert draw(copy.deepcopy(state)) == draw(state)


def test_the_global_state_is_that_before_also_after_an_error(capsys: pytest.CaptureFixture[str]):
    before = random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tobytes()  # pyright: ignore
    with pytest.raises(ValueError, match="inside"), GlobalRandom(0).active():
        print(random.random(), np.random.random())
        raise ValueError("inside")
    after = random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tobytes()  # pyright: ignore
    assert after == before
    assert capsys.readouterr().out == ""
