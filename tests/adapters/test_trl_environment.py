"""Environment classes in TRL's form as our environments."""

import random
from typing import Any

import pytest
from trl_environment_classes import Hot, PlaysHot, PlaysSlow, found

import envsdk
from envsdk import Message, ToolCall
from envsdk.adapters import TRLEnvironment
from envsdk.errors import ConfigError
from envsdk.policies import ReplyPolicy


def test_its_random_numbers_depend_on_the_seed_alone_and_leave_ours():
    random.seed(1)
    state = random.getstate()
    secrets = []
    for _ in range(2):
        for seed in range(6):
            env = PlaysHot()
            assert envsdk.rollout(env, "reference", seed=seed).reward == 1.0
            secrets.append(env.environment.secret)
            random.random()
        random.seed(7)
    assert secrets[:6] == secrets[6:]
    assert len({*secrets}) > 1
    random.setstate(state)


def test_an_exception_of_a_tool_is_for_the_model_and_a_result_is_its_text():
    env = PlaysSlow()
    env.reset(seed=0)
    number = env.environment.secret
    replies = [Message(role="assistant", tool_calls=(ToolCall(name="guess", arguments={"number": number}),))] * 2
    left = iter([*replies, "Done."])
    trajectory = envsdk.rollout(env, ReplyPolicy(env, lambda player: next(left)), seed=0)
    results = [message.content for message in env.messages() if message.role == "tool"]
    assert results == ["{'answer': 'Correct.'}", "Error: The game is over."]
    assert trajectory.reward == 1.0
    assert trajectory.steps[-1].rewards == {"found": 1.0}


def test_an_observation_that_is_not_text_is_refused():
    class Picture(Hot):
        def reset(self, **row: object) -> Any:
            return [{"type": "image", "image": None}]

    with pytest.raises(ConfigError, match="expected a string"):
        TRLEnvironment(env=Picture).reset(seed=0)


def nothing(**_: object) -> list[float]:
    return []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"env": Hot, "reward_funcs": [nothing]}, r"nothing returned \[\]; expected one number"),
        ({"env": Hot, "reward_funcs": [found, found], "tasks": [{"high": 9}]}, "two rewards are named 'found'"),
        ({"env": Hot, "tasks": [{"prompt": []}]}, r"the prompt of a row is \[\]"),
        ({"env": dict}, r"has no reset\(\)"),
    ],
)
def test_wrong_rewards_prompts_and_classes_are_refused(options: Any, why: str):
    env = TRLEnvironment(**options)
    with pytest.raises(ConfigError, match=why):
        envsdk.rollout(env, ReplyPolicy(env, lambda player: "Done."), seed=0)
