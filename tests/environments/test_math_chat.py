"""Sums in a conversation, under each way of keeping its thinking."""

import pytest

import envsdk
from envsdk import errors

ID = "envsdk/MathChat-v0"


@pytest.mark.parametrize(("history", "samples"), [("keep", 1), ("strip", 7), ({"name": "compact", "every": 3}, 3)])
def test_the_three_situations_give_their_number_of_samples(history: object, samples: int) -> None:
    trajectory = envsdk.rollout(envsdk.make(ID, history=history, questions=7), "reference", seed=0)
    assert (len(trajectory.steps), len(trajectory.samples())) == (7, samples)


def test_only_right_answers_earn_their_share() -> None:
    env = envsdk.make(ID, tasks=[{"questions": ["1 + 1?", "2 + 2?"], "answers": [2, 4]}])
    env.reset(seed=0)
    result = env.step(env.renderer.reply(envsdk.Message(role="assistant", content="It is 2.")))
    assert (result.reward, result.terminated, result.info["rewards"]) == (0.5, False, {"correct": 0.5})
    result = env.step(env.renderer.reply(envsdk.Message(role="assistant", content="5, not 4, no: 7")))
    assert (result.reward, result.terminated) == (0.0, True)
    assert "No, it is 4. Thank you." in env.messages()[-1].content


def test_a_task_has_an_answer_for_each_question() -> None:
    env = envsdk.make(ID, tasks=[{"questions": ["1 + 1?", "2 + 2?"], "answers": [2]}])
    with pytest.raises(errors.TaskError, match="2 questions and 1 answers"):
        env.reset(seed=0)
