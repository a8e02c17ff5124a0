"""The on-policy check of the example, on models that are fitted for a short time."""

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import real_models
from example_programs import EXAMPLES, example

pytest.importorskip("torch.nn")

import torch
from torch_models import gradient, in_sample_order, logprobs_separate, logprobs_tree, relative_difference

import envsdk
from envsdk import Renderer
from envsdk.policies import TransformersPolicy

pytestmark = pytest.mark.filterwarnings("default")

EXAMPLE = EXAMPLES / "onpolicy_check.py"
FIT_STEPS = {"qwen3": 500, "gpt_oss": 300}
KINDS = ["qwen3", pytest.param("gpt_oss", marks=pytest.mark.full)]  # the ladder's test has gpt-oss in the short run
EPISODES = 2


def renderer_of(kind: str) -> Renderer:
    if kind == "qwen3":
        return example("onpolicy_check").renderer_of("qwen3")
    return envsdk.get_renderer("harmony", real_models.gpt_oss_tokenizer(), official_history=True)


@cache
def fitted(kind: str) -> Any:
    return example("onpolicy_check").fitted_model(kind, renderer_of(kind), steps=FIT_STEPS[kind])


@cache
def report_of(kind: str) -> Any:
    renderer = renderer_of(kind)
    model, loss = fitted(kind)
    return example("onpolicy_check").check(model, renderer, loss=loss, seeds=EPISODES, retokenize=True)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_trained_is_what_was_sampled_with_the_probability_that_it_had(kind: str):
    report = report_of(kind)
    print(f"{kind}\n{report}")
    assert min(report.steps) >= 3
    assert report.tokens.share == 1.0
    for part in (report.samples.all, report.trees.all):
        assert part.tokens == report.cost.trained > 2000
        assert max(abs(part.k1), part.k2, part.k3) < 1e-4
    expected = {"thinking_stripped", "compaction", "budget", "edit", "handoff", "return"}
    assert set(report.breaks) >= (expected if kind == "qwen3" else {*expected, "template"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_fitted_model_learns_the_same_from_a_tree_and_from_separate_samples(kind: str):
    model, renderer = fitted(kind)[0], renderer_of(kind)
    policy = TransformersPolicy(model, renderer.tokenizer, max_tokens=60)
    scenes = example("onpolicy_check").scenes(renderer)
    for name in ("strip", "summarize", "handoff"):
        env = scenes[name]()
        group = [envsdk.rollout(env, policy, seed=7)]
        env.reset(seed=7, options={"episode_id": f"{name}/again"})
        group.append(envsdk.rollout(env.fork(), policy, reset=False))
        samples, tree = [sample for one in group for sample in one.samples()], envsdk.tree_batch(group)
        separate, together = torch.cat(logprobs_separate(model, samples)), logprobs_tree(model, tree)
        assert float((in_sample_order([tree], [together]) - separate).detach().abs().max()) < 1e-4
        expected, found = gradient(model, separate.sum()), gradient(model, together.sum())
        assert relative_difference(found, expected) < 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_naive_loop_trains_other_tokens_at_other_probabilities_and_is_told_why(kind: str):
    report = report_of(kind)
    assert report.naive_tokens.share < 0.9
    assert report.naive.verdict == "critical"
    assert max(abs(report.naive.all.k1), report.naive.all.k2) > 0.1
    assert report.naive_prompts["thinking_stripped"] > 0
    assert {*report.naive_prompts, *report.naive_replies} - {"none", "unknown", "thinking_stripped"}


def test_a_report_names_what_does_not_hold():
    report = report_of("qwen3")
    reasons = {problem.split(" of ")[-1] for problem in report.problems()}
    assert reasons == {reason for reason in example("onpolicy_check").REASONS if report.breaks[reason] < 20}
    wrong = type(report)(
        **{**vars(report), "samples": report.naive, "breaks": Counter(example("onpolicy_check").REASONS)}
    )
    assert any(problem.startswith("samples: ") for problem in wrong.problems())


def test_the_tokenizer_that_is_given_is_that_of_gpt_oss():
    assert example("onpolicy_check").renderer_of("qwen3", "no such folder").tokenizer.name == "embedded"


def test_the_example_says_what_gpt_oss_needs():
    command = [sys.executable, str(EXAMPLE), "--model", "both"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ, cwd=Path.home())
    assert done.returncode == 2
    assert "--tokenizer FOLDER" in done.stderr
