"""Environments of verifiers as ours: its own rewards, tools and control flow, with the policy as the model."""

import random
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
import verifiers_environments
from verifiers_environments import Counter, Dice, Duet, Echo, EchoTool, EchoUser

import envsdk
from envsdk.adapters import Verifiers
from envsdk.errors import ConfigError
from envsdk.policies import ReplyPolicy
from envsdk.testing import check_env

PAGE = Path(__file__).parents[3] / "docs" / "adapters" / "verifiers.md"


@pytest.mark.parametrize("env", [Echo, EchoTool, EchoUser, Duet, Counter, Dice])
def test_an_environment_of_verifiers_passes_our_checks(env: Any):
    check_env(env, seeds=3).raise_if_failed()


def test_each_agent_is_a_context_with_its_own_reward():
    env = Duet()
    replies = iter(["hello world ping verifiers", "no"])
    trajectory = envsdk.rollout(env, ReplyPolicy(env, lambda player: next(replies)), seed=0)
    assert list(trajectory.contexts) == ["a", "b"]
    assert [log.reward for log in trajectory.contexts.values()] == [1.0, 0.0]
    assert [log.is_trainable for log in trajectory.contexts.values()] == [True, False]
    assert trajectory.reward == 1.0  # of the agents that are trained
    assert {sample.context for sample in trajectory.samples()} == {"a"}


def test_rewards_have_their_weights_and_metrics_are_metrics():
    env = Dice()
    replies = iter(["dice", "0"])
    trajectory = envsdk.rollout(env, ReplyPolicy(env, lambda player: next(replies)), seed=0)
    assert trajectory.steps[-1].rewards == {"sum_of_dice": 0.0, "polite": 0.0}
    solved = envsdk.rollout(env, "reference", seed=0)
    assert solved.steps[-1].rewards == {"sum_of_dice": 0.5, "polite": 0.5}
    assert solved.steps[-1].metrics == {"turns": 2.0}


def test_dice_depend_on_the_seed_and_leave_the_global_generator():
    env = Dice(n_tasks_used=7)
    random.seed(3)
    expected = random.Random(3).random()
    played = [[m.content for m in _played(env, seed)] for seed in (0, 1, 2, 0)]
    assert played[0] == played[3]
    assert len({str(one) for one in played}) == 3
    assert random.random() == expected
    assert len(env.tasks) == 7


def _played(env: Any, seed: int) -> Any:
    return next(iter(envsdk.rollout(env, "reference", seed=seed).contexts.values())).messages


def test_a_limit_of_verifiers_ends_the_episode_as_truncated_and_scores_it():
    env = Counter(options={"agent": {"max_turns": 2}})
    trajectory = envsdk.rollout(env, "reference", seed=0)
    assert (trajectory.status, len(trajectory.steps), trajectory.reward) == ("truncated", 2, 1.0)


def test_a_call_that_cannot_be_run_is_answered_and_goes_on():
    env = Counter()
    calls = iter(
        [verifiers_environments.call("nothing"), verifiers_environments.call("counter_bump", wrong=1), "Done."]
    )
    envsdk.rollout(env, ReplyPolicy(env, lambda player: next(calls)), seed=0)
    answers = [message.content for message in env.messages() if message.role == "tool"]
    assert [answer.partition(":")[0] for answer in answers] == ["Error", "Error"]


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ("echo_agentic_v1", r"a runtime for wrote_phrase\(\), artifacts"),
        ("agent_user_v1", "the program 'agent_user_v1'"),
        ("echo_acp_resume_v1", "the server of its tools ResumeToolset"),
        ("no_such_package", "cannot load the environment 'no_such_package'"),
    ],
)
def test_what_needs_a_server_a_sandbox_or_is_missing_is_refused_by_name(env: str, why: str):
    with pytest.raises(ConfigError, match=why):
        Verifiers(env=env)


@pytest.mark.parametrize(
    ("agent", "why"),
    [
        ({"model": "m"}, "a model of the agent 'agent'"),
        ({"sampling": {"top_p": 0.9}}, "sampling parameters of the agent"),
    ],
)
def test_an_agent_with_a_model_or_sampling_parameters_is_refused(agent: dict[str, Any], why: str):
    with pytest.raises(ConfigError, match=why):
        Verifiers(env="echo_v1", options={"agent": agent})


def test_a_judge_is_refused_by_its_name():
    judge = {"id": "reference", "model": "m"}
    with pytest.raises(ConfigError, match="the judge 'reference'"):
        Verifiers(env="echo_v1", options={"taskset": {"task": {"judges": [judge]}}})


def test_a_reward_that_raises_fails_the_episode_and_is_no_reward(monkeypatch: pytest.MonkeyPatch):
    async def raising(self: Any, trace: vf.Trace) -> float:
        raise ZeroDivisionError("a bug of the reward")

    monkeypatch.setattr(verifiers_environments.DiceTask, "polite", vf.reward(raising))
    (trajectory,) = envsdk.rollouts.rollout_many(Dice, "reference", seeds=[0])
    assert trajectory.status == "error"
    assert "a bug of the reward" in str(trajectory.error)


def test_episodes_side_by_side_are_those_of_one_after_another():
    seeds = range(64)
    together = envsdk.rollouts.rollout_many(Dice, "reference", seeds=seeds, max_concurrency=32)
    env = Dice()
    alone = [envsdk.rollout(env, "reference", seed=seed) for seed in seeds[:8]]
    assert [one.reward for one in together] == [1.0] * len(seeds)
    for one, other in zip(together[:8], alone, strict=True):
        assert [m.content for m in one.contexts["main"].messages] == [
            m.content for m in other.contexts["main"].messages
        ]


def test_the_code_of_its_page_runs():
    for block in PAGE.read_text(encoding="utf-8").split("```python\n")[1:]:
        exec(compile(block.partition("```")[0], str(PAGE), "exec"), {"__name__": "verifiers_page"})
