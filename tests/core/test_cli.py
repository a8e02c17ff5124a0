"""The command line, as a user types it."""

import json
import re
from pathlib import Path

import gymnasium
import pytest
from typer.testing import CliRunner

import envsdk
from envsdk import Sample, Trajectory, errors
from envsdk.cli import app
from envsdk.trajectories.records import read_jsonl


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    options = ("--history", "compact:every=2", "--seeds", "5:8", "--max-concurrency", 1, "--out", path)
    run("rollout", "envsdk/MathChat-v0", *options)
    return path


def test_a_rollout_writes_trajectories_and_samples(folder: Path) -> None:
    trajectories = list(read_jsonl(folder / "trajectories.jsonl", Trajectory))
    samples = list(read_jsonl(folder / "samples.jsonl", Sample))
    assert [trajectory.seed for trajectory in trajectories] == [5, 6, 7]
    assert [trajectory.history for trajectory in trajectories] == [
        {"name": "compact", "every": 2, "keep_last": 0, "keep_images": None}
    ] * 3
    assert len(samples) == 9
    assert all(sample.validate().loss_weight > 0 for sample in samples)


def test_a_rollout_prints_its_figures_for_machines() -> None:
    figures = json.loads(run("rollout", "envsdk/MathChat-v0", "--history", "strip", "--seeds", 2, "--json"))
    assert figures["mean_reward"] == 1.0
    assert figures["breaks"] == {"thinking_stripped": 10}
    assert figures["stop_reasons"] == {"terminated": 2}


def test_a_rollout_counts_its_breaks_by_their_reasons() -> None:
    assert "breaks: 10 thinking_stripped\n" in run("rollout", "envsdk/MathChat-v0", "--history", "strip", "--seeds", 2)


def test_a_rollout_takes_its_tasks_from_a_file(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"secret": 7}\n{"secret": 9}\n')
    run("rollout", "envsdk/GuessNumber-v1", "--tasks", tasks, "--seeds", 2, "--out", tmp_path)
    found = {trajectory.task["secret"] for trajectory in read_jsonl(tmp_path / "trajectories.jsonl", Trajectory)}
    assert found == {7, 9}


def test_show_prints_a_conversation_with_its_rewards_and_breaks(folder: Path) -> None:
    shown = run("show", folder / "trajectories.jsonl", 2)
    assert shown.startswith("envsdk/MathChat-v0/6: terminated, reward 1")
    assert shown.count("main · user") == 7
    assert shown.count("main · assistant · step") == 6
    assert shown.count("before it compaction: ") == 2
    assert "<think>The question is: What is" in shown
    assert "(correct 0.166667)" in shown


@pytest.mark.parametrize(("file", "number"), [("trajectories.jsonl", 4), ("nowhere.jsonl", 1), ("samples.jsonl", 1)])
def test_show_refuses_what_is_not_there(folder: Path, file: str, number: int) -> None:
    with pytest.raises(errors.EnvsdkError):
        run("show", folder / file, number)


def test_the_demo_shows_every_environment_and_the_policies_that_matter_there(tmp_path: Path) -> None:
    printed = run("demo", "--seeds", 1, "--out", tmp_path)
    names = [name for name in envsdk.list_envs() if name.startswith("envsdk/")]
    played = [name for name in names if not gymnasium.spec(name).nondeterministic]
    rows = {name.removeprefix("envsdk/").rpartition("-")[0]: 1 for name in played}
    rows |= {"Calculator": 3, "LongNotes": 3, "MathChat": 4}
    rows = {name: count for name, count in rows.items() if not re.search(rf"skipped: envsdk/{name}-v\d: ", printed)}
    assert {name: len(re.findall(rf"^\W*{name}\b", printed, flags=re.MULTILINE)) for name in rows} == rows
    trajectories = list(read_jsonl(tmp_path / "trajectories.jsonl", Trajectory))
    assert len(trajectories) == sum(rows.values())
    assert "No model plays here: a script" in printed and printed.endswith(f"view {tmp_path}\n")
    assert all(trajectory.reward == pytest.approx(1.0) for trajectory in trajectories)


def test_rollout_says_how_episodes_ended_and_how_many_calls_failed() -> None:
    printed = run("rollout", "envsdk/Calculator-v1", "--seeds", 2)
    assert "ended: 2 terminated" in printed
    assert "tool errors: 0 of 8 calls" in printed
    figures = json.loads(run("rollout", "envsdk/SearchInline-v1", "--seeds", 2, "--json"))
    assert figures["metrics"] == {"searches": 4.0}


def test_show_heads_a_reply_that_went_on_with_each_of_its_steps(tmp_path: Path) -> None:
    run("rollout", "envsdk/SearchInline-v1", "--seeds", 1, "--out", tmp_path)
    shown = run("show", tmp_path / "trajectories.jsonl")
    assert [f"main · assistant · step {n}" in shown for n in (1, 2, 3)] == [True] * 3


def test_show_leaves_out_the_named_rewards_and_the_reasoning_that_a_reply_has_not(tmp_path: Path) -> None:
    run("rollout", "envsdk/GuessNumber-v1", "--seeds", 1, "--out", tmp_path)
    shown = run("show", tmp_path / "trajectories.jsonl")
    assert "assistant · step 1 · " in shown
    assert "()" not in shown
    assert "<think>" not in shown
