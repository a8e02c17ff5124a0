"""harbor's own models and validator read the documents that we write, and we read what its models write."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import soundness
from core.test_tree import trajectories
from harbor.models.trajectories import (
    Agent,
    Metrics,
    Observation,
    ObservationResult,
    Step,
    SubagentTrajectoryRef,
    ToolCall,
)
from harbor.models.trajectories import Trajectory as HarborTrajectory
from harbor.utils.trajectory_validator import TrajectoryValidator
from hypothesis import given
from trainers import test_atif
from trainers.episodes import all_kinds, kept

from envsdk import Trajectory
from envsdk.trainers.atif import from_atif, to_atif
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


def test_what_harbors_own_models_wrote_is_imported(tmp_path: Path):
    """A call, its result and a sub-agent become contexts and samples; a reply without ids becomes a note."""
    call = {"tool_call_id": "c1", "function_name": "run", "arguments": {"command": "ls"}}
    child = HarborTrajectory(
        trajectory_id="child",
        agent=Agent(name="searcher", version="1"),
        steps=[
            Step(step_id=1, source="user", message="Search."),
            Step(step_id=2, source="agent", message="Found.", metrics=ids([9], [10, 11])),
        ],
    )
    result = {
        "source_call_id": "c1",
        "content": "a.txt",
        "subagent_trajectory_ref": [SubagentTrajectoryRef(trajectory_id="child")],
    }
    written = HarborTrajectory(
        session_id="s",
        agent=Agent(name="terminus", version="1", model_name="m"),
        steps=[
            Step(step_id=1, source="user", message="List the files."),
            Step(
                step_id=2,
                source="agent",
                message="",
                reasoning_content="I look.",
                tool_calls=[ToolCall(**call)],
                observation=Observation(results=[ObservationResult(**result)]),
                metrics=ids([1, 2], [3, 4]),
                llm_call_count=1,
            ),
            Step(step_id=3, source="agent", message="There is a.txt.", metrics=ids([1, 2, 3, 4, 5], [6])),
            Step(step_id=4, source="agent", message="It has no ids."),
        ],
        subagent_trajectories=[child],
    )
    file = tmp_path / "trajectory.json"
    file.write_text(json.dumps(written.to_json_dict()))
    assert TrajectoryValidator().validate(file)
    imported = from_atif(json.loads(file.read_text()), reward=1.0)
    trajectory = imported.trajectory
    soundness.check(trajectory)
    assert (trajectory.id, trajectory.env, trajectory.reward) == ("s", "terminus", 1.0)
    assert {(log.role, log.parent is not None) for log in trajectory.contexts.values()} == {
        ("main", False),
        ("searcher", True),
    }
    trained = {sample.role: (sample.tokens.tolist(), sample.mask.tolist()) for sample in trajectory.samples()}
    assert trained["main"] == ([1, 2, 3, 4, 5, 6], [False, False, True, True, False, True])
    assert trained["searcher"] == ([9, 10, 11], [False, True, True])
    replied = trajectory.contexts["main"].messages[1]
    assert (replied.reasoning, replied.tool_calls[0].name) == ("I look.", "run")
    assert [note.kind for note in imported.notes] == ["no_ids", "no_sft"]


def ids(prompt: list[int], tokens: list[int]) -> Metrics:
    return Metrics(prompt_token_ids=prompt, completion_token_ids=tokens, logprobs=[-0.5] * len(tokens))
