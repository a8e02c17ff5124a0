"""The drawing of contexts in text: every step once, lanes that fit, and what a record holds as data."""

import pytest
from typer.testing import CliRunner

import envsdk
from envsdk.cli import app
from envsdk.trajectories._trajectory import Trajectory
from envsdk.trajectories.records import write_jsonl
from envsdk.viewer._drawing import drawing
from envsdk.viewer._episodes import episode

NOTES = envsdk.make("envsdk/LongNotes-v1", history={"name": "summarize", "threshold": 2500})
EPISODES = {
    "rewrites": envsdk.rollout(NOTES, "reference", seed=0),
    "handoffs": envsdk.rollout("envsdk/Delegate-v1", "reference", seed=1),
    "one step": envsdk.rollout("envsdk/Calculator-v1", "random", seed=2),
    "thinking": envsdk.rollout(envsdk.make("envsdk/MathChat-v0", history="strip"), "reference", seed=0),
}


@pytest.mark.parametrize("trajectory", EPISODES.values(), ids=EPISODES)
def test_a_drawing_has_each_step_once_and_each_break_at_its_step(trajectory: Trajectory):
    rows = drawing(episode(trajectory))
    assert [step for row in rows if row.kind == "steps" for step in row.steps] == [*range(len(trajectory.steps))]
    rewrites = [row.steps[0] for row in rows if row.kind == "rewrite"]
    declared = [n for n, step in enumerate(trajectory.steps) if step.break_ and step.break_.kind == "rewrite"]
    assert rewrites == declared
    assert sum(row.lanes.count("●") for row in rows) == sum(row.kind == "steps" for row in rows)
    assert len({len(row.lanes) for row in rows}) == 1


def test_handoffs_open_lanes_and_returns_close_them():
    rows = drawing(episode(EPISODES["handoffs"]))
    shown = [f"{row.lanes} {row.text}" for row in rows]
    assert shown[0].startswith("●       step 1 · main · observed ")
    assert shown[1] == "├─╮     handoff to main/researcher-1"
    assert shown[2].startswith("│ ●     steps 2 to 5 · main/researcher-1 · ")
    assert shown[3] == "├─┼─╮   handoff to main/researcher-2"
    assert "├─╯ │ │ main/researcher-1 returns" in shown
    assert "├───╯ │ main/researcher-2 returns" in shown
    assert "├─╮     handoff to main/researcher-4" in shown  # in the lane that became free


def test_a_rewrite_has_its_reason_and_its_cost():
    row = next(row for row in drawing(episode(EPISODES["rewrites"])) if row.kind == "rewrite")
    break_ = next(own for own in EPISODES["rewrites"].breaks if own.reason == "summary")
    assert row.text.startswith(f"summary: {break_.kept:,} kept, {break_.dropped:,} dropped, ")


def test_names_of_contexts_have_no_effect_on_a_terminal():
    shown = episode(EPISODES["one step"])
    steps = [{**step, "context": "\x1b[31m\u202e"} for step in shown["steps"]]
    rows = drawing({**shown, "steps": steps, "stop_reason": "a\nb"})
    assert not any(set("\x1b\u202e\n") & set(row.text) for row in rows)


def test_an_episode_that_was_not_scored_has_no_reward():
    shown = {**episode(EPISODES["one step"]), "reward": None, "not_scored": "deadline"}
    assert drawing(shown)[-1].text.endswith("not scored (deadline)")


def test_show_prints_the_drawing(tmp_path):
    write_jsonl(tmp_path / "trajectories.jsonl", [EPISODES["handoffs"]])
    printed = CliRunner().invoke(app, ["show", str(tmp_path), "--contexts"])
    assert printed.exit_code == 0
    assert "├─╮     handoff to main/researcher-1" in printed.output
