"""Environments as tasks of Harbor."""

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import envsdk
from envsdk.cli import app
from envsdk.errors import ConfigError
from envsdk.gateway import _harbor_client, _harbor_session
from envsdk.gateway._harbor_export import export_tasks
from envsdk.gateway._harbor_folders import read_folder
from envsdk.gateway._harbor_session import Session, read_reply, replies_of

ENVS = ("envsdk/GuessNumber-v1", "envsdk/Calculator-v1", "envsdk/MathChat-v0")


def exported(out: Path, env: str, **options: Any) -> Path:
    return export_tasks(env, options, [3], out, image="python:3.12-slim", package="envsdk")[0]


def solution_of(path: Path) -> list[str]:
    """The messages that the solution sends."""
    import shlex

    lines = (path / "solution" / "solve.sh").read_text().split("envsdk-env send ")[1:]
    return [shlex.split(line)[0] for line in lines]


@pytest.mark.parametrize("env", ENVS)
def test_a_task_is_valid_and_its_solution_earns_what_the_reference_policy_earns(tmp_path: Path, env: str):
    path = exported(tmp_path, env)
    task = read_folder(path, {}, offline=False)
    episode = json.loads((path / "tests" / "episode.json").read_text())
    session = Session(episode)
    assert session.shown() in task.instruction
    for reply in solution_of(path):
        assert not session.is_over
        session.send(read_reply(reply))
    expected = envsdk.rollout(envsdk.make(env), "reference", seed=3).reward
    assert session.is_over and math.isclose(session.reward, expected or 0.0)


def test_the_tests_play_stored_replies_again_from_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = exported(tmp_path, "envsdk/GuessNumber-v1")
    replies = tmp_path / "replies.jsonl"
    monkeypatch.setattr(_harbor_session, "REWARD", tmp_path / "reward.txt")
    for stored, reward in ((solution_of(path), 1.0), ([], 0.0), (solution_of(path)[:1], 0.0)):
        replies.write_text("".join(f"{line}\n" for line in stored))
        _harbor_session.grade(json.loads((path / "tests" / "episode.json").read_text()), replies)
        assert float((tmp_path / "reward.txt").read_text()) == reward


def test_a_served_episode_answers_the_client_and_survives_hostile_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import socket

    address = str(tmp_path / "socket")
    monkeypatch.setattr(_harbor_session, "ADDRESS", address)
    monkeypatch.setattr(_harbor_client, "ADDRESS", address)
    path, stored = exported(tmp_path, "envsdk/GuessNumber-v1"), tmp_path / "replies.jsonl"
    episode = json.loads((path / "tests" / "episode.json").read_text())
    threading.Thread(target=_harbor_session.serve, args=(episode, stored), daemon=True).start()
    while not Path(address).exists():
        pass

    def asked(data: bytes) -> str:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return connection.makefile().read()

    assert "Guess it." in asked(b"null")
    for bad in (
        b"",
        b"{",
        b"[" * 100_000,
        b'{"role": "user", "content": "x"}',
        b"\xff",
        b"3",
    ):
        assert asked(bad).startswith("The reply cannot be read")
    with pytest.raises(OSError):  # it is not read to its end
        asked(b'"' + b"a" * 2**23 + b'"')
    assert asked(json.dumps({"role": "assistant", "content": "1"}).encode()).endswith("Higher.")
    for reply in solution_of(path):
        answer = asked(reply.encode())
    assert answer.endswith("[The episode is over.]") and asked(reply.encode()) == "[The episode is over.]"
    assert len(replies_of(stored, is_answer=False)) == 1 + len(solution_of(path))


@pytest.mark.parametrize("env", ["envsdk/Delegate-v1", "envsdk/ChartReader-v0", "envsdk/KuhnPoker-v1"])
def test_what_cannot_be_exported_is_refused(tmp_path: Path, env: str):
    with pytest.raises(ConfigError, match="exported"):
        exported(tmp_path, env)


def test_an_environment_with_one_step_takes_its_answer_from_a_file(tmp_path: Path):
    rows = [{"question": "What is 2 + 3?", "answer": "5"}]
    path = exported(tmp_path, "envsdk.adapters:Dataset", tasks=rows, score="operator:eq")
    task = read_folder(path, {}, offline=False)
    assert task.has_own_tests and task.artifacts[1:] == ("/app/answer.txt",)
    assert task.instruction.startswith("What is 2 + 3?")
    assert "'%s\\n' 5 > /app/answer.txt" in (path / "solution" / "solve.sh").read_text()
    session = Session(json.loads((path / "tests" / "episode.json").read_text()))
    answer = tmp_path / "answer.txt"
    answer.write_text("5\n")
    (reply,) = replies_of(answer, is_answer=True)
    session.send(reply)
    assert session.reward == 1.0


def test_the_command_line_writes_a_folder_for_each_seed(tmp_path: Path):
    words = ["export", "harbor", "envsdk/GuessNumber-v1", "--seeds", "5:7", "--out", str(tmp_path), "--package", ""]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["guessnumber-v1-5", "guessnumber-v1-6"]
    assert "pip" not in (tmp_path / "guessnumber-v1-5" / "environment" / "Dockerfile").read_text()
