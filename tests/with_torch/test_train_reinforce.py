"""The example that trains: rewards rise, and it stops where what is trained is not what was sampled."""

import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_programs import EXAMPLES, example

pytest.importorskip("torch.nn")

import torch

pytestmark = pytest.mark.filterwarnings("default")

EXAMPLE = EXAMPLES / "train_reinforce.py"


@pytest.mark.full  # in the short run, test_train_agent.py shows that a model learns
def test_the_mean_reward_rises_within_a_few_updates_and_the_plot_is_a_picture(tmp_path: Path):
    plot = tmp_path / "rewards.png"
    command = [sys.executable, EXAMPLE, "--updates", "8", "--plot", plot]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = re.search(r"mean reward (\S+) before and (\S+) after; \|k1\| is at most (\S+);", run.stdout)
    assert found, run.stdout
    before, after, k1 = map(float, found.groups())
    assert after > before + 0.1
    assert k1 < 1e-5
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_it_stops_before_it_trains_on_other_tokens_than_were_sampled():
    torch.manual_seed(0)
    played = example("train_reinforce")
    env = played.make_env()
    model = played.make_model(env.renderer.tokenizer.vocab_size)

    async def surer(prompt: Any, **asked: Any) -> Any:
        action = await policy(prompt, **asked)
        return replace(action, logprobs=action.logprobs * 0.9)

    policy = played.TransformersPolicy(model, env.renderer.tokenizer, seed=0, max_tokens=8, policy_version=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    assert abs(played.update(model, optimizer, played.play(policy, [0, 0])).k1) < 1e-5
    with pytest.raises(RuntimeError, match="the trained tokens are not the sampled ones: k1 is"):
        played.update(model, optimizer, played.play(surer, [0, 0]))


@pytest.mark.parametrize("level", ["token", "step", "sequence"])
def test_importance_weights_make_an_update_that_of_the_trainers_own_distribution(level: str):
    played = example("train_reinforce")
    env = played.make_env()
    torch.manual_seed(0)
    model = played.make_model(env.renderer.tokenizer.vocab_size)
    policy = played.TransformersPolicy(model, env.renderer.tokenizer, seed=0, max_tokens=8, policy_version=0)
    trajectories = played.play(policy, [0, 0, 1, 1])
    plain, corrected = (gradient_of(played, model, trajectories, correct) for correct in (None, level))
    assert torch.allclose(plain, corrected, rtol=1e-3, atol=1e-6)  # all weights are 1


def test_importance_weights_follow_the_sampler():
    played = example("train_reinforce")
    env = played.make_env()
    torch.manual_seed(0)
    model = played.make_model(env.renderer.tokenizer.vocab_size)

    async def less_likely(prompt: Any, **asked: Any) -> Any:
        action = await policy(prompt, **asked)
        return replace(action, logprobs=action.logprobs - shift)

    policy = played.TransformersPolicy(model, env.renderer.tokenizer, seed=0, max_tokens=8, policy_version=0)
    shift = 5e-4  # below what stops it
    trajectories = played.play(less_likely, [0, 0, 1, 1])
    plain, corrected = (gradient_of(played, model, trajectories, correct) for correct in (None, "token"))
    assert float(corrected.norm() / plain.norm()) == pytest.approx(math.exp(shift), abs=shift / 10)


def gradient_of(played: Any, model: Any, trajectories: Any, correct: str | None) -> torch.Tensor:
    """What an update does to the weights, with a learning rate of 1 and without momentum; the weights stay."""
    for reward, trajectory in enumerate(trajectories):
        trajectory.steps[-1].reward = reward / 1000  # an untrained model earns nothing, and large gradients are clipped
    before = [parameter.detach().clone() for parameter in model.parameters()]
    played.update(model, torch.optim.SGD(model.parameters(), lr=1.0), trajectories, correct)
    pairs = list(zip(model.parameters(), before, strict=True))
    change = torch.cat([(old - new.detach()).flatten() for new, old in pairs])
    assert 0 < float(change.norm()) < played.MAX_GRADIENT
    with torch.no_grad():
        for parameter, old in pairs:
            parameter.copy_(old)
    return change


def test_the_penalty_keeps_the_weights_near_the_sampler_and_drives_them_away_in_the_other_direction():
    example("train_reinforce")  # which the module imports by this name
    without, away, near = example("kl_penalty").divergences().values()
    assert 0 < near < without / 2 < without < away


def test_a_model_of_ones_own_is_trained_with_its_template(tmp_path: Path):
    played = example("train_reinforce")
    tokenizer = played.make_env().renderer.tokenizer
    played.make_model(tokenizer.vocab_size).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    options = ["--group-size", "2", "--warm-up-steps", "1", "--updates", "1", "--epochs", "2", "--kl-coef", "0.1"]
    command = [sys.executable, EXAMPLE, "--model", tmp_path, "--template", EXAMPLES / "thinking.jinja", *options]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert re.search(r"(?m)^1 updates: mean reward ", run.stdout)
    assert re.search(r"at most \S+% of the log-ratios of an update are clipped", run.stdout)
    assert "|k1| is at most " in run.stdout


def test_thinking_is_stripped_with_the_template():
    played = example("train_reinforce")
    tokenizer = played.make_env().renderer.tokenizer
    template = (EXAMPLES / "thinking.jinja").read_text()
    env = played.make_env(played.get_renderer("fixed_base", tokenizer, template=template))
    trajectory = played.rollouts.rollout(env, "reference", seed=1)
    assert len(trajectory.steps) > 1
    assert {break_.reason for break_ in trajectory.breaks} == {"thinking_stripped"}
    last = tokenizer.decode(trajectory.samples()[-1].tokens)
    assert last.count("<think>") == 1
