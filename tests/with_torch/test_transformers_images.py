"""Images in the prompts of a sampler with a KV cache, and in what a trainer computes of its samples."""

import asyncio
from functools import cache
from typing import Any

import numpy as np
import pytest
import real_models
from envsdk_renderers.fixed_base import FixedBase

pytest.importorskip("torch.nn")

import torch
from torch_models import in_sample_order
from torch_vision_models import tiny_qwen_vl
from vision_models import picture, qwen_processor, vision_renderer

import envsdk
from envsdk import Env, Message, Turn
from envsdk.diagnostics import forward_logprobs, kl
from envsdk.errors import ConfigError
from envsdk.messages import ImagePart, TextPart
from envsdk.policies import TransformersPolicy
from envsdk.tree import TreeBatch

pytestmark = pytest.mark.filterwarnings("default")

KINDS = ("qwen2_5_vl", "qwen3_vl")
HISTORIES: dict[str, Any] = {
    "keep": "keep",
    "strip": "strip",
    "budget": {"name": "budget", "max_tokens": 100, "order": ["images", "oldest"], "keep_images": 1},
    "compact": {"name": "compact", "every": 2, "keep_images": 1},
}


@cache
def model_of(kind: str) -> Any:
    return tiny_qwen_vl(kind)


@cache
def renderer_of(kind: str, *, thinks: bool = False) -> FixedBase:
    """Return the renderer of a family. Neither template has thoughts, so those that `thinks` have a later family's."""
    if not thinks:
        return vision_renderer(kind)
    tokenizer = envsdk.load_tokenizer(real_models.qwen3_folder())
    return FixedBase(tokenizer, template=real_models.template("qwen3_5_think"), processor=qwen_processor(kind))


class Gallery(Env):
    """Shows pictures of several sizes; with `thinks`, each reply begins with a thought."""

    thinks = False

    def start(self) -> Turn:
        self.shown = 0
        return self.question(TextPart(text="Compare "), picture(1, 200, 160), TextPart(text=" with "), picture(2, 96, 60))

    def respond(self, reply: Message) -> Turn:
        self.shown += 1
        if self.shown == 4:
            return Turn(terminated=True)
        return self.question(picture(2, 96, 60) if self.shown == 1 else picture(self.shown, 60, 120))

    def question(self, *parts: TextPart | ImagePart) -> Turn:
        reasoning = f"This is thought {self.shown}." if self.thinks else None
        start = Message(role="assistant", reasoning=reasoning, content="So ")
        return Turn([Message(role="user", content=list(parts))], prefill=start, max_tokens=6)


class ThoughtfulGallery(Gallery):
    """So there are thoughts to strip."""

    thinks = True


def gallery(kind: str, history: str = "keep") -> Env:
    make = ThoughtfulGallery if history == "strip" else Gallery
    renderer = renderer_of(kind, thinks=make.thinks)
    return make(renderer=renderer, history=HISTORIES[history], limits={"end_on_cut": False})


def policy_of(kind: str, **options: Any) -> TransformersPolicy:
    renderer = renderer_of(kind)
    return TransformersPolicy(model_of(kind), renderer.tokenizer, vision=renderer.vision, **options)


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_trainer_computes_is_what_the_sampler_with_a_cache_reported(kind: str, history: str) -> None:
    env, policy = gallery(kind, history), policy_of(kind)
    trajectory = envsdk.rollout(env, policy, seed=0)
    samples = trajectory.samples()
    assert any(sample.media for sample in samples)
    assert policy.statistics.reused
    expected = {"keep": set(), "strip": {"thinking_stripped"}, "budget": {"budget"}, "compact": {"compaction"}}
    assert {break_.reason for break_ in trajectory.breaks} == expected[history]
    found = kl(samples, forward_logprobs(model_of(kind), samples, vision=env.renderer.vision))
    assert found.all.tokens == sum(int(sample.mask.sum()) for sample in samples)
    assert max(abs(found.all.k1), found.all.k2, found.all.k3) < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_the_replies_are_those_without_a_cache(kind: str) -> None:
    env = gallery(kind, "budget")
    first, second = (envsdk.rollout(env, policy_of(kind, cache=cache), seed=0) for cache in ("full", "off"))
    assert np.array_equal(first.contexts["main"].tokens, second.contexts["main"].tokens)
    assert np.abs(first.contexts["main"].logprobs - second.contexts["main"].logprobs).max() < 1e-4


def logprobs_of_tree(model: Any, tree: TreeBatch, vision: Any, **options: Any) -> torch.Tensor:
    inputs = tree.model_inputs(model, vision=vision, **options)
    with torch.no_grad():
        logits = model(**inputs).logits[0, torch.as_tensor(tree.predecessors).long()]
    return logits.log_softmax(-1).gather(1, torch.as_tensor(tree.tokens[tree.mask]).long()[:, None])[:, 0]


@pytest.mark.parametrize("history", ["strip", "budget"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_is_what_its_samples_are(kind: str, history: str) -> None:
    env, model = gallery(kind, history), model_of(kind)
    trajectories = [envsdk.rollout(env, policy_of(kind, seed=seed), seed=0) for seed in range(2)]
    samples = [sample for trajectory in trajectories for sample in trajectory.samples()]
    vision = env.renderer.vision
    expected = torch.cat([torch.as_tensor(own[sample.mask]) for own, sample in zip(
        forward_logprobs(model, samples, vision=vision), samples, strict=True)])
    tree = envsdk.tree_batch(trajectories)
    assert len(tree.media) < sum(len(sample.media) for sample in samples)
    longest = int(tree.position_ids.max()) + 1
    for trees in ([tree], tree.split(longest), [envsdk.tree_batch(samples)]):
        found = in_sample_order(trees, [logprobs_of_tree(model, one, vision) for one in trees])
        assert float((found - expected).abs().max()) < 1e-4
    dense = logprobs_of_tree(model, tree, vision, attention="dense")
    assert float((in_sample_order([tree], [dense]) - expected).abs().max()) < 1e-4
