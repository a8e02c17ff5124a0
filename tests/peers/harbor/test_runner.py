"""Harbor itself, with a newer Python: its runner, its agents, and its environments."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envsdk.gateway._harbor_export import export_tasks

HERE = Path(__file__).resolve().parent
NEWER = Path(sys.prefix) / "newer" / "bin"
OURS = "envsdk.gateway._harbor_agents:ContainerEnvironment"

pytestmark = [
    pytest.mark.usefixtures("engine"),
    pytest.mark.skipif(not (NEWER / "harbor").exists(), reason="no Python 3.12 or newer, which harbor needs"),
]


def ran(*command: str | Path) -> str:
    """Run a command with the newer Python, and return what it prints."""
    paths = os.pathsep.join(map(str, (HERE.parents[1], HERE)))
    environ = {**os.environ, "PYTHONPATH": paths, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    run = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    return run.stdout


def rewards_of(tasks: Path, agent: str) -> dict[str, float]:
    """Run an agent of Harbor's on tasks with Harbor's runner, and return the reward of each task."""
    out = tasks.with_name(agent)
    ran(NEWER / "harbor", "run", "-p", tasks, "-a", agent, "--env", OURS, "-n", "2", "-o", out, "-y")
    results = [json.loads(file.read_text()) for file in out.glob("*/*/result.json")]
    return {
        result["task_name"].rpartition("/")[2]: result["verifier_result"]["rewards"]["reward"] for result in results
    }


def test_harbors_runner_gives_the_solutions_of_the_tasks_the_same_reward(tmp_path: Path):
    for folder in (HERE / "tasks").iterdir():
        if folder.name != "sort-the-list":  # its phases have different networks, which one container cannot have
            shutil.copytree(folder, tmp_path / "tasks" / folder.name)
    tasks = tmp_path / "tasks"
    assert rewards_of(tasks, "oracle") == dict.fromkeys((folder.name for folder in tasks.iterdir()), 1.0)


def test_exported_episodes_are_tasks_that_harbors_runner_plays(tmp_path: Path, image: str):
    row = {"question": "What is 2 + 3?", "answer": "5"}
    tasks = tmp_path / "tasks"
    for env, options in (
        ("envsdk/GuessNumber-v1", {}),
        ("envsdk/Calculator-v1", {}),
        ("envsdk.adapters:Dataset", {"tasks": [row], "score": "operator:eq"}),
    ):
        export_tasks(env, options, [0], tasks, image=image, package="")
    for agent, reward in (("oracle", 1.0), ("nop", 0.0)):
        assert rewards_of(tasks, agent) == dict.fromkeys((folder.name for folder in tasks.iterdir()), reward)


AGENT = """
import envsdk
from envsdk.adapters import HarborProgram

class Program(HarborProgram):
    def reference_reply(self):
        said = sum(message.role == "assistant" for message in self.messages())
        return ("echo 'Hello, world!' > hello.txt", "done")[min(said, 1)]

env = Program(tasks="{tasks}/write-a-line", agent="tiny_agent:TinyAgent")
trajectory = envsdk.rollout(env, "reference", seed=0)
env.close()
print(trajectory.reward, sum(int(sample.mask.sum()) for sample in trajectory.samples()) == trajectory.sampled_tokens)
"""


def test_every_sampled_token_of_an_agent_that_harbor_installs_is_trained_once():
    assert ran(NEWER / "python", "-c", AGENT.format(tasks=HERE / "tasks")).split() == ["1.0", "True"]


BACKEND = """
import asyncio, tempfile
from pathlib import Path
from envsdk.containers import ContainerConfig, start

async def main():
    async with await start(ContainerConfig(image="python:3.12-slim", engine="harbor:{ours}", memory_mib=512)) as box:
        result = await box.run("pwd; cat; echo $A; exit 3", stdin=b"in ", environ={{"A": "b 'c"}})
        assert (result.stdout, result.exit_status) == ("/work\\nin b 'c\\n", 3), result
        assert (await box.run("sleep 100", timeout_s=1)).limit == "time"
        assert (await box.run("id -u", user="1000")).stdout == "1000\\n"
        await box.write("x/y z", b"\\x00\\xff", mode=0o755)
        assert await box.read("x/y z") == b"\\x00\\xff"
        try:
            await box.read("nothing")
        except FileNotFoundError:
            print("missing")
        with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as there:
            Path(here, "f").write_text("1")
            await box.copy_in(Path(here), "/in/to")
            await box.copy_out("/in", Path(there))
            assert Path(there, "to", "f").read_text() == "1"
        print(await box.tools("shell")[0].function(command="echo from a tool"))

asyncio.run(main())
"""


def test_an_environment_of_harbors_is_a_container():
    printed = ran(NEWER / "python", "-c", BACKEND.format(ours=OURS))
    assert printed.split("\n") == ["missing", "from a tool", ""]


def test_an_environment_that_has_a_network_is_refused():
    program = BACKEND.replace("harbor:{ours}", "harbor:podman").format()
    with pytest.raises(AssertionError, match="ContainerError: harbor:podman could not start a container"):
        ran(NEWER / "python", "-c", program)
