"""The example that trains: rewards rise, and it stops where what is trained is not what was sampled."""

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
    assert abs(played.update(model, optimizer, played.play(policy, [0, 0]))) < 1e-5
    with pytest.raises(RuntimeError, match="what is trained is not what was sampled: k1 is"):
        played.update(model, optimizer, played.play(surer, [0, 0]))
