"""Evaluation: scores with their errors, comparisons, suites, and stored runs that are scored again."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import envsdk
from envsdk import Action, Env, Message, Trajectory, Turn, errors
from envsdk.rollouts import Rollouts
from envsdk.rollouts._run_folder import RunFolder
from envsdk.rollouts.evaluation import Evaluation, Suite, compared, evaluate, runs_of, scored
from envsdk.rollouts.scores import Score, compare, rescored
from envsdk.trajectories._scoring import DEADLINE, NO_REWARD


class Lucky(Env):
    """One step, whose reward its name and seed determine."""

    def start(self) -> Turn:
        return Turn("Go.")

    def respond(self, reply: Message) -> Turn:
        if (self.episode.seed or 0) == 3 and self.episode_id.endswith("#1"):
            raise RuntimeError("broken")
        won = (len(self.episode_id) + (self.episode.seed or 0)) % 2 == 0
        return Turn("Done.", reward={"won": float(won), "style": 0.5}, terminated=True)


@cache
def played() -> Trajectory:
    return envsdk.rollout("envsdk/MathChat-v0", "reference", seed=0)


def episodes(rewards: "Sequence[Sequence[float | str | None]]") -> list[Trajectory]:
    """Episodes with given rewards, by task; None for a failed one, and a reason for one that was not scored."""
    base = played()
    made = []
    for task, own in enumerate(rewards):
        for number, reward in enumerate(own):
            one = replace(base, id=f"t{task}#{number}", group_id=f"t{task}")
            if reward == DEADLINE:
                one = replace(one, status="error", stop_reason="error", error="DeadlineExceeded: the verifier")
                one.error_kind = "environment"
            elif reward == NO_REWARD:
                one = rescored(one, lambda _: None)
            elif isinstance(reward, str):
                one = replace(rescored(one, lambda _: None), status="truncated", stop_reason=reward)
            elif reward is None:
                one = replace(one, status="error", stop_reason="error", error="Oops: no", error_kind="environment")
            else:
                one = rescored(one, lambda _, reward=reward: reward)
            made.append(one)
    return made


def test_the_mean_is_over_tasks_with_its_standard_error() -> None:
    score = Score.of(episodes([[1, 1, 0], [0, 0], [1, None]]))
    means = np.array([2 / 3, 0, 1])
    assert score.reward == pytest.approx(means.mean())
    assert score.reward_error == pytest.approx(means.std(ddof=1) / math.sqrt(3))
    assert (score.episodes, score.tasks, score.failed) == (7, 3, {"environment": 1})


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=4))
def test_pass_at_k_is_what_drawing_k_episodes_gives(outcomes: list[list[bool]]) -> None:
    successes = [(len(one), sum(one)) for one in outcomes]
    score = Score.of(episodes([[float(value) for value in one] for one in outcomes]))
    for k in score.pass_at:
        drawn = [list(itertools.combinations(one, k)) for one in outcomes if len(one) >= k]
        assert score.pass_at[k] == pytest.approx(np.mean([np.mean([any(d) for d in ds]) for ds in drawn]))
        assert score.pass_all[k] == pytest.approx(np.mean([np.mean([all(d) for d in ds]) for ds in drawn]))
    assert score.success == pytest.approx(np.mean([c / n for n, c in successes]))


def test_a_run_of_failures_has_no_mean_and_no_zero() -> None:
    score = Score.of(episodes([[None], [None, None]]))
    assert math.isnan(score.reward)
    assert score.to_dict()["reward"] is None
    assert score.failed == {"environment": 3}
    with pytest.raises(errors.ConfigError, match="no episode"):
        Score.of([])


REWARDS = st.sampled_from([0.0, 0.25, 1.0, -1.0])
NOT_SCORED = st.sampled_from([None, DEADLINE, NO_REWARD, "idle", "shutdown", "aborted"])
OUTCOMES = st.lists(st.lists(REWARDS | NOT_SCORED, min_size=1, max_size=4), min_size=1, max_size=4)


def is_reward(value: float | str | None) -> bool:
    return isinstance(value, float)


@given(OUTCOMES)
def test_an_episode_that_was_not_scored_changes_no_mean(outcomes: list[list[float | str | None]]) -> None:
    scored = [[value for value in task if is_reward(value)] for task in outcomes]
    count = sum(map(len, scored))
    score = Score.of(episodes(outcomes), success_reward=0.5)
    assert score.scored == count
    assert score.scored + sum(score.not_scored.values()) == score.episodes == sum(map(len, outcomes))
    if not count:
        assert math.isnan(score.reward) and math.isnan(score.success) and not score.pass_at
        return
    alone = Score.of(episodes(scored), success_reward=0.5)
    for name in ("tasks", "reward", "success", "pass_at", "pass_all", "rewards"):
        assert getattr(score, name) == pytest.approx(getattr(alone, name)), name
    assert score.reward_error == pytest.approx(alone.reward_error, nan_ok=True)


@given(OUTCOMES, st.sampled_from([0.0, -1.0]))
def test_an_option_counts_what_was_not_scored_with_a_number(
    outcomes: list[list[float | str | None]], number: float
) -> None:
    filled = [[value if is_reward(value) else number for value in task] for task in outcomes]
    score, alone = Score.of(episodes(outcomes), not_scored=number), Score.of(episodes(filled))
    for name in ("tasks", "reward", "success", "pass_at", "pass_all"):
        assert getattr(score, name) == pytest.approx(getattr(alone, name)), name
    assert score.scored == sum(map(is_reward, itertools.chain(*outcomes)))
    assert score.not_scored_reward == number


@given(st.lists(st.tuples(REWARDS | NOT_SCORED, REWARDS | NOT_SCORED), min_size=2, max_size=6))
def test_a_comparison_pairs_the_tasks_that_both_runs_scored(
    pairs: list[tuple[float | str | None, float | str | None]],
) -> None:
    first, second = (episodes([[pair[number]] for pair in pairs]) for number in range(2))
    both = [(one, other) for one, other in pairs if isinstance(one, float) and isinstance(other, float)]
    if len(both) < 2:
        with pytest.raises(errors.ConfigError, match=f"{len(both)} scored tasks in common"):
            compare(first, second, resamples=50)
    else:
        found = compare(first, second, resamples=50)
        assert (found.tasks, found.left_out) == (
            len(both),
            sum(isinstance(one, float) != isinstance(other, float) for one, other in pairs),
        )
        assert found.difference == pytest.approx(np.mean([one - other for one, other in both]))
    assert compare(first, second, resamples=50, not_scored=0.0).tasks == len(pairs)


def test_the_reasons_why_episodes_were_not_scored_are_counted() -> None:
    made = episodes([[1.0, None, DEADLINE], [NO_REWARD, "idle", None]])
    score = Score.of(made)
    assert score.not_scored == {"environment error": 2, "deadline": 1, "no reward": 1, "idle": 1}
    assert [one.scored_reward for one in made] == [1.0, None, None, None, None, None]
    assert [one.reward_text for one in made[:3]] == [
        "reward 1",
        "not scored (environment error)",
        "not scored (deadline)",
    ]
    assert "not scored (deadline)" in repr(made[2])


def test_an_episode_that_reached_a_limit_without_a_reward_earned_nothing() -> None:
    (one,) = episodes([["max_steps"]])
    assert (one.scored_reward, one.not_scored_because) == (0.0, "")


@pytest.mark.parametrize("value", [math.nan, math.inf, True, "0"])
def test_what_counts_for_an_episode_that_was_not_scored_is_a_number(value: Any) -> None:
    made = episodes([[1.0], [0.0]])
    with pytest.raises(errors.ConfigError, match="not_scored is"):
        Score.of(made, not_scored=value)
    with pytest.raises(errors.ConfigError, match="not_scored is"):
        compare(made, made, not_scored=value)


def test_a_comparison_is_paired_over_tasks() -> None:
    rng = np.random.default_rng(0)
    difficulty = rng.normal(size=200)  # far larger than the difference between the runs
    first = episodes([[float(d) + 0.1 + 0.1 * float(rng.normal())] for d in difficulty])
    second = episodes([[float(d) + 0.1 * float(rng.normal())] for d in difficulty])
    found = compare(first, second)
    assert found.tasks == 200
    assert found.low < 0.1 < found.high
    assert found.high - found.low < 0.08
    assert found.p_value < 0.001
    same = compare(second, second)
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    assert compare(first, second) == found


@pytest.mark.full
def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(60):
        noise = rng.normal(size=(2, 40))
        one, other = (episodes([[float(value)] for value in values]) for values in noise)
        found = compare(one, other, resamples=500)
        covered += found.low <= 0 <= found.high
    assert 50 <= covered <= 60  # 57 expected


def test_a_stored_episode_is_scored_again_without_sampling() -> None:
    (one,) = episodes([[1.0]])
    again = rescored(one, lambda trajectory: {"length": len(trajectory.steps), "style": 0.25})
    assert again.reward == len(one.steps) + 0.25
    assert again.steps[-1].rewards == {"length": len(one.steps), "style": 0.25}
    assert one.reward == 1.0
    assert Trajectory.from_json(again.to_json()).reward == again.reward
    assert [sample.tokens.tolist() for sample in again.samples()] == [s.tokens.tolist() for s in one.samples()]
    assert not rescored(one, lambda _: None).is_scored("main")
    with pytest.raises(errors.ConfigError, match="the reward function returned 'good'"):
        rescored(one, lambda _: "good")  # type: ignore[arg-type, return-value]


SUITE = """
name = "small"
seeds = 4
group_size = 2

[models.reference]
policy = "reference"

[models.null]
policy = "null"

[[environments]]
id = "envsdk/MathChat-v0"
name = "math"
options = { history = "strip" }

[[environments]]
id = "envsdk/GuessNumber-v1"
seeds = 2
"""


def test_a_suite_rolls_out_each_model_in_each_environment(tmp_path: Path) -> None:
    file = tmp_path / "suite.toml"
    file.write_text(SUITE)
    out = tmp_path / "out"
    evaluation = evaluate(Suite.read(file), out)
    found = {(one.env, one.model): one.score for one in evaluation.results}
    assert {key: score.episodes for key, score in found.items()} == {
        ("math", "reference"): 8,
        ("math", "null"): 8,
        ("envsdk/GuessNumber-v1", "reference"): 4,
        ("envsdk/GuessNumber-v1", "null"): 4,
    }
    assert found["math", "reference"].reward == 1.0
    assert found["math", "reference"].pass_all == {1: 1.0, 2: 1.0}
    assert found["math", "null"].success == 0.0
    assert json.loads((out / "evaluation.json").read_text())["results"][0]["pass_at"] == {"1": 1.0, "2": 1.0}
    assert "| math | reference | 8 | 0 | 1.000 ± 0.000 |" in (out / "evaluation.md").read_text()
    with pytest.raises(errors.RunFolderError):
        evaluate(Suite.read(file), out)
    assert evaluate(Suite.read(file), out, resume=True).results[0].score == found["math", "reference"]
    again = scored(out)
    assert {one.score.reward for one in again.results if one.model == "reference"} == {1.0}
    assert dict(runs_of(out)).keys() == found.keys()


def test_a_suite_in_yaml_is_the_same(tmp_path: Path) -> None:
    toml, yaml = tmp_path / "suite.toml", tmp_path / "suite.yaml"
    toml.write_text(SUITE)
    yaml.write_text(
        "name: small\nseeds: 4\ngroup_size: 2\n"
        "models: {reference: {policy: reference}, 'null': {policy: 'null'}}\n"
        "environments:\n- {id: envsdk/MathChat-v0, name: math, options: {history: strip}}\n"
        "- {id: envsdk/GuessNumber-v1, seeds: 2}\n"
    )
    assert Suite.read(yaml) == Suite.read(toml)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "name = ", "cannot be read"),
        ("a.toml", "seeds = 1", "environments"),
        ("a.toml", SUITE + "\n[models.x]\npolice = 'null'", "police"),
        ("a.yaml", "{", "not YAML"),
        ("a.txt", "", "ends in .toml"),
    ],
)
def test_a_suite_that_is_wrong_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(errors.ConfigError, match=message):
        Suite.read(tmp_path / name)


def test_an_evaluation_is_compared_with_a_run(tmp_path: Path) -> None:
    file = tmp_path / "suite.toml"
    file.write_text(SUITE.replace("group_size = 2", "group_size = 1"))
    out, run = tmp_path / "out", tmp_path / "run"
    Rollouts("envsdk/MathChat-v0", "null", seeds=range(4), group_size=1, out=run).run()
    evaluate(Suite.read(file), out)
    evaluation = evaluate(Suite.read(file), tmp_path / "other", against=out)
    assert {one.comparison.difference for one in evaluation.results if one.comparison} == {0.0}
    assert sum(one.comparison is not None for one in evaluation.results) == 4
    assert "+0.000 [+0.000, +0.000]" in evaluation.to_markdown()


def test_hostile_names_stay_in_their_cell(tmp_path: Path) -> None:
    score = Score.of(episodes([[1.0]]))
    from envsdk.rollouts.evaluation import EvaluationResult

    evaluation = Evaluation("x\x1b[31m|y", (EvaluationResult("a|b\n# c", "m\x1b]0;t\x07", score),))
    lines = evaluation.to_markdown().splitlines()
    assert "\x1b" not in evaluation.to_markdown()
    assert sum(line.startswith("#") for line in lines) == 1
    assert len([line for line in lines if line.startswith("|")]) == 3


def test_named_rewards_and_failures_are_reported(tmp_path: Path) -> None:
    Rollouts(Lucky, "random", seeds=range(6), group_size=2, out=tmp_path).run()
    (result,) = scored(tmp_path).results
    assert result.score.rewards["style"] == 0.5
    assert result.score.failed == {"environment": 1}
    assert result.score.episodes == len(list(RunFolder.open(tmp_path).trajectories())) == 12
    better = scored(tmp_path, lambda trajectory: 2.0, success=2.0)
    assert better.results[0].score.success == 1.0
    markdown = scored(tmp_path).to_markdown()
    assert "scored 11 of 12, not scored 1 environment error" in markdown
    counted = scored(tmp_path, not_scored=0.0)
    assert counted.results[0].score.reward < result.score.reward
    assert "not scored 1 environment error, counted as 0" in counted.to_markdown()


def test_a_comparison_with_another_reward_scores_both_runs_again(tmp_path: Path) -> None:
    for name, policy in (("one", "reference"), ("other", "null")):
        Rollouts("envsdk/MathChat-v0", policy, seeds=range(4), group_size=1, out=tmp_path / name).run()
    runs = dict(runs_of(tmp_path / "one"))

    def same(_: Trajectory) -> float:
        return 0.5

    again = compared(scored(tmp_path / "one", same), runs, tmp_path / "other", reward=same)
    assert again.results[0].comparison is not None
    assert (again.results[0].comparison.difference, again.results[0].comparison.tasks) == (0.0, 4)
    assert "compared over 4 tasks that both runs scored" in again.to_markdown()


class Connected:
    """A policy with a connection, which an evaluation makes for itself."""

    tokenizer = "any"
    n_closed = 0

    async def __call__(self, prompt: Any, *, stop_token_ids: Sequence[int], **_: Any) -> Action:
        return Action([stop_token_ids[0]])

    async def aclose(self) -> None:
        Connected.n_closed += 1


def test_an_evaluation_closes_the_policies_that_it_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envsdk.rollouts.evaluation.policy_of", lambda *_, **__: Connected())
    suite = Suite.model_validate(
        {"environments": [{"id": "envsdk/GuessNumber-v1"}], "models": {"a": {"policy": "vllm:x"}}, "seeds": 1}
    )
    evaluate(suite, tmp_path)
    assert Connected.n_closed == 1
