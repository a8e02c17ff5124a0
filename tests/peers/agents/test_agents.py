"""Agents of many frameworks, unchanged: what was sampled is trained once, and the breaks are those of the framework."""

from collections import Counter

import pytest
from agent_programs.all_cases import CASES, missing
from agent_programs.cases import Case, played
from soundness import check

EACH_CASE = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=pytest.mark.skipif(bool(missing(case)), reason=missing(case)))
        for case in CASES
    ],
)


@EACH_CASE
def test_all_that_was_sampled_is_trained_once(case: Case, compared: Counter[str]) -> None:
    run = played(case)
    trajectory = run.trajectory
    assert (trajectory.status, trajectory.error, trajectory.reward) == ("terminated", None, 1.0)
    check(trajectory)
    sampled = sum(len(reply.tokens) for asked in run.asked for reply in asked.replies)
    assert sum(int(sample.mask.sum()) for sample in trajectory.samples()) == sampled == trajectory.sampled_tokens
    compared["requests"] += len(run.asked)
    compared["sampled tokens"] += sampled


@EACH_CASE
def test_contexts_and_breaks_are_those_of_the_framework(case: Case) -> None:
    run = played(case)
    assert run.roles == case.contexts
    assert [(name, kind, detail.partition(" below ")[0]) for name, kind, detail in run.breaks] == list(case.breaks)
    assert len(run.trajectory.samples()) == case.samples
