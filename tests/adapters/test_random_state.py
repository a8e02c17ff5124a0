"""Random state that belongs to one environment."""

import copy
import random
import threading
from typing import Any

import numpy as np
import pytest

from envsdk import Env, Message, Turn
from envsdk.authoring.adapters._random_state import GlobalRandom
from envsdk.rollouts import Rollouts


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


def test_what_another_thread_prints_is_printed(capsys: pytest.CaptureFixture[str]):
    with GlobalRandom(0).active():
        other = threading.Thread(target=print, args=("other",))
        other.start()
        other.join()
        print("inside")
    assert capsys.readouterr().out == "other\n"


class Draws(Env):
    """Draws with its own random state. Seed 0 does not return."""

    def start(self) -> Turn:
        with GlobalRandom(self.np_random_seed).active():
            while self.episode.seed == 0 and not GO_ON.wait(0.01):
                pass
            return Turn(f"{random.random()}")

    def respond(self, reply: Message) -> Turn:
        return Turn(reward=1.0, terminated=True)


GO_ON = threading.Event()


def errors_of(**options: Any) -> list[tuple[str, str | None]]:
    """Play four seeds, one after the other; return the error of each and its kind."""
    given: Any = {"seeds": range(4), "max_concurrency": 1, "retry_wait_s": 0.01, **options}
    found = Rollouts(Draws, "null", **given).run()
    return [((trajectory.error or "").partition(":")[0], trajectory.error_kind) for trajectory in found]


def test_while_a_method_does_not_return_the_others_fail_with_a_typed_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("envsdk.rollouts._player._GRACE_S", 0.2)
    GO_ON.clear()
    lost = ("WorkerLost", "infrastructure")
    assert errors_of(method_timeout_s=0.5, max_retries=0) == [("DeadlineExceeded", "environment"), lost, lost, lost]
    GO_ON.set()  # now it returns
    assert errors_of() == [("", None)] * 4


@pytest.mark.full
def test_a_new_process_plays_the_others():
    found = errors_of(method_timeout_s=4.0, executor="processes", n_workers=1)
    assert found == [("DeadlineExceeded", "environment"), *[("", None)] * 3]
