"""Images in the prompts of a sampler with a KV cache, and in what a trainer computes of its samples."""

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import real_models
from envsdk_renderers._fixed_base import FixedBase

pytest.importorskip("torch.nn")
pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl", reason="transformers 5.8 or newer")

import torch
from torch_models import gradient, in_sample_order, relative_difference, tiny_qwen3
from torch_vision_models import tiny_qwen_vl
from vision_models import picture, qwen_processor, vision_renderer

import envsdk
from envsdk import Env, Message, Turn, credit, images
from envsdk.diagnostics import forward_logprobs, kl
from envsdk.diagnostics._stack import check_stack
from envsdk.errors import ConfigError, ImageError, InvalidSample, TreeUnsupported
from envsdk.images import Image, RecentValues
from envsdk.messages import ImagePart, TextPart
from envsdk.policies import TransformersPolicy, load_model
from envsdk.rendering._model_images import ModelImages
from envsdk.trainers.plain import collate, model_inputs
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
        return self.question(
            TextPart(text="Compare "), picture(1, 200, 160), TextPart(text=" with "), picture(2, 96, 60)
        )

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


@pytest.mark.matrix
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
    names = [placed.image.sha256[:12] for placed in samples[0].media]
    dropped = [name for break_ in trajectory.breaks for name in names if name in break_.detail]
    assert bool(dropped) == (history in ("budget", "compact"))
    assert found.all.tokens == sum(int(sample.mask.sum()) for sample in samples)
    assert max(abs(found.all.k1), found.all.k2, found.all.k3) < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_all_sampled_tokens_are_the_trained_ones(kind: str) -> None:
    options = {"renderer": renderer_of(kind), "history": HISTORIES["budget"], "limits": {"end_on_cut": False}}
    report = check_stack(Gallery, policy_of(kind), model_of(kind), seeds=range(2), env_options=options)
    assert report.tokens.share == 1.0
    assert report.breaks["budget"]
    assert max(abs(report.kl.all.k1), report.kl.all.k2, report.kl.all.k3) < 1e-4


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


@pytest.mark.matrix
@pytest.mark.parametrize("history", ["strip", "budget"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_is_what_its_samples_are(kind: str, history: str) -> None:
    env, model = gallery(kind, history), model_of(kind)
    trajectories = [envsdk.rollout(env, policy_of(kind, seed=seed), seed=0) for seed in range(2)]
    samples = [sample for trajectory in trajectories for sample in trajectory.samples()]
    vision = env.renderer.vision
    expected = torch.cat(
        [
            torch.as_tensor(own[sample.mask])
            for own, sample in zip(forward_logprobs(model, samples, vision=vision), samples, strict=True)
        ]
    )
    tree = envsdk.tree_batch(trajectories)
    assert len(tree.media) < sum(len(sample.media) for sample in samples)
    longest = int(tree.position_ids.max()) + 1
    for trees in ([tree], tree.split(longest), [envsdk.tree_batch(samples)]):
        found = in_sample_order(trees, [logprobs_of_tree(model, one, vision) for one in trees])
        assert float((found - expected).abs().max()) < 1e-4
    dense = logprobs_of_tree(model, tree, vision, attention="dense")
    assert float((in_sample_order([tree], [dense]) - expected).abs().max()) < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_has_the_gradient_of_its_samples(kind: str) -> None:
    env, model = gallery(kind, "strip"), tiny_qwen_vl(kind)
    trajectory = envsdk.rollout(env, policy_of(kind), seed=0)
    samples, vision = trajectory.samples(), env.renderer.vision
    batch = collate(samples, layout="packed", arrays="torch")
    logits = model(**model_inputs(batch, samples, model, vision=vision)).logits[:, :-1]
    picked = logits.log_softmax(-1).gather(-1, batch["tokens"][:, 1:, None])[..., 0]
    expected = gradient(model, picked[batch["mask"][:, 1:]].sum())
    tree = envsdk.tree_batch(trajectory)
    logits = model(**tree.model_inputs(model, vision=vision)).logits[0, torch.as_tensor(tree.predecessors).long()]
    found = logits.log_softmax(-1).gather(1, torch.as_tensor(tree.tokens[tree.mask]).long()[:, None])
    assert relative_difference(gradient(model, found.sum()), expected) < 1e-4
    assert sum(p.numel() for p in model.model.visual.parameters())


@pytest.mark.matrix
@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_collated_batch_is_what_its_samples_are(kind: str, layout: str) -> None:
    env, model = gallery(kind, "strip"), model_of(kind)
    samples = envsdk.rollout(env, policy_of(kind), seed=0).samples()
    vision = env.renderer.vision
    batch = collate(samples, layout=layout, arrays="torch")
    with torch.no_grad():
        logits = model(**model_inputs(batch, samples, model, vision=vision)).logits[:, :-1]
    found = logits.log_softmax(-1).gather(-1, batch["tokens"][:, 1:, None])[..., 0][batch["mask"][:, 1:]]
    expected = np.concatenate(
        [own[sample.mask] for own, sample in zip(forward_logprobs(model, samples, vision=vision), samples, strict=True)]
    )
    assert np.abs(found.numpy() - expected).max() < 1e-4


def test_a_batch_that_cuts_an_image_is_refused() -> None:
    env = gallery("qwen3_vl")
    samples = envsdk.rollout(env, policy_of("qwen3_vl"), seed=0).samples()
    first = samples[0].media[-1]
    with pytest.raises(InvalidSample, match=r"of an image: choose another max_length"):
        collate(samples, max_length=first.start + 1, truncate=True)


PARTS = [TextPart(text="What is in "), picture(1, 96, 60), TextPart(text="?")]


def prompt_of(kind: str, *parts: TextPart | ImagePart) -> tuple[Any, Any]:
    renderer = renderer_of(kind)
    tokens = renderer.render([Message(role="user", content=list(parts))], generation_prompt=True).tokens
    return tokens, tuple(renderer.vision.places(tokens, [part.data for part in parts if isinstance(part, ImagePart)]))


def ask(policy: TransformersPolicy, prompt: Any, media: Any = (), **request: Any) -> Any:
    given = {"episode_id": "e", "context": "main", "base": "main", "keep": 0, "stop_token_ids": (), "stop": ()}
    return asyncio.run(policy(prompt, **given | {"max_tokens": 4, "sampling": {}, "media": media} | request))


def test_a_cache_of_another_image_with_equally_many_tokens_is_not_used() -> None:
    (prompt, first), (same, second) = (prompt_of("qwen3_vl", PARTS[0], picture(n, 96, 60), PARTS[2]) for n in (1, 2))
    assert np.array_equal(prompt, same)
    assert first != second
    policy = policy_of("qwen3_vl")
    ask(policy, prompt, first)
    action = ask(policy, prompt, second, keep=len(prompt))
    assert policy.statistics.reused == first[0].start
    expected = ask(policy_of("qwen3_vl", cache="off"), prompt, second)
    assert np.abs(action.logprobs - expected.logprobs).max() < 1e-4


def test_a_cache_is_not_cut_inside_an_image() -> None:
    prompt, media = prompt_of("qwen2_5_vl", *PARTS)
    policy = policy_of("qwen2_5_vl")
    expected = ask(policy, prompt, media)
    action = ask(policy, prompt, media, keep=media[0].start + 3)
    assert policy.statistics.reused == media[0].start
    assert np.abs(action.logprobs - expected.logprobs).max() < 1e-4


def test_an_image_in_the_cache_is_not_processed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, media = prompt_of("qwen3_vl", *PARTS)
    policy, vision = policy_of("qwen3_vl"), renderer_of("qwen3_vl").vision
    action = ask(policy, prompt, media)
    for place, name in ((vision, "_arrays"), (images, "_decoded")):  # forget the image everywhere else
        monkeypatch.setattr(place, name, RecentValues(0, lambda value: 1))
    without_bytes = [placed._replace(image=Image.from_reference(placed.image.reference())) for placed in media]
    with pytest.raises(ImageError):
        vision.process(without_bytes[0].image)
    again = ask(policy, prompt, without_bytes, keep=len(prompt))
    assert np.abs(again.logprobs - action.logprobs).max() < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_the_positions_are_the_models_own(kind: str) -> None:
    prompt, media = prompt_of(kind, PARTS[1], picture(2, 200, 120), PARTS[0])
    model, kinds = model_of(kind), torch.zeros((1, len(prompt)), dtype=torch.long)
    images = ModelImages(model, renderer_of(kind).vision)
    for placed in media:
        kinds[0, placed.start : placed.stop] = 1
    ids, arrays = torch.as_tensor(prompt).long()[None], images.arrays(media)
    with torch.no_grad():
        expected = model(input_ids=ids, mm_token_type_ids=kinds, **arrays).logits
        found = model(input_ids=ids, **images.inputs(prompt, media)).logits
    assert torch.equal(expected, found)
    text, _ = prompt_of(kind, PARTS[0])  # the model has stored the positions of the last images
    assert ask(policy_of(kind), text).logprobs.tolist() == pytest.approx(
        ask(policy_of(kind, cache="off"), text).logprobs.tolist(), abs=1e-4
    )


def test_images_without_a_processor_are_refused() -> None:
    prompt, media = prompt_of("qwen3_vl", *PARTS)
    policy = TransformersPolicy(model_of("qwen3_vl"), renderer_of("qwen3_vl").tokenizer)
    with pytest.raises(ConfigError, match=r"no image processor was found .* pass vision=renderer.vision"):
        ask(policy, prompt, media)


def test_the_processor_of_another_model_is_refused() -> None:
    prompt, media = prompt_of("qwen3_vl", picture(1, 200, 160))
    with pytest.raises(ConfigError, match=r"has \d+ tokens, but the image processor gives it \d+"):
        ask(policy_of("qwen2_5_vl"), prompt, media)


def test_a_placeholder_that_the_model_sampled_is_refused() -> None:
    prompt, media = prompt_of("qwen3_vl", *PARTS)
    stray = np.append(prompt, renderer_of("qwen3_vl").vision.token_ids)
    with pytest.raises(ConfigError, match="the model sampled the others"):
        ask(policy_of("qwen3_vl"), stray, media)


def test_a_text_model_refuses_images() -> None:
    prompt, media = prompt_of("qwen3_vl", *PARTS)
    policy = TransformersPolicy(tiny_qwen3(151936).eval(), vision=renderer_of("qwen3_vl").vision)
    with pytest.raises(ConfigError, match="Qwen3ForCausalLM is not one of the vision models"):
        ask(policy, prompt, media)


def test_a_tree_keeps_images_of_equally_many_tokens_apart() -> None:
    class One(Env):
        def start(self) -> Turn:
            return Turn([Message(role="user", content=[picture(self.seed_of, 96, 60)])], max_tokens=3)

        def respond(self, reply: Message) -> Turn:
            return Turn(terminated=True)

    policy, trajectories = policy_of("qwen3_vl"), []
    for number in (1, 2, 1):
        env = One(renderer=renderer_of("qwen3_vl"), limits={"end_on_cut": False})
        env.seed_of = number
        trajectories.append(envsdk.rollout(env, policy, seed=number))
    tree = envsdk.tree_batch(trajectories)
    assert [placed.image for placed in tree.media] == [picture(n, 96, 60).data for n in (1, 2)]
    pad = renderer_of("qwen3_vl").vision.token_ids[0]
    inside = np.zeros(len(tree), bool)
    for placed in tree.media:
        inside[placed.start : placed.stop] = True
    assert np.array_equal(inside, tree.tokens == pad)


def test_a_tree_with_images_is_refused_for_models_where_it_is_not_known_to_be_exact() -> None:
    env = gallery("qwen3_vl")
    tree = envsdk.tree_batch(envsdk.rollout(env, policy_of("qwen3_vl"), seed=0))
    with pytest.raises(TreeUnsupported, match=r"qwen3 is not one of the vision models .*Gemma 3"):
        tree.model_inputs(tiny_qwen3(151936), vision=env.renderer.vision)


def test_a_folder_has_all_that_a_policy_and_a_trainer_need(tmp_path: Path) -> None:
    model_of("qwen3_vl").save_pretrained(tmp_path)
    for file in real_models.qwen3_folder().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(real_models.template("qwen3_vl"))
    images = qwen_processor("qwen3_vl").image_processor.to_dict()
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({**images, "image_processor_type": "Qwen2VLImageProcessor"})
    )
    model = load_model(tmp_path)
    env = Gallery(renderer="fixed_base", tokenizer=str(tmp_path), limits={"end_on_cut": False})
    trajectory = envsdk.rollout(env, TransformersPolicy(model), seed=0)
    samples = trajectory.samples()
    found = kl(samples, forward_logprobs(model, samples))
    assert max(abs(found.all.k1), found.all.k2, found.all.k3) < 1e-4
    (again,) = credit.add_reference(samples, model)
    assert np.abs(again.reference_logprobs - again.logprobs).max() < 1e-4
