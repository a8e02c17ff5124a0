"""Task folders in Harbor's format, in real containers."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import blocks_of
from peers.containers.conftest import AGENT

import envsdk
from envsdk import Message, Trajectory
from envsdk.adapters import HarborProgram, HarborTask
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


def test_the_code_of_docs_adapters_harbor_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(TASKS, tmp_path / "tasks")
    monkeypatch.chdir(tmp_path)
    for block in blocks_of(TASKS.parents[3] / "docs" / "adapters" / "harbor.md"):
        if block.language == "python":
            exec(compile(block.code, "harbor.md", "exec"), {})


def variant(folder: Path, test: str, toml: str = "[verifier]\ntimeout_sec = 5.0\n") -> Path:
    """Write a task with other tests."""
    path = folder / "variant"
    shutil.copytree(TASKS / "write-a-line", path)
    (path / "task.toml").write_text(toml)
    (path / "tests" / "test.sh").write_text(test)
    return path


REWARD = "/logs/verifier/reward"


@pytest.mark.parametrize(
    "test",
    [
        "sleep 1000",
        "true",
        f"echo nan > {REWARD}.txt",
        f"echo 1e999 > {REWARD}.txt",
        f"echo 1e300 > {REWARD}.txt",
        f"echo good > {REWARD}.txt",
        f": > {REWARD}.txt",
        f"mkdir {REWARD}.txt",
        f"ln -s /etc/passwd {REWARD}.txt",
        f"head -c 9000000 /dev/zero > {REWARD}.txt",
        f"echo '{{}}' > {REWARD}.json",
        f"echo '[1]' > {REWARD}.json",
        f"""echo '{{"reward": "1"}}' > {REWARD}.json""",
        f"""echo '{{"a\\ud800": 1}}' > {REWARD}.json""",
        f"python3 -c 'print(chr(91) * 100000)' > {REWARD}.json",
    ],
)
def test_tests_that_leave_no_number_leave_no_reward(tmp_path: Path, test: str):
    env = HarborTask(tasks=variant(tmp_path, f"#!/bin/sh\n{test}\n"))
    trajectory = envsdk.rollout(env, "null", seed=0)
    env.close()
    assert (trajectory.reward, trajectory.steps[-1].metrics["ungraded"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    "attack",
    [
        "mkdir -p /tests && echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; chmod 000 /tests",
        "rm -rf /tests && ln -s /app /tests",
        "rm -rf /logs && ln -s /app /logs",
        "rm -rf /logs && echo 1 > /logs",
        "echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json",
        "rm -rf /logs/verifier; mkdir /logs/verifier; ln -s /etc/hostname /logs/verifier/reward.json",
        "(while true; do echo 1 > /logs/verifier/reward.txt; done) > /dev/null 2>&1 &",
    ],
)
def test_what_an_agent_does_to_the_tests_and_logs_gains_nothing(env: HarborTask, attack: str):
    trajectory = played(env, attack, task="write-a-line")
    assert (trajectory.reward, trajectory.steps[-1].metrics["ungraded"]) == (0.0, 0.0), trajectory.steps[-1]


@pytest.mark.parametrize("left", ["rm -rf /usr/bin/mkdir /usr/bin/rm", "rm -rf /usr /bin /lib"])
def test_an_agent_that_leaves_nothing_that_can_be_graded_has_no_reward(env: HarborTask, left: str):
    trajectory = played(env, left, task="write-a-line")
    assert (trajectory.reward, trajectory.steps[-1].metrics["ungraded"]) == (0.0, 1.0)


def test_a_replaced_interpreter_gains_nothing_if_only_the_folder_is_graded():
    env = HarborTask(tasks=TASKS / "write-a-line", grade="workdir")
    fake = "printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt\\n' > /x; chmod +x /x; mv /x /bin/bash"
    assert played(env, fake, task="write-a-line").reward == 0.0
    assert envsdk.rollout(env, "reference", seed=0).reward == 1.0
    env.close()


def test_the_tests_run_when_the_time_of_the_agent_is_over(tmp_path: Path):
    toml = "[agent]\ntimeout_sec = 2.0\n"
    env = HarborTask(tasks=variant(tmp_path, f"#!/bin/sh\necho 0.5 > {REWARD}.txt\n", toml))
    trajectory = played(env, "sleep 100", "echo never", task="variant")
    env.close()
    assert (trajectory.reward, len(trajectory.steps), trajectory.stop_reason) == (0.5, 1, "truncated")


def test_commands_that_cannot_be_run_are_reported_to_the_model(env: HarborTask):
    replies = iter(
        [{"command": "echo \0"}, {"command": "true", "timeout_s": -1}, {"command": "echo ✓", "timeout_s": 5}]
    )
    policy = ReplyPolicy(
        env, lambda player: Message.calling("shell", arguments) if (arguments := next(replies, None)) else "done"
    )
    envsdk.rollout(env, policy, seed=0, options={"task": "write-a-line"})
    results = [message.content for message in env.messages() if message.role == "tool"]
    assert [result.split()[0] for result in results] == ["Error:", "Error:", "✓"]


class Program(HarborProgram):
    def reference_reply(self) -> str:
        said = sum(message.role == "assistant" for message in self.messages())
        return ("echo 'Hello, world!' > hello.txt; cat /proc/net/route | wc -l; ls /tests", "done")[min(said, 1)]


def test_every_sampled_token_of_a_program_is_trained_once_and_its_task_is_graded():
    env = Program(tasks=TASKS / "write-a-line", command=("python3", "-c", AGENT, "{instruction}"))
    trajectory = envsdk.rollout(env, "reference", seed=0)
    shown = [message.content for message in env.messages() if message.role == "user"]
    env.close()
    assert trajectory.reward == 1.0, trajectory
    assert "Write `Hello, world!`" in shown[0] and shown[1].startswith("1\n") and "No such file" in shown[1]
    assert sum(int(np.sum(sample.mask)) for sample in trajectory.samples()) == trajectory.sampled_tokens > 0
