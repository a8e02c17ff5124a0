"""Real experiment trackers: what a run logs is what they store."""

import asyncio
import json
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trackio
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trackio import context_vars
from wandb.proto import wandb_internal_pb2

from envsdk import Action, Env, Message, Turn, errors
from envsdk.rollouts import Rollouts
from envsdk.rollouts import _trackers as trackers

Values = dict[str, float]


class Scored(Env):
    """Three steps with named rewards; one seed fails."""

    def start(self) -> Turn:
        self.said = 0
        return Turn("Go.")

    def respond(self, reply: Message) -> Turn:
        self.said += 1
        if self.episode.seed == 3:
            raise RuntimeError("no")
        return Turn("More.", reward={"right": 0.5, "short": 0.25}, terminated=self.said == 3)


async def answers(prompt: np.ndarray, **_: object) -> Action:
    await asyncio.sleep(0.1)
    return Action([5, 6], [-0.5, -0.5])


@pytest.fixture(autouse=True)
def log_often(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(trackers.Tracker, "every_s", 0.3)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    yield
    wandb.teardown()  # it reads the environment once


@pytest.fixture(autouse=True)
def nothing_fails(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert "the run continues" not in caplog.text


def run(log_to: str) -> None:
    env_options = {"tokenizer": "embedded"}
    rollouts = Rollouts(
        Scored, answers, seeds=range(8), group_size=1, max_concurrency=2, env_options=env_options, log_to=log_to
    )
    assert len(rollouts.run()) == 8


def check(log: dict[int, Values]) -> None:
    """Check the entries of a run by their steps."""
    assert len(log) >= 3
    assert list(log) == sorted(log)
    assert max(log) == 8
    last = log[8]
    assert last["rollouts/episodes"] == last["rollouts/total"] == 8
    assert last["rollouts/failures/environment"] == 1
    assert last["rollouts/steps"] == 22
    assert last["rollouts/reward_mean"] == 2.25
    assert (last["rewards/right"], last["rewards/short"]) == (1.5, 0.75)
    assert (last["stop_reasons/terminated"], last["stop_reasons/error"]) == (7, 1)
    assert 0.9 < last["rollouts/waiting/policy"] <= 1
    assert last["rollouts/lag_p99_s"] > 0
    assert last["rollouts/steps_per_second"] > 0


def of_tensorboard(folder: Path) -> dict[int, Values]:
    events = EventAccumulator(str(folder))
    events.Reload()
    log: dict[int, Values] = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            log.setdefault(event.step, {})[name] = event.value
    return dict(sorted(log.items()))


def of_leveldb(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log of LevelDB, whose first seven bytes are wandb's own."""
    position, parts = 7, b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:  # too little is left of the block for a header
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        position += 7
        parts += data[position : position + length]
        position += length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


def of_wandb(folder: Path) -> tuple[dict[int, Values], Any]:
    """Return the entries of the one run in a folder, and its record."""
    wandb.teardown()  # its own process writes the file, and may still do so after finish()
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    log: dict[int, Values] = {}
    run = None
    for data in of_leveldb(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "run":
            run = record.run
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            values = {item.key or "/".join(item.nested_key): float(item.value_json) for item in items}
            log[record.history.step.num] = values
    return log, run


def of_trackio(folder: Path, project: str) -> dict[str, dict[int, Values]]:
    """Return the entries of each run of a project."""
    database = sqlite3.connect(folder / f"{project}.db")
    logs: dict[str, dict[int, Values]] = {}
    for name, step, metrics in database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id"):
        logs.setdefault(name, {})[step] = json.loads(metrics)
    return logs


def test_tensorboard_reads_what_a_run_logged(tmp_path: Path, compared: Any) -> None:
    run(f"tensorboard:{tmp_path / 'events'}")
    log = of_tensorboard(tmp_path / "events")
    check(log)
    compared["entries"] += len(log)


def test_tensorboard_has_a_folder_of_its_own() -> None:
    run("tensorboard")
    (folder,) = Path("runs").iterdir()
    check(of_tensorboard(folder))


def test_wandb_stores_what_a_run_logged(tmp_path: Path, compared: Any) -> None:
    run("wandb:my-project/my-run")
    log, record = of_wandb(tmp_path)
    assert (record.project, record.display_name) == ("my-project", "my-run")
    check(log)
    compared["entries"] += len(log)


def test_wandb_leaves_the_run_of_a_trainer_alone(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    trainers = wandb.init(project="training", dir=str(tmp_path / "training"))
    trainers.log({"loss": 1.0}, step=1)
    run("wandb")
    assert wandb.run is trainers
    trainers.log({"loss": 0.5}, step=2)
    trainers.finish()
    log, record = of_wandb(tmp_path)
    assert record.project == "envsdk"
    check(log)
    losses, _ = of_wandb(tmp_path / "training")
    assert {step: values["loss"] for step, values in losses.items()} == {1: 1.0, 2: 0.5}


def test_wandb_without_an_account_ends_the_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(errors.ConfigError, match="wandb could not begin"):
        run("wandb")


def test_trackio_stores_what_a_run_logged(trackio_folder: Path, compared: Any) -> None:
    run("trackio:my-project/my-run")
    logs = of_trackio(trackio_folder, "my-project")
    assert list(logs) == ["my-run"]
    check(logs["my-run"])
    compared["entries"] += len(logs["my-run"])


def test_trackio_leaves_the_run_of_a_trainer_alone(trackio_folder: Path) -> None:
    trainers = trackio.init(project="training", name="train")
    run("trackio")
    assert context_vars.current_run.get() is trainers
    trainers.log({"loss": 0.5})
    trainers.finish()
    assert of_trackio(trackio_folder, "training")["train"][0]["loss"] == 0.5
    (log,) = of_trackio(trackio_folder, "envsdk").values()
    check(log)
