"""Images on a real vLLM: small Qwen2.5-VL and Qwen3-VL models with random weights, in float32."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import PIL.Image
import pytest
from policy_requests import request
from vision_models import picture
from vision_server import Served
from vllm_checks import RecordingVLLM
from vllm_server import MODEL_NAME

import envsdk
from envsdk import Action, Env, Message, ToolEnv, Turn
from envsdk.authoring._event_loops import run
from envsdk.diagnostics import forward_logprobs
from envsdk.diagnostics._stack import check_stack
from envsdk.errors import RequestRefused, ServerReplyError
from envsdk.images import Image
from envsdk.messages import ImagePart, TextPart
from envsdk.policies import VLLM, OpenAIChat

pytestmark = pytest.mark.filterwarnings("default")

TOLERANCE = 1e-4  # nats, of one token
IMAGES = {"ChartReader-v0": 1, "GridScreen-v1": 2, "CropZoom-v1": 2}  # in each of the samples below
HISTORIES: dict[str, Any] = {
    "keep": "keep",
    "budget": {"name": "budget", "max_tokens": 120, "order": ["images", "oldest"], "keep_images": 1},
    "compact": {"name": "compact", "every": 2, "keep_images": 1},
}


class Gallery(Env):
    """Shows pictures of several sizes, one of them twice."""

    def start(self) -> Turn:
        self.shown = 0
        return self.question(TextPart(text="Compare "), picture(1, 200, 160), TextPart(text=" with "), picture(2, 96))

    def respond(self, reply: Message) -> Turn:
        self.shown += 1
        if self.shown == 4:
            return Turn(terminated=True)
        return self.question(picture(2, 96) if self.shown == 1 else picture(self.shown, 60, 120))

    def question(self, *parts: TextPart | ImagePart) -> Turn:
        return Turn([Message(role="user", content=list(parts))], prefill="So ", max_tokens=6)


@pytest.fixture
def policy(served: Served) -> Iterator[RecordingVLLM]:
    """A policy on the server; its connections are closed after the test."""
    made = RecordingVLLM(served.url, MODEL_NAME, temperature=0.8, seed=0, max_tokens=8)
    yield made
    run(made.aclose())


@pytest.mark.parametrize("history", HISTORIES)
def test_a_trainer_computes_what_the_server_sampled(
    served: Served, policy: VLLM, history: str, compared: Counter[str]
) -> None:
    options = {"renderer": served.renderer, "history": HISTORIES[history], "limits": {"end_on_cut": False}}
    report = check_stack(Gallery, policy, served.model, seeds=range(4), env_options=options)
    print(report.tokens, report.kl.all, report.breaks)
    assert report.tokens.share == 1.0
    assert set(report.breaks) == {"keep": set(), "budget": {"budget"}, "compact": {"compaction"}}[history]
    assert max(abs(report.kl.all.k1), report.kl.all.k2, report.kl.all.k3) < 1e-5
    compared["prompts with replies"] += report.tokens.records
    compared["log-probabilities"] += report.kl.all.tokens


class FirstTheReference:
    """Gives the reference's first reply, a call, since a random model makes none; then the server's replies."""

    def __init__(self, policy: VLLM) -> None:
        self.policy, self.tokenizer = policy, policy.tokenizer

    def for_episode(self, env: Env, seed: int | None) -> Callable[..., Any]:
        calls = iter([env.reference_reply]) if isinstance(env, ToolEnv) else iter(())

        async def policy(prompt: np.ndarray, **given: Any) -> Action:
            if (reply := next(calls, None)) is None:
                return await self.policy(prompt, **given)
            tokens = env.renderer.reply(reply())
            return Action(tokens, np.zeros(len(tokens), np.float32))

        policy.tokenizer = "any"
        return policy


@pytest.mark.parametrize("name", IMAGES)
def test_the_environments_with_images_are_played(
    served: Served, policy: VLLM, name: str, compared: Counter[str]
) -> None:
    if name != "ChartReader-v0" and not has_tools(served):
        pytest.skip("the chat template of Qwen2.5-VL has no tools")
    env = envsdk.make(f"envsdk/{name}", renderer=served.renderer, limits={"max_steps": 3, "end_on_cut": False})
    guided = FirstTheReference(policy)
    trajectories = [envsdk.rollout(env, guided, seed=seed) for seed in range(4)]
    samples = [sample for one in trajectories for sample in one.samples()]
    assert [one.error for one in trajectories] == [None] * 4
    assert [len(sample.media) for sample in samples] == [IMAGES[name]] * 4
    values = forward_logprobs(served.model, samples, vision=served.renderer.vision)
    for sample, value in zip(samples, values, strict=True):
        is_sampled = sample.mask & (sample.logprobs != 0)
        assert is_sampled.any()
        assert np.abs(value - sample.logprobs)[is_sampled].max() < TOLERANCE
        compared["log-probabilities"] += int(is_sampled.sum())


def has_tools(served: Served) -> bool:
    """Whether the chat template has tools."""
    return "tools" in served.renderer.tokenizer.chat_template.text


def test_the_server_writes_the_same_prompt_for_the_same_messages(served: Served, compared: Counter[str]) -> None:
    rng = np.random.default_rng(0)
    for number in range(8):
        sizes = rng.integers(56, 300, (number % 4, 2)).tolist()
        parts: list[Any] = [TextPart(text=f"Look at {number}: ")]
        for index, (width, height) in enumerate(sizes):
            parts += [picture(index, width, height), TextPart(text=f" and {index} ")]
        message = Message(role="user", content=parts)
        body = {"model": MODEL_NAME, "messages": [message.to_openai()], "max_tokens": 1, "return_token_ids": True}
        answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=600.0)
        own = served.renderer.render([message], generation_prompt=True).tokens
        assert answer.json()["prompt_token_ids"] == own.tolist()
        compared["prompts"] += 1


SIZES = [(64, 64), (300, 200), (57, 211), (512, 384)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_images_of_many_sizes_are_what_transformers_sees(served: Served, size: tuple[int, int]) -> None:
    assert served.ask(TextPart(text="A "), picture(1, *size), TextPart(text=" and "), picture(2)).difference < TOLERANCE


def with_mode(mode: str) -> Image:
    pixels = np.random.default_rng(0).integers(0, 256, (80, 96, 4), dtype=np.uint8)
    return Image.read(PIL.Image.fromarray(pixels).convert(mode))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_images_of_all_modes_are_what_transformers_sees(served: Served, mode: str) -> None:
    if mode == "I;16":
        values = np.random.default_rng(0).integers(0, 65536, (80, 96), dtype=np.uint16)
        image = Image.read(PIL.Image.fromarray(values))
    else:
        image = with_mode(mode)
    assert served.ask(TextPart(text="What is "), ImagePart(data=image)).difference < TOLERANCE


@pytest.mark.parametrize("kind", ["palette", "color"])
def test_images_with_a_transparent_color_are_what_transformers_sees(served: Served, kind: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 3, (80, 96, 3), dtype=np.uint8) * 127
    image = PIL.Image.fromarray(pixels)
    if kind == "palette":
        image.quantize(8).save(tmp_path / "image.png", transparency=2)
    else:
        image.save(tmp_path / "image.png", transparency=(0, 127, 254))
    part = ImagePart(data=(tmp_path / "image.png").read_bytes())
    assert served.ask(TextPart(text="What is "), part).difference < TOLERANCE


def test_a_rotated_photograph_is_what_transformers_sees(served: Served, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (80, 120, 3), dtype=np.uint8)
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    PIL.Image.fromarray(pixels).save(tmp_path / "photo.jpg", exif=exif)
    part = ImagePart(data=(tmp_path / "photo.jpg").read_bytes())
    assert served.ask(TextPart(text="What is "), part).difference < TOLERANCE


def test_another_image_is_not_read_from_the_prefix_cache(served: Served) -> None:
    def parts(number: int) -> Sequence[Any]:
        return TextPart(text="What is this? "), picture(number, 512, 448), TextPart(text=" Answer.")

    first, again, other = (served.ask(*parts(number)) for number in (1, 1, 2))
    assert (again.action.extra["cached_tokens"], first.action.extra.get("cached_tokens", 0)) >= (128, 0)
    assert np.array_equal(again.action.tokens, first.action.tokens)
    assert np.abs(again.action.logprobs - first.action.logprobs).max() < TOLERANCE
    assert np.array_equal(other.prompt, first.prompt)
    assert not np.array_equal(other.action.logprobs, first.action.logprobs)
    assert max(one.difference for one in (first, again, other)) < TOLERANCE


def test_a_streamed_reply_is_the_same(served: Served) -> None:
    parts = TextPart(text="What is "), picture(3, 100, 100)
    seen: list[int] = []
    streamed, whole = served.ask(*parts, on_tokens=lambda tokens: seen.extend(tokens)), served.ask(*parts)
    assert seen == streamed.action.tokens.tolist() == whole.action.tokens.tolist()
    assert max(streamed.difference, whole.difference) < TOLERANCE


def test_another_image_processor_is_refused(served: Served) -> None:
    patch = served.renderer.vision.processor.image_processor.patch_size
    small = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": patch}
    small["size"] = {"shortest_edge": 56 * 56, "longest_edge": 128 * 128}
    renderer = envsdk.get_renderer(served.renderer.name, envsdk.load_tokenizer(served.folder), processor=small)
    with pytest.raises(ServerReplyError, match=r"sampled from a different prompt: .*--mm-processor-kwargs"):
        served.ask(picture(1, 400, 400), renderer=renderer)


def test_an_image_that_does_not_fit_into_the_context_is_refused(served: Served) -> None:
    with pytest.raises(RequestRefused) as caught:
        served.ask(*(picture(number, 800, 800) for number in range(4)))
    assert caught.value.status == 400
    print(caught.value)


@pytest.mark.parametrize("is_before", [False, True])
def test_a_placeholder_that_is_not_an_image_is_never_taken_for_one(served: Served, is_before: bool) -> None:
    renderer, image = served.renderer, picture(1, 96, 96).data
    tokens = renderer.render([Message(role="user", content=[ImagePart(data=image)])], generation_prompt=True).tokens
    pad = int(renderer.vision.token_ids[0])
    prompt = np.insert(tokens, 1 if is_before else len(tokens), pad)
    (place,) = renderer.vision.places(tokens, [image])
    media = (type(place)(image, place.start + is_before, place.stop + is_before),)

    async def sample() -> Action:
        async with VLLM(served.url, MODEL_NAME, check=False, seed=1) as policy:
            return await policy(prompt, **request(media=media, max_tokens=4))

    if is_before:
        with pytest.raises(ServerReplyError, match="a different prompt"):
            asyncio.run(sample())
    else:
        assert len(asyncio.run(sample()).tokens)


def test_a_chat_model_is_evaluated_with_images(served: Served) -> None:
    env = envsdk.make("envsdk/ChartReader-v0", renderer=served.renderer, limits={"end_on_cut": False})
    chat = OpenAIChat(f"{served.url}/v1", model=MODEL_NAME, api_key="none", max_tokens=8)
    trajectory = envsdk.rollout(env, chat, seed=0)
    run(chat.aclose())
    assert (trajectory.error, len(trajectory.steps)) == (None, 3)
