"""The command line of runs: servers, groups, interrupts, resuming, evaluation."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from model_servers import Fault, ModelServer
from typer.testing import CliRunner

from envsdk.cli import app
from envsdk.errors import EnvsdkError
from envsdk.rollouts._run_folder import RunFolder

ENVSDK = [sys.executable, "-m", "envsdk"]
MATH = "envsdk/MathChat-v0"


def run(*arguments: Any) -> str:
    """Run a command in this process; return what it writes to standard output."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def run_program(*arguments: Any, cwd: Path | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own: one that imports from `cwd`, or whose connections end with the process."""
    done = subprocess.run(
        [*ENVSDK, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=600, check=False
    )
    assert done.returncode == code, done.stderr
    return done


def test_a_model_on_a_server_is_rolled_out_in_groups_and_stored(tmp_path: Path) -> None:
    with ModelServer(stop_logit=9.0) as server:
        printed = run(
            *("rollout", MATH, "--policy", f"vllm:{server.url}", "--model", "toy", "--policy-option", "seed=1"),
            *("--tokenizer", "embedded", "--seeds", 3, "--group-size", 2, "--out", tmp_path / "run"),
        )
    assert "sampled tokens a second" in printed
    stored = list(RunFolder.open(tmp_path / "run").trajectories())
    assert sorted(one.id for one in stored) == sorted(f"{MATH}/{s}{n}" for s in range(3) for n in ("", "#1"))
    samples = (tmp_path / "run" / "samples.jsonl").read_text().splitlines()
    assert len(samples) >= 6
    run("replay", tmp_path / "run")
    with pytest.raises(EnvsdkError, match="policy"):  # `main` prints it in one line
        run("rollout", MATH, "--seeds", 3, "--out", tmp_path / "run", "--resume")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "vllm:"], "has no URL"),
        (["--policy", "vlm:http://x"], "vllm"),
        (["--policy", "mine:policy"], "Expected your own policy, as module:function, or vllm:..."),
        (["--policy", "math:sqrt", "--policy-option", "heat=1"], "No option of the policy 'math:sqrt' is named 'heat'"),
        (["--seeds", "5-8"], "seeds is '5-8'; expected their number, such as 16; or a sequence"),
        (["--policy", "vllm:http://x", "--policy-option", "temprature=1"], "has no argument 'temprature'"),
        (["--executor", "threads"], "'processes' or 'ray'"),
        (["--resume"], "--out"),
        (["--policy-timeout-s", "0"], "policy_timeout_s is 0"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(arguments: list[str], message: str) -> None:
    with pytest.raises(EnvsdkError, match=re.escape(message)):
        run("rollout", MATH, *arguments)


@pytest.mark.full
def test_episodes_run_in_worker_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from envsdk import Env, Turn\n"
        "class Mine(Env):\n"
        "    def start(self): return Turn('Go.')\n"
        "    def respond(self, reply): return Turn('Done.', reward=1.0, terminated=True)\n"
        "    def reference_reply(self): return 'ok'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    options = ("--executor", "processes", "--n-workers", 1, "--seeds", 3, "--out", tmp_path / "run", "--json")
    assert json.loads(run("rollout", "mine:Mine", *options))["mean_reward"] == 1.0


def test_without_retries_no_request_is_sent_again() -> None:
    with ModelServer(stop_logit=9.0) as server:
        server.faults += [Fault(503), Fault(503)]
        with pytest.raises(SystemExit):
            run(
                *("rollout", MATH, "--policy", f"vllm:{server.url}", "--policy-option", "check=false"),
                *("--tokenizer", "embedded", "--seeds", 2, "--max-retries", 0),
            )
        assert len(server.bodies("/inference/v1/generate")) == 2


def test_a_wrong_port_ends_a_run_at_once() -> None:
    with ModelServer() as server:
        url = server.url
    with pytest.raises(EnvsdkError, match=f"no connection to {url} can be opened"):
        run("rollout", MATH, "--policy", f"vllm:{url}", "--tokenizer", "embedded")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_an_interrupted_run_says_how_to_resume_it(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "run"
    with ModelServer(stop_logit=9.0, token_s=0.02) as server:
        command = ["rollout", MATH, "--policy", f"vllm:{server.url}", "--policy-option", "seed=1"]
        command += ["--tokenizer", "embedded", "--seeds", "3", "--group-size", "4", "--max-concurrency", "4"]
        command += ["--out", str(out)]
        with subprocess.Popen(
            [*ENVSDK, *command], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            deadline = time.monotonic() + 600
            while time.monotonic() < deadline and not (out / "trajectories.jsonl").is_file():
                time.sleep(0.01)
            while time.monotonic() < deadline and not (out / "trajectories.jsonl").read_bytes():
                time.sleep(0.01)
            server.token_s = 60.0  # what remains does not end before the signal
            os.kill(process.pid, number)
            _, printed = process.communicate(timeout=600)
        assert process.returncode == 130, printed
        assert "interrupted after" in printed
        (line,) = [line for line in printed.splitlines() if "continue with: envsdk rollout" in line]
        assert line.endswith("--resume")
        before = {one.id for one in RunFolder.open(out).trajectories()}
        assert 0 < len(before) < 12
        server.token_s = 0.0  # quickly to the end
        run(*command, "--resume")
    stored = [one.id for one in RunFolder.open(out).trajectories()]
    assert len(stored) == len(set(stored)) == 12
    assert before <= set(stored)


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "ignores_ctrl_c", "name", "shown"),
    [
        (signal.SIGINT, False, "rollout", "after 0 of 16 episodes"),
        (signal.SIGTERM, False, "eval", "completed episodes are stored in run"),
        (signal.SIGTERM, True, "rollout", "after 0 of 16 episodes"),
    ],
)
def test_an_interrupt_ends_a_run_whose_methods_hang(
    tmp_path: Path, number: signal.Signals, ignores_ctrl_c: bool, name: str, shown: str
) -> None:
    """Also in the background of a script, whose shell lets its jobs ignore Ctrl-C."""
    (tmp_path / "mine.py").write_text(
        "import pathlib, time\n"
        "from envsdk import Env, Turn\n"
        "class Hangs(Env):\n"
        "    def start(self): return Turn('Go.')\n"
        "    def respond(self, reply):\n"
        "        pathlib.Path('hangs').touch()\n"
        "        time.sleep(600)\n"
        "    def reference_reply(self): return 'ok'\n"
    )
    command = [*ENVSDK, name, "mine:Hangs", "--out", "run"]
    if ignores_ctrl_c:
        ignore = f"import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv({command[0]!r}, {command})"
        command = [sys.executable, "-c", ignore]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline and not (tmp_path / "hangs").exists():
            time.sleep(0.05)
        process.send_signal(number)
        _, printed = process.communicate(timeout=600)
    assert process.returncode == 130, printed
    assert "interrupted" in printed and shown in printed


def test_eval_prints_a_table_and_writes_a_model_card(tmp_path: Path) -> None:
    options = ("--seeds", 4, "--group-size", 2)
    good = run("eval", MATH, *options, "--out", tmp_path / "good")
    assert "pass@2" in good
    assert "1.000 ± 0.000" in (tmp_path / "good" / "evaluation.md").read_text()
    bad = run(
        *("eval", MATH, *options, "--policy", "null", "--out", tmp_path / "bad"),
        *("--against", tmp_path / "good", "--json"),
    )
    (result,) = json.loads(bad)["results"]
    assert result["comparison"]["difference"] == -1.0
    assert result["pass_all"] == {"1": 0.0, "2": 0.0}
    again = run("eval", tmp_path / "good", "--json")
    assert json.loads(again)["results"][0]["reward"] == 1.0


def test_eval_of_an_environment_with_images_uses_its_own_renderer(tmp_path: Path) -> None:
    printed = run("eval", "envsdk/GridScreen-v1", "--seeds", 2, "--out", tmp_path, "--json")
    (result,) = json.loads(printed)["results"]
    assert (result["reward"], result["failed"]) == (1.0, {})


def test_eval_scores_a_stored_run_with_another_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("rollout", MATH, "--seeds", 3, "--out", tmp_path / "run")
    (tmp_path / "my_rewards.py").write_text("def steps(trajectory):\n    return {'steps': len(trajectory.steps)}\n")
    monkeypatch.syspath_prepend(tmp_path)
    (result,) = json.loads(run("eval", tmp_path / "run", "--reward", "my_rewards:steps", "--json"))["results"]
    assert result["rewards"] == {"steps": result["steps"]}
    with pytest.raises(EnvsdkError, match="my_rewards:nothing"):
        run("eval", tmp_path / "run", "--reward", "my_rewards:nothing")


@pytest.mark.full
def test_eval_of_a_suite_with_a_server(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        return {"role": "assistant", "content": "I do not know."}

    with ModelServer("openai") as server:
        server.chat = answer
        suite = tmp_path / "small.toml"
        suite.write_text(
            f'[models.chat]\npolicy = "openai:{server.url}/v1"\n'
            'options = { model = "toy", api_key = "x", price = [1.0, 2.0] }\n'
            f'[[environments]]\nid = "{MATH}"\n'
        )
        printed = run_program("eval", suite, "--out", tmp_path / "out", "--json")
    (result,) = json.loads(printed.stdout)["results"]
    assert (result["model"], result["episodes"], result["failed"]) == ("chat", 32, {})
    assert result["price"] is not None
