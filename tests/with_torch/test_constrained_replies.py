"""Constrained replies of a model: they follow their schemas, with the log-probabilities of the masked distribution."""

import asyncio
import json
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch.nn")

import torch
from random_schemas import Form
from torch_models import tiny_qwen3

import envsdk
from envsdk import rollout
from envsdk.diagnostics import forward_logprobs, kl
from envsdk.errors import ConfigError
from envsdk.policies import TransformersPolicy

pytestmark = pytest.mark.filterwarnings("default")

TOKENIZER = envsdk.load_tokenizer("embedded")
RENDERER = envsdk.get_renderer("qwen2.5", TOKENIZER)


@cache
def model() -> Any:
    """A model that prefers short pieces, so that numbers and names end."""
    made = tiny_qwen3().eval()
    lengths = [len(piece) for piece in TOKENIZER.token_bytes(np.arange(TOKENIZER.vocab_size, dtype=np.int32))]
    made.config.tie_word_embeddings = False
    head = torch.nn.Linear(made.config.hidden_size, TOKENIZER.vocab_size)
    with torch.no_grad():
        head.weight.copy_(made.get_output_embeddings().weight)
        head.bias.copy_(-2.0 * torch.tensor(lengths, dtype=torch.float32))
    made.set_output_embeddings(head)
    return made


@pytest.mark.parametrize("count", [24, pytest.param(2000, marks=pytest.mark.full)])
def test_replies_follow_their_schemas_with_the_log_probabilities_of_the_masked_distribution(count: int) -> None:
    policy = TransformersPolicy(model(), TOKENIZER, temperature=0.7)
    env = Form(renderer=RENDERER)
    trajectories = [rollout(env, policy, seed=seed) for seed in range(count)]
    assert [one.error for one in trajectories if one.error] == []
    assert sum(one.steps[0].metrics["cut"] for one in trajectories) == 0
    samples = [sample.validate() for one in trajectories for sample in one.samples()]
    found = kl(samples, forward_logprobs(model(), samples, renderer=RENDERER))
    assert found.all.tokens == sum(int(sample.mask.sum()) for sample in samples) > 20 * count
    assert found.all.k2 < 1e-8
    assert kl(samples, forward_logprobs(model(), samples)).all.k2 > 0.01  # from all logits


def test_an_interrupted_reply_goes_on_inside_its_grammar() -> None:
    policy = TransformersPolicy(model(), TOKENIZER, policy_version=0)

    class Interrupting:
        """Aborts the first three attempts at each reply after four tokens."""

        tokenizer, left = TOKENIZER, 3

        async def __call__(self, prompt: Any, **request: Any) -> Any:
            task = asyncio.ensure_future(policy(prompt, **request))
            if self.left:
                self.left -= 1
                for _ in range(4):
                    await asyncio.sleep(0)
                policy.refresh()
            return await task

    trajectory = rollout(Form(renderer=RENDERER), Interrupting(), seed=3)
    [step] = trajectory.steps
    assert trajectory.error is None and len(step.parts) == 4
    assert len({part.extra["grammar"] for part in step.parts}) == 1
    assert json.loads(trajectory.contexts["main"].messages[-1].content) is not None


def test_a_grammar_needs_a_tokenizer() -> None:
    policy = TransformersPolicy(model())
    assert "needs a tokenizer" in (policy.refuses_sampling("grammar", "start: /a/") or "")
    with pytest.raises(ConfigError, match="needs a tokenizer"):
        policy._chosen({"grammar": "start: /a/"})
