"""The figures of a report are those that one computes by hand, or that other parts of the project compute."""

import gc
import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from made_runs import episode, episodes, store

import envsdk
from envsdk import Trajectory
from envsdk.credit import add_reference
from envsdk.diagnostics import cost, kl
from envsdk.errors import ConfigError
from envsdk.rollouts import rollout_many
from envsdk.rollouts._stored_run import StoredRun
from envsdk.rollouts.evaluation import Evaluation, EvaluationResult
from envsdk.rollouts.scores import Score
from envsdk.trajectories.records import write_jsonl
from envsdk.viewer._sources import Source
from envsdk.viewer.reporting import as_markdown, report
from envsdk.viewer.reporting._report import Collector


def test_the_mean_reward_is_over_tasks_and_leaves_out_what_was_not_scored(tmp_path: Path):
    made = episodes([[1.0, 1.0, 1.0], [0.0], [None], ["Oops: no"]])
    (run,) = report(store(tmp_path / "run", made)).runs
    assert run.mean_reward is not None
    assert (run.mean_reward.mean, run.mean_reward.tasks, run.mean_reward.episodes) == (0.5, 2, 4)
    assert run.reward is not None
    assert (run.reward.count, run.reward.mean, run.reward.counts) == (4, 0.75, (1, 3))
    assert (run.episodes, run.failed, run.not_scored) == (6, 1, 1)
    assert run.not_scored_because == {"environment error": 1, "no reward": 1}


def test_named_rewards_have_the_mean_over_the_episodes_that_have_them(tmp_path: Path):
    made = episodes([[{"correct": 1.0, "style": 0.5}], [{"correct": 0.0}], [None]])
    (run,) = report(store(tmp_path / "run", made)).runs
    found = {name: (own.count, own.mean, own.minimum, own.maximum) for name, own in run.rewards.items()}
    assert found == {"correct": (2, 0.5, 0.0, 1.0), "style": (1, 0.5, 0.5, 0.5)}


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("envsdk/MathChat-v0", {"history": "strip"}),
        ("envsdk/LongNotes-v1", {"history": {"name": "summarize", "threshold": 2500}}),
        ("envsdk/Delegate-v1", {}),
        ("envsdk/GuessNumber-v1", {}),
    ],
)
def test_lengths_breaks_and_costs_are_those_of_the_episodes(tmp_path: Path, env: str, options: dict[str, object]):
    made = rollout_many(partial(envsdk.make, env, **options), "reference", seeds=range(2))
    (run,) = report(store(tmp_path / "run", made)).runs
    assert run.steps is not None and run.sampled_tokens is not None and run.observed_tokens is not None
    assert run.steps.mean * 2 == sum(len(one.steps) for one in made)
    assert run.sampled_tokens.maximum == max(one.sampled_tokens for one in made)
    assert run.observed_tokens.minimum == min(one.observed_tokens for one in made)
    assert [*run.costs.values()] == [cost(made)]
    assert [history.partition(":")[0] for history in run.costs] == [made[0].history["name"]]
    counts = Counter(break_.reason for one in made for break_ in one.breaks)
    assert {reason: own.breaks for reason, own in run.breaks.items()} == counts
    assert run.stop_reasons == Counter(one.stop_reason for one in made)
    assert run.envs == {env: 2}


def test_the_cost_is_that_of_each_history_policy(tmp_path: Path):
    made = {
        name: rollout_many(partial(envsdk.make, "envsdk/MathChat-v0", history=name), "reference", seeds=range(2))
        for name in ("keep", "strip")
    }
    write_jsonl(tmp_path / "trajectories.jsonl", [one for own in made.values() for one in own])
    (run,) = report(tmp_path).runs
    assert run.costs == {name: cost(own) for name, own in made.items()}


def test_images_and_their_tokens_are_shown_where_costs_are(tmp_path: Path):
    made = rollout_many("envsdk/GridScreen-v1", "reference", seeds=range(2))
    path = store(tmp_path / "run", made)
    found = report(path)
    own = cost(made)
    sizes = [placed.stop - placed.start for one in made for log in one.contexts.values() for placed in log.media]
    assert (own.images, own.image_tokens) == (len(sizes), sum(sizes))
    (line,) = [line for line in as_markdown(found).splitlines() if "image tokens" in line]
    assert line.endswith("| images | image tokens |")
    score = Score.of(made)
    assert (2 * score.images, 2 * score.image_tokens) == (len(sizes), sum(sizes))
    assert f"{score.image_tokens:.0f} of them of" in next(
        Evaluation("x", (EvaluationResult("e", "m", score),)).details()
    )
    rows = [row for row, _ in Source(path).episodes()]
    assert (sum(row.images for row in rows), sum(row.image_tokens for row in rows)) == (own.images, own.image_tokens)


def test_a_run_without_images_has_no_columns_of_images(tmp_path: Path):
    made = rollout_many("envsdk/MathChat-v0", "reference", seeds=range(2))
    assert "image tokens" not in as_markdown(report(store(tmp_path / "run", made)))
    assert "image" not in next(Evaluation("x", (EvaluationResult("e", "m", Score.of(made)),)).details())


def test_the_cost_of_two_sets_is_the_sum_of_their_costs():
    one = rollout_many("envsdk/Delegate-v1", "reference", seeds=range(2))
    other = rollout_many(
        partial(envsdk.make, "envsdk/LongNotes-v1", history="budget:max_tokens=2500"), "reference", seeds=range(1)
    )
    assert cost(one) + cost(other) == cost([*one, *other])


def test_the_divergence_is_that_of_the_samples(tmp_path: Path):
    made = rollout_many("envsdk/MathChat-v0", "random", seeds=range(3))
    folder = store(tmp_path / "run", made)
    assert "no samples.jsonl" in report(folder).runs[0].no_divergence_because
    samples = [sample for one in made for sample in one.samples()]
    samples = [replace(sample, logprobs=np.where(sample.mask, -1.0, 0.0).astype(np.float32)) for sample in samples]
    write_jsonl(folder / "samples.jsonl", samples)
    assert "add_reference" in report(folder).runs[0].no_divergence_because
    rng = np.random.default_rng(0)
    with_reference = add_reference(samples, lambda tokens: -rng.uniform(0.5, 2.5, len(tokens)))
    write_jsonl(folder / "samples.jsonl", with_reference)
    found, expected = (
        report(folder).runs[0].divergence,
        kl(with_reference, [s.reference_logprobs for s in with_reference]),
    )
    assert found is not None
    assert (found.samples, found.tokens, found.outliers) == (3, expected.all.tokens, expected.all.outliers)
    assert (found.k1, found.k2, found.k3) == pytest.approx((expected.all.k1, expected.all.k2, expected.all.k3))


def test_a_constant_difference_has_the_divergence_that_one_computes_by_hand(tmp_path: Path):
    (one,) = rollout_many("envsdk/GuessNumber-v1", "random", seeds=range(1))
    (sample,) = one.samples()
    sampler = np.where(sample.mask, -1.0, 0.0).astype(np.float32)
    own = replace(sample, logprobs=sampler, reference_logprobs=np.where(sample.mask, -2.0, 0.0).astype(np.float32))
    folder = store(tmp_path / "run", [one])
    write_jsonl(folder / "samples.jsonl", [own])
    found = report(folder).runs[0].divergence
    assert found is not None
    assert (found.k1, found.k2) == (1.0, 0.5)
    assert found.k3 == pytest.approx(math.exp(-1))
    assert found.outliers == found.tokens == sample.mask.sum()


def test_failures_are_counted_by_whose_error_it_was_and_by_class(tmp_path: Path):
    made = [
        *episodes([["KeyError: 'a'", "KeyError: 'b'", "TimeoutError: slow", 1.0]]),
        replace(episode("u", 0, "KeyError: 'c'"), error_kind="policy"),
        replace(episode("v", 0, "no colon"), error_kind=None),
    ]
    (run,) = report(store(tmp_path / "run", made)).runs
    assert [(one.kind, one.error, one.count, one.message) for one in run.failures] == [
        ("environment", "KeyError", 2, "KeyError: 'a'"),
        ("environment", "TimeoutError", 1, "TimeoutError: slow"),
        ("policy", "KeyError", 1, "KeyError: 'c'"),
        ("unknown", "no colon", 1, "no colon"),
    ]
    assert run.failures[0].example.line == 1
    assert (run.stop_reasons["error"], run.failed) == (5, 5)


def test_the_best_and_worst_episodes_lead_to_the_viewer_and_to_the_command_that_prints_them(tmp_path: Path):
    made = episodes([[0.5], [1.0], [0.0], [0.7], ["Oops: no"], [None]])
    folder = store(tmp_path / "a run", made)
    (run,) = report(folder, most=2).runs
    assert [(one.id, one.reward) for one in run.best] == [("t1#0", 1.0), ("t3#0", 0.7)]
    assert [(one.id, one.reward) for one in run.worst] == [("t2#0", 0.0), ("t0#0", 0.5)]
    assert run.best[0].url == "http://127.0.0.1:8123/#/run/0/2"
    assert run.best[0].command == f"envsdk show '{folder}' 't1#0'"
    found = report(folder, viewer="view.html", most=1)
    assert (found.runs[0].best[0].url, found.viewer) == ("view.html#/run/0/2", "")


def test_equal_rewards_have_no_worst_episode(tmp_path: Path):
    (run,) = report(store(tmp_path / "run", episodes([[1.0]] * 5)), most=2).runs
    assert (len(run.best), run.worst) == (2, ())


@pytest.mark.parametrize("viewer", ["javascript:alert(1)", "", "http://a/#x", "a\nb"])
def test_a_viewer_that_is_no_address_is_refused(tmp_path: Path, viewer: str):
    with pytest.raises(ConfigError, match="viewer is"):
        report(store(tmp_path / "run", episodes([[1.0]])), viewer=viewer)


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "zst"])
def test_damaged_lines_are_named_and_the_rest_is_reported(tmp_path: Path, compress: bool):
    folder = store(tmp_path / "run", episodes([[1.0], [0.0]]), compress=compress)
    if compress:
        file = folder / "trajectories.jsonl.zst"
        first = len(file.read_bytes()) // 2
        file.write_bytes(file.read_bytes() + file.read_bytes()[:first].replace(b"\x00", b"\x01") + file.read_bytes())
    else:
        lines = (folder / "trajectories.jsonl").read_bytes().splitlines(keepends=True)
        wrong = lines[1].replace(b'"kept"', b'"kpet"').replace(b'"status":"terminated"', b'"status":"odd"')
        (folder / "trajectories.jsonl").write_bytes(b"".join([lines[0], b"{\n", wrong, lines[1], b'{"cut off']))
    (run,) = report(folder).runs
    assert run.episodes == 2
    assert run.mean_reward is not None and run.mean_reward.mean == 0.5
    assert [one.line for one in run.damaged] == ([3] if compress else [2, 3, 5])  # the last row: the file was changed
    assert all(one.why for one in run.damaged)
    assert compress or run.unread_bytes == len(b'{"cut off')


def test_an_empty_run_has_no_figures(tmp_path: Path):
    (run,) = report(store(tmp_path / "run", [])).runs
    assert (run.episodes, run.mean_reward, run.reward, run.steps, run.costs) == (0, None, None, None, {})


def test_a_run_in_which_everything_failed_has_no_reward(tmp_path: Path):
    (run,) = report(store(tmp_path / "run", episodes([["Oops: no"], ["Oops: no"]]))).runs
    assert (run.failed, run.mean_reward, run.reward, run.steps, run.best) == (2, None, None, None, ())
    (own,) = run.costs.values()
    assert (own.failed, own.trained) == (2, 0)


def test_one_episode_has_a_mean_without_an_interval(tmp_path: Path):
    (run,) = report(store(tmp_path / "run", episodes([[0.25]]))).runs
    assert run.mean_reward is not None
    assert (run.mean_reward.mean, run.mean_reward.low, run.mean_reward.high) == (0.25, None, None)


def test_the_interval_of_the_mean_is_that_of_the_tasks_and_not_of_the_episodes(tmp_path: Path):
    rewards = [[float(value)] for value in np.random.default_rng(0).normal(size=50)]
    widths: list[float] = []
    for copies in (1, 3):
        found = report(store(tmp_path / str(copies), episodes([own * copies for own in rewards]))).runs[0].mean_reward
        assert found is not None and found.low is not None and found.high is not None
        widths.append(found.high - found.low)
    assert widths[0] == pytest.approx(widths[1])
    assert widths[0] == pytest.approx(2 * 1.96 * np.std(rewards) / 50**0.5, rel=0.2)


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path):
    made = episodes([[1.0]])
    paths = [store(tmp_path / parent / "run", made) for parent in ("a", "b")]
    assert [run.name for run in report(*paths).runs] == [*map(str, paths)]
    assert len({run.name for run in report(paths[0], paths[0]).runs}) == 2


@pytest.mark.full
def test_a_run_is_reported_without_the_environment_the_renderer_and_the_hub(tmp_path: Path):
    made = rollout_many("envsdk/Delegate-v1", "reference", seeds=range(1))
    folder = store(tmp_path / "run", made)
    script = f"""
import sys
for name in ("envsdk_environments", "envsdk_renderers", "huggingface_hub", "transformers", "torch", "matplotlib"):
    sys.modules[name] = None
from envsdk.viewer.reporting import as_html, as_markdown, report
found = report({str(folder)!r})
assert as_html(found) and as_markdown(found)
print(found.to_dict())
"""
    printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert made[0].id in printed
    assert len([*StoredRun(folder).trajectories()]) == 1


def test_one_episode_is_in_memory_at_a_time(tmp_path: Path):
    source = Source(store(tmp_path / "run", episodes([[float(reward)] for reward in range(8)])))
    collector = Collector("run", "")
    before, counts = trajectories_in_memory(), []
    for row, trajectory in source.episodes():
        collector.add(row, trajectory)
        counts.append(trajectories_in_memory() - before)
    assert len(counts) == 8
    assert max(counts) <= 2  # this one, and the one before it until the next is read


def trajectories_in_memory() -> int:
    return sum(type(one) is Trajectory for one in gc.get_objects())
