"""Runs are read line by line, also while they are written, and a damaged line leaves the rest usable."""

import asyncio
from collections import Counter
from pathlib import Path

import numpy as np
import orjson
import pytest

import envsdk
from envsdk import get_renderer
from envsdk.errors import ConfigError, InvalidRecord
from envsdk.rollouts import Rollouts, RunFolder, rollout_many
from envsdk.trajectories.records import write_jsonl
from envsdk.viewer._rows import read_row
from envsdk.viewer._sources import Source

EPISODES = [
    *rollout_many("envsdk/Delegate-v1", "reference", seeds=range(2)),
    *rollout_many("envsdk/MathChat-v0", "random", seeds=range(2)),
]


def folder(path: Path, *, compress: bool = False) -> RunFolder:
    renderers = {"main": get_renderer("qwen3", "embedded")}
    configuration = {"env": "envsdk/MathChat-v0", "policy": {"class": "a.b:VLLM", "model": "Qwen3-8B"}, "episodes": 4}
    return RunFolder.create(path, configuration, renderers, compress=compress)


def test_a_row_has_the_figures_of_its_trajectory():
    for number, trajectory in enumerate(EPISODES, start=1):
        row = read_row(number, trajectory.to_json())
        assert (row.line, row.id, row.status, row.group_id) == (
            *(number, trajectory.id, trajectory.status),
            trajectory.group_id,
        )
        assert row.reward == trajectory.reward
        assert row.breaks == Counter(break_.reason for break_ in trajectory.breaks)
        assert (row.observed_tokens, row.sampled_tokens) == (trajectory.observed_tokens, trajectory.sampled_tokens)
        assert (row.steps, row.contexts) == (len(trajectory.steps), len(trajectory.contexts))
        assert orjson.loads(orjson.dumps(row))["roles"] == [*row.roles]


def test_a_row_counts_the_errors_of_replies():
    env = envsdk.make("envsdk/Calculator-v1")
    env.reset(seed=0)
    while env.trajectory is None:
        env.step(np.array([4084, 5], dtype=np.int32))
    trajectory = env.trajectory
    row = read_row(1, trajectory.to_json())
    assert row.reply_errors == sum(len(m.errors) for m in trajectory.contexts["main"].messages) > 0


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "zst"])
def test_new_lines_of_a_run_in_progress_appear(tmp_path, compress):
    with folder(tmp_path / "run", compress=compress) as run:
        source = Source(tmp_path / "run")
        assert source.refresh() == 0
        assert source.info.is_complete is False
        for trajectory in EPISODES:
            asyncio.run(run.append(trajectory))
            assert source.refresh() == 1
        assert source.refresh() == 0
        run.close(is_complete=True)
    assert [row.id for row in source.rows] == [trajectory.id for trajectory in EPISODES]
    assert source.trajectory(2).to_json() == EPISODES[1].to_json()
    assert (source.info.is_complete, source.info.policy, source.info.model) == (True, "VLLM", "Qwen3-8B")
    assert source.tokenizer_of(EPISODES[0], "main") is not None


def test_a_row_has_the_time_that_the_run_noted(tmp_path):
    with folder(tmp_path / "run") as run:
        source = Source(tmp_path / "run")
        for number, trajectory in enumerate(EPISODES):
            asyncio.run(run.append(trajectory, 0.5 + number))
            source.refresh()
    assert [row.duration_s for row in source.rows] == [0.5, 1.5, 2.5, 3.5]
    assert all(row.ended.endswith("+00:00") for row in source.rows)
    (tmp_path / "run" / "times.jsonl").write_bytes(b'{"id": "damaged')
    source = Source(tmp_path / "run")
    source.refresh()
    assert [(row.ended, row.duration_s) for row in source.rows] == [("", None)] * 4


def test_a_run_notes_how_long_its_episodes_took(tmp_path):
    Rollouts("envsdk/MathChat-v0", "reference", seeds=[0, 1], out=tmp_path / "run").run()
    source = Source(tmp_path / "run")
    source.refresh()
    assert all(row.duration_s > 0 for row in source.rows)


def test_a_line_that_is_being_written_is_read_once_it_is_whole(tmp_path):
    file, line = tmp_path / "some.jsonl", EPISODES[0].to_json() + b"\n"
    file.write_bytes(line + line[:100])
    source = Source(file)
    assert (source.refresh(), source.unread_bytes) == (1, 100)
    file.write_bytes(line + line)
    assert (source.refresh(), source.unread_bytes) == (1, 0)


def test_a_damaged_line_is_a_row_with_the_reason_and_the_rest_works(tmp_path):
    lines = [trajectory.to_json() for trajectory in EPISODES]
    lines[1] = lines[1][:500]
    lines[2] = lines[2].replace(b'"status":"', b'"statuz":"')
    file = tmp_path / "trajectories.jsonl"
    file.write_bytes(b"\n".join([*lines, b"\x00\xff", b"[]", b"null", b""]))
    source = Source(tmp_path)
    source.refresh()
    assert [row.status for row in source.rows[:4]] == ["terminated", "damaged", "damaged", EPISODES[3].status]
    assert "not JSON" in source.rows[1].damage
    assert "statuz" in source.rows[2].damage
    assert all(row.is_damaged for row in source.rows[4:])
    assert source.trajectory(4).id == EPISODES[3].id
    with pytest.raises(InvalidRecord, match=r"line 3: .*statuz"):
        source.trajectory(3)
    with pytest.raises(InvalidRecord, match="no line 8; expected 1 to 7"):
        source.trajectory(8)


def test_a_damaged_frame_ends_a_compressed_run_with_a_row(tmp_path):
    with folder(tmp_path / "run", compress=True) as run:
        for trajectory in EPISODES[:3]:
            asyncio.run(run.append(trajectory))
    file = tmp_path / "run" / "trajectories.jsonl.zst"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    source = Source(tmp_path / "run")
    source.refresh()
    assert source.rows[0].id == EPISODES[0].id
    assert source.rows[-1].is_damaged
    assert "what follows cannot be read" in source.rows[-1].damage
    assert source.refresh() == 0


def test_a_file_that_was_replaced_is_read_from_its_start(tmp_path):
    file = tmp_path / "trajectories.jsonl"
    write_jsonl(file, EPISODES)
    source = Source(file)
    source.refresh()
    write_jsonl(file, EPISODES[1:2])
    source.refresh()
    assert [row.id for row in source.rows] == [EPISODES[1].id]
    assert source.generation == 1


def test_without_its_tokenizer_an_episode_has_none(tmp_path):
    write_jsonl(tmp_path / "trajectories.jsonl", EPISODES)
    assert Source(tmp_path).tokenizer_of(EPISODES[0], "main") is None


@pytest.mark.parametrize("name", ["missing", "."])
def test_what_is_not_a_run_is_refused_with_what_was_expected(tmp_path, name):
    with pytest.raises(ConfigError, match="expected a run folder"):
        Source(tmp_path / name)


def test_samples_of_an_episode_are_found_by_its_id(tmp_path):
    write_jsonl(tmp_path / "trajectories.jsonl", EPISODES)
    samples = [sample for trajectory in EPISODES for sample in trajectory.samples()]
    write_jsonl(tmp_path / "samples.jsonl", samples)
    source = Source(tmp_path)
    for trajectory in EPISODES:
        assert source.sample_lines(trajectory.id) == [sample.to_json() for sample in trajectory.samples()]
    assert source.sample_lines("another") == []
