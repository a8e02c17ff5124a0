"""Task folders in Harbor's format, in real containers."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

import envsdk
from envsdk import Message, Trajectory
from envsdk.adapters import HarborTask
from envsdk.policies import ReplyPolicy

TASKS = Path(__file__).with_name("tasks")
NAMES = sorted(folder.name for folder in TASKS.iterdir())
LISTING = ("podman", "ps", "--all", "--filter=label=envsdk.owner", "--format={{.Names}}")

pytestmark = pytest.mark.usefixtures("engine")


def played(env: HarborTask, *commands: str, task: str) -> Trajectory:
    """Run commands, and end."""
    replies = iter([Message.calling("shell", {"command": command}) for command in commands])
    end = Message(role="assistant", content="The task is done.")
    policy = ReplyPolicy(env, lambda player: next(replies, end))
    return envsdk.rollout(env, policy, seed=0, options={"task": task})


@pytest.fixture
def env() -> Any:
    env = HarborTask(tasks=TASKS)
    yield env
    env.close()
    assert subprocess.run(LISTING, capture_output=True, text=True).stdout == ""


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_of_a_task_earns_one_and_doing_nothing_none(env: HarborTask, name: str):
    for policy, reward in (("reference", 1.0), ("null", 0.0)):
        trajectory = envsdk.rollout(env, policy, seed=0, options={"task": name})
        assert (trajectory.reward, trajectory.stop_reason) == (reward, "terminated"), trajectory.steps[-1]


def test_several_rewards_are_a_reward_and_metrics(env: HarborTask):
    trajectory = played(env, "echo 'print(2.0)' > median.py", task="repair-the-median")
    assert trajectory.steps[-1].rewards == {"reward": 0.0}
    assert {name: trajectory.steps[-1].metrics[name] for name in ("odd", "even")} == {"odd": 1.0, "even": 0.0}
