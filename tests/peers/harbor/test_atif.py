"""harbor's own models and validator read the documents that we write."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from core.test_tree import trajectories
from harbor.models.trajectories import Trajectory as HarborTrajectory
from harbor.utils.trajectory_validator import TrajectoryValidator
from hypothesis import given
from trainers import test_atif
from trainers.episodes import all_kinds, kept

from envsdk import Trajectory
from envsdk.trainers.atif import to_atif
from envsdk.trainers.foreign import from_steps


def accepts(trajectory: Trajectory, compared: Counter[str] | None = None, **options: Any) -> None:
    for document in json.loads(json.dumps(to_atif(trajectory, **options))):
        validator = TrajectoryValidator()
        assert validator.validate(document), validator.get_errors()
        read = HarborTrajectory.model_validate(document)
        assert read.to_json_dict() == document  # nothing lost, nothing added
        assert read.schema_version == HarborTrajectory.model_fields["schema_version"].default
        for one in walk(read):
            refers_to_what_is_there(one)
            if compared is not None:
                compared.update(documents=1, steps=len(one.steps))


def walk(document: HarborTrajectory) -> list[HarborTrajectory]:
    return [document, *(below for child in document.subagent_trajectories or () for below in walk(child))]


def refers_to_what_is_there(document: HarborTrajectory) -> None:
    """Every sub-agent is referred to once, and every reference finds one."""
    results = [result for step in document.steps if step.observation for result in step.observation.results]
    refs = [ref.trajectory_id for result in results for ref in result.subagent_trajectory_ref or ()]
    assert sorted(refs) == sorted(child.trajectory_id for child in document.subagent_trajectories or ())


@pytest.mark.parametrize("trajectory", [*all_kinds(), test_atif.nested()], ids=lambda trajectory: trajectory.env)
def test_harbor_accepts_every_episode(trajectory: Trajectory, compared: Counter[str]):
    accepts(trajectory, compared)
    accepts(trajectory, model="qwen3", prompt_ids=False)


@given(trajectory=trajectories().map(test_atif.straightened))
def test_harbor_accepts_any_trajectory(trajectory: Trajectory):
    accepts(trajectory)


def test_harbor_accepts_a_log_of_another_system():
    accepts(from_steps([([1, 2], [3], [-1.0], 0.5), ([1, 4], [5], [-1.0], 0.5)]))


def test_token_ids_and_log_probabilities_are_where_harbor_looks_for_them(tmp_path: Path):
    file = tmp_path / "trajectory.json"
    file.write_text(json.dumps(to_atif(kept())[0]))
    assert TrajectoryValidator().validate(file)
    read = HarborTrajectory.model_validate_json(file.read_text())
    metrics = [step.metrics for step in read.steps if step.metrics is not None]
    (sample,) = kept().samples()
    assert metrics[-1].prompt_token_ids + metrics[-1].completion_token_ids == sample.tokens.tolist()
    assert [p for m in metrics for p in m.logprobs] == sample.logprobs[sample.mask].tolist()
