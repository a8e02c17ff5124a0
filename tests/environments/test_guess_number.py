"""Guessing a number."""

import pytest

import envsdk
from envsdk import Message, errors

ID = "envsdk/GuessNumber-v1"


def test_a_guess_is_answered_with_its_direction() -> None:
    env = envsdk.make(ID, tasks=[{"secret": 42}])
    env.reset(seed=0)
    answers = []
    for guess in ("50", " 7 ", "forty", "²", "9" * 5000, "42"):
        result = env.step(env.renderer.reply(Message(role="assistant", content=guess)))
        answers.append((env.messages()[-1].content, result.reward, result.terminated))
    no_number = ("Please answer with one number.", -0.1, False)
    assert answers == [("Lower.", 0.0, False), ("Higher.", 0.0, False), *[no_number] * 3, ("Correct.", 1.0, True)]


@pytest.mark.parametrize("options", [{"low": 5, "high": 4}, {"low": "a"}])
def test_a_range_without_a_number_is_refused(options: dict) -> None:
    with pytest.raises(errors.ConfigError):
        envsdk.make(ID, **options)


def test_a_secret_outside_the_range_is_refused() -> None:
    env = envsdk.make(ID, tasks=[{"secret": 1000}])
    with pytest.raises(errors.TaskError, match="the secret of the task is 1000; expected 1 to 100"):
        env.reset(seed=0)


def test_ten_guesses_are_all() -> None:
    trajectory = envsdk.rollout(envsdk.make(ID), "null", seed=0)
    assert (len(trajectory.steps), trajectory.stop_reason) == (10, "max_steps")
