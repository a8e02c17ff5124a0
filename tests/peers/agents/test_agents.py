"""Agents of many frameworks, unchanged: what the model sampled is trained once, and breaks are those of the framework."""

import pytest
from agent_programs.all_cases import CASES
from agent_programs.cases import Case, played
from soundness import check

@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_that_was_sampled_is_trained_once_and_the_breaks_are_those_of_the_framework(case: Case) -> None:
    run = played(case)
    trajectory = run.trajectory
    assert (trajectory.status, trajectory.error, trajectory.reward) == ("terminated", None, 1.0)
    check(trajectory)
    samples = trajectory.samples()
    sampled = sum(len(reply.tokens) for asked in run.asked for reply in asked.replies)
    assert sum(int(sample.mask.sum()) for sample in samples) == sampled == trajectory.sampled_tokens
    assert run.roles == case.contexts
    assert run.breaks == list(case.breaks)
    assert len(samples) == case.samples
