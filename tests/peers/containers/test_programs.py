"""Agent programs and environments in real containers."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import blocks_of

import envsdk
from envsdk import Message
from envsdk.containers import ContainerConfig, prune
from envsdk.gateway import Endpoint, ProgramEnv, ProgramResult
from envsdk.rollouts import Rollouts

ROOT = Path(__file__).resolve().parents[3]
LISTING = ("podman", "ps", "--all", "--filter=label=envsdk.owner", "--format={{.Names}}")
COMMANDS = ("cat mean.py", "sed -i 's/ + 1$//' mean.py && cat mean.py")
TASK = "The mean is wrong. Repair mean.py."
SMOLAGENT = (
    'exec python3 -m smolagents.cli "$0" --model-type OpenAIModel --model-id m --api-base "$OPENAI_BASE_URL" '
    '--api-key "$OPENAI_API_KEY" --imports subprocess --tools python_interpreter'
)
LOCAL = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
AGENTS = ContainerConfig(image="my-agent:1", memory_mib=2048, output_kib=256)
MEAN = "def mean(values):\n    return sum(values) / len(values) + 1\n"


NOSY = """import json, os, urllib.error, urllib.request
root = os.environ["ANTHROPIC_BASE_URL"].partition("/s/")[0]
found = {}
for path in ("/sessions", "/metrics", "/openapi.json", "/v1/models", "/v1/chat/completions", "/s/0/chat/completions"):
    for key in ("", "0", "envsdk"):
        data = b"{}" if "chat" in path else None
        request = urllib.request.Request(root + path, data, {"authorization": "Bearer " + key})
        try:
            found[path + key] = urllib.request.urlopen(request).status
        except urllib.error.HTTPError as error:
            found[path + key] = error.code
print(json.dumps(found))"""


def listed(config: ContainerConfig) -> list[str]:
    """The names of envsdk's containers of an engine."""
    command = (str(config.engine), *LISTING[1:])
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


class Repair(ProgramEnv):
    """Repair a program; a hidden test is the reward."""

    container: ContainerConfig | None = ContainerConfig(
        image="my-agent:1", memory_mib=1024, processes=64, output_kib=256
    )

    def prepare(self, folder: Path, endpoint: Endpoint) -> None:
        (folder / "mean.py").write_text(MEAN)

    async def score(self, result: ProgramResult) -> float:
        assert result.container is not None and result.returncode == 0, result.stderr
        await result.container.write("hidden.py", "from mean import mean\n\nprint(mean([3, 1, 4, 1, 5]))\n")
        return float((await result.container.run(["python3", "hidden.py"])).stdout == "2.8\n")

    def said(self) -> int:
        return sum(message.role == "assistant" for message in self.messages())


class Plain(Repair):
    """An agent of a few lines, whose replies are commands."""

    command = ("my-agent", "The mean is wrong.")

    def prepare(self, folder: Path, endpoint: Endpoint) -> None:
        super().prepare(folder, endpoint)
        self.environ = {"MEAN": f"{folder}/mean.py"}  # as the program sees it

    def reference_reply(self) -> str:
        return (COMMANDS[0], COMMANDS[1].replace("mean.py", '"$MEAN"'), "done")[min(self.said(), 2)]


class MiniSwe(Repair):
    """The command line of PyPI's `mini-swe-agent`, whose replies call a shell."""

    container = AGENTS.model_copy(
        update={"environ": {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", **LOCAL}}
    )
    command = (
        "python3",
        "-m",
        "minisweagent.run.mini",
        "--yolo",
        "--exit-immediately",
        "--model=openai/m",
        "--task",
        TASK,
    )

    def reference_reply(self) -> Message:
        commands = (*COMMANDS, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
        return Message.calling("bash", {"command": commands[min(self.said(), 2)]})


class QwenCode(Repair):
    """npm's `@qwen-code/qwen-code`, a coding agent with a shell, by its recipe."""

    container = AGENTS.model_copy(update={"environ": {"PATH": "/opt/node_modules/.bin:/usr/local/bin:/usr/bin:/bin"}})

    def reference_reply(self) -> Message:
        if self.said() > 1:
            return Message(role="assistant", content="It is repaired.")
        arguments = {"command": COMMANDS[self.said()], "description": "look", "is_background": False}
        return Message.calling("run_shell_command", arguments)


class Smolagent(Repair):
    """The command line of PyPI's `smolagents`, whose replies are programs."""

    container = AGENTS
    command = ("sh", "-c", SMOLAGENT, TASK)

    def reference_reply(self) -> str:
        code = ["final_answer('done')"] * 3
        for number, line in enumerate(COMMANDS):
            code[number] = f"import subprocess\nprint(subprocess.getoutput({line!r}))"
        return f"<code>\n{code[min(self.said(), 2)]}\n</code>"


@pytest.mark.parametrize("env_class", [Plain, MiniSwe, QwenCode, Smolagent])
def test_every_sampled_token_of_an_agent_in_a_container_is_trained_once(env_class: type[Repair]):
    recipe = {"agent": "qwen-code", "task": TASK} if env_class is QwenCode else {}
    env = env_class(renderer="qwen3", tokenizer="embedded", **recipe)
    trajectory = envsdk.rollout(env, "reference", seed=0)
    env.close()
    assert (trajectory.reward, len(trajectory.steps)) == (1.0, 3)
    trained = sum(int(np.sum(sample.mask)) for sample in trajectory.samples())
    assert trained == trajectory.sampled_tokens > 0


class Cheat(Plain):
    """An agent that replaces what grades it."""

    def reference_reply(self) -> str:
        cheats = "printf '#!/bin/sh\\nexit 0\\n' > /usr/bin/python3; env; cat /proc/net/route | wc -l"
        return (cheats, "done")[min(self.said(), 1)]


def test_an_agent_that_replaces_the_interpreter_gains_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET_OF_THE_HOST", "1")
    env = Cheat(renderer="qwen3", tokenizer="embedded")
    trajectory = envsdk.rollout(env, "reference", seed=0)
    shown = env.messages()[-1].content if env.messages()[-1].role == "user" else str(env.messages())
    env.close()
    assert trajectory.reward == 0.0
    assert "SECRET_OF_THE_HOST" not in shown and "OPENAI_API_KEY" in str(env.messages())


@pytest.mark.parametrize(
    "left",
    [
        "echo 'raise SystemExit(0)' > mean.py",
        "rm -rf /work",
        "rm -rf /work; echo > /work",
        "for i in 1 2 3; do head -c 9000000 /dev/zero > $i; done",
        "ln -s /usr/bin/python3 hidden.py; mkdir values.py",
    ],
)
def test_a_program_that_leaves_no_repair_is_scored(left: str):
    class Leaves(Plain):
        container = ContainerConfig(image="my-agent:1", disk_mib=16)

        def reference_reply(self) -> str:
            return (left, "done")[min(self.said(), 1)]

        async def score(self, result: ProgramResult) -> float:
            return await super().score(replace(result, returncode=0))

    env = Leaves(renderer="qwen3", tokenizer="embedded")
    trajectory = envsdk.rollout(env, "reference", seed=0)
    env.close()
    assert trajectory.reward == 0.0


def test_a_program_that_does_not_end_is_stopped_and_scored():
    class Hangs(Repair):
        container = ContainerConfig(image="my-agent:1", lifetime_s=5)
        command = ("sh", "-c", "my-agent x; sleep 1000")

        async def score(self, result: ProgramResult) -> float:
            assert result.container is not None and result.returncode is None
            return float((await result.container.read("mean.py")).decode() == MEAN)

    env = Hangs(renderer="qwen3", tokenizer="embedded")
    env.reference_reply = lambda: "done"
    trajectory = envsdk.rollout(env, "reference", seed=0)
    env.close()
    assert trajectory.reward == 1.0


def test_an_agent_whose_container_is_killed_is_played_again():
    killed: list[str] = []

    class Killed(Plain):
        def respond(self, reply: Message) -> Any:
            if not killed:
                names = subprocess.run(LISTING, check=True, capture_output=True, text=True).stdout.split()
                killed.extend(names)
                subprocess.run(("podman", "rm", "--force", *names), check=True, capture_output=True)
            return super().respond(reply)

    run = Rollouts(lambda: Killed(renderer="qwen3", tokenizer="embedded"), "reference", seeds=[0], retry_wait_s=0.01)
    [trajectory] = run.run()
    assert killed and trajectory.reward == 1.0


def rollouts(config: ContainerConfig) -> subprocess.Popen[str]:
    """A program that plays episodes in containers, four of which have started; it has its own process group."""
    program = (
        "from envsdk.containers import ContainerConfig\nfrom envsdk.rollouts import Rollouts\n"
        f"options = dict(container=ContainerConfig(**{config.model_dump(exclude_defaults=True)!r}), renderer='qwen3')\n"
        "Rollouts('envsdk/RepoFix-v0', 'reference', seeds=range(100), max_concurrency=4,\n"
        "         env_options={**options, 'tokenizer': 'embedded'}).run()\n"
    )
    run = subprocess.Popen((sys.executable, "-c", program), stderr=subprocess.PIPE, text=True, process_group=0)
    while len(listed(config)) < 4:
        assert run.poll() is None
        time.sleep(0.2)
    return run


def test_the_containers_of_a_killed_run_are_found(small: ContainerConfig):
    with rollouts(small) as run:
        try:
            assert asyncio.run(prune(small.engine)) == []
        finally:
            run.kill()
    time.sleep(2)  # what the clients of the engine had begun ends
    assert set(listed(small)) <= set(asyncio.run(prune(small.engine)))
    assert listed(small) == []


def test_an_interrupted_run_leaves_no_containers(small: ContainerConfig):
    with rollouts(small) as run:
        os.killpg(run.pid, signal.SIGINT)
        _, errors = run.communicate(timeout=120)
    assert "KeyboardInterrupt" in errors
    assert listed(small) == []


class Nosy(Plain):
    """An agent that looks for the sessions of others in the gateway."""

    def reference_reply(self) -> str:
        return (f"python3 -c {shlex.quote(NOSY)}", "done")[min(self.said(), 1)]


def test_an_agent_reaches_no_session_of_others():
    options: dict[str, Any] = {"renderer": "qwen3", "tokenizer": "embedded"}
    other, env = Plain(**options), Nosy(**options)
    other.reset(seed=1)  # its agent waits for a reply of the same gateway
    envsdk.rollout(env, "reference", seed=0)
    [shown] = [message.content for message in env.messages() if message.content.startswith("{")]
    other.close()
    env.close()
    statuses = json.loads(shown)
    assert len(statuses) == 18 and set(statuses.values()) <= {401, 404, 405}, statuses


@pytest.mark.parametrize(("policy", "reward"), [("reference", 1.0), ("null", 0.0)])
def test_repositories_are_repaired_in_64_episodes(policy: str, reward: float, small: ContainerConfig):
    options = {"container": small, "size": "medium", "renderer": "qwen3", "tokenizer": "embedded"}
    run = Rollouts("envsdk/RepoFix-v0", policy, seeds=range(64), env_options=options, max_concurrency=8)
    trajectories = run.run()
    assert [trajectory.reward for trajectory in trajectories] == [reward] * 64
    assert listed(small) == []


def test_the_code_of_its_page_runs():
    names: dict[str, Any] = {}
    for block in blocks_of(ROOT / "docs" / "how-to" / "containers.md"):
        if block.language == "python":
            exec(compile(block.code, block.where, "exec"), names)
    asyncio.run(names["main"]())
    for env_class, reply in ((names["FixTheMean"], "sed -i 's/ + 1$//' mean.py"), (names["Shell"], "about 200")):
        env = env_class(renderer="qwen3", tokenizer="embedded")
        env.reference_reply = iter((reply, "done")).__next__
        trajectory = envsdk.rollout(env, "reference", seed=0)
        env.close()
        assert trajectory.reward == (1.0 if env_class is names["FixTheMean"] else 0.0)
