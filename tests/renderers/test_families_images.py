"""Families of vision models against the processors of transformers, token by token."""

import copy
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from envsdk_renderers._fixed_base import FixedBase
from template_conversations import TOOLS, called, emitted, result, user
from vision_conversations import random_conversation
from vision_families import FAMILIES, processor_of, renderer_of, tokenizer_of
from vision_models import picture, processed_ids

from envsdk import Action, Env, Message, Turn, get_renderer, rollout
from envsdk.errors import ConfigError, RenderError
from envsdk.messages import ImagePart, TextPart
from envsdk.testing import check_renderer

WITH_IMAGES = [name for name, family in FAMILIES.items() if family.tools == "images"]


@pytest.mark.matrix(every=5)
@pytest.mark.parametrize("name", FAMILIES)
def test_rendering_is_the_processors_own_to_the_token(name: str, is_full: bool) -> None:
    family, renderer, rng = FAMILIES[name], renderer_of(name), Random(f"images {name}")
    images, count = 0, 300 if is_full else 3
    for _ in range(count):
        messages = random_conversation(rng, family)
        tools: Any = TOOLS if any(message.role == "tool" for message in messages) else ()
        rendered = renderer.render(messages, tools=tools, generation_prompt=True)
        given = {"tools": list(tools) or None, "add_generation_prompt": True}
        assert rendered.tokens.tolist() == processed_ids(processor_of(name), messages, parts=family.parts, **given)
        check_starts(messages, rendered.starts, rendered.tokens, renderer)
        if isinstance(renderer, FixedBase):
            renderer.check_episode(messages, emitted(renderer, messages, tools), tools)
        images += sum(len(message.images) for message in messages)
    assert images > count


def check_starts(messages: list[Message], starts: list[int], tokens: Any, renderer: Any) -> None:
    """Check that each message has exactly the placeholders of its own images."""
    for message, (start, stop) in zip(messages, pairwise(starts), strict=True):
        own = [renderer.vision.count(image) for image in message.images]
        assert np.isin(tokens[start:stop], renderer.vision.token_ids).sum() == sum(own)


@pytest.mark.parametrize(("size", "crops"), [((48, 48), 0), ((96, 32), 3), ((32, 128), 4), ((50, 48), 0)])
def test_the_crops_of_gemma_3_have_placeholders_of_their_own(size: tuple[int, int], crops: int) -> None:
    renderer, processor = renderer_of("gemma-3 with crops"), processor_of("gemma-3 with crops")
    message = Message(role="user", content=[TextPart(text="a"), picture(1, *size), TextPart(text="b"), picture(2)])
    tokens = renderer.render([message]).tokens
    assert tokens.tolist() == processed_ids(processor, [message], parts=False)
    vision = renderer.vision
    assert vision is not None
    made = vision.process(message.images[0])
    assert made.count == (1 + crops) * processor.image_seq_length
    assert len(made.arrays["pixel_values"]) == 1 + crops
    placed = vision.places(tokens, message.images)
    counts = [int(np.isin(tokens[own.start : own.stop], vision.token_ids).sum()) for own in placed]
    assert counts == [made.count, vision.count(message.images[1])]


def test_crops_that_the_processor_would_not_make_are_refused() -> None:
    """Its class has `do_pan_and_scan=False`, which wins over the option of the image processor."""
    given = copy.copy(processor_of("gemma-3 with crops"))
    given.images_kwargs = type(given).images_kwargs
    with pytest.raises(ConfigError, match=r"do_pan_and_scan=True.*processor.images_kwargs = "):
        get_renderer("gemma-3", tokenizer_of("gemma-3 with crops"), processor=given)


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("name", WITH_IMAGES)
def test_images_in_several_results_of_tools_are_the_processors_own(name: str) -> None:
    calls = called("search", "get_weather")
    answers = [
        result(call).model_copy(update={"parts": (picture(at), TextPart(text="é"))})
        for at, call in enumerate(calls.tool_calls)
    ]
    answers = [answer.model_copy(update={"content": "é"}) for answer in answers]
    messages = [user("Look."), calls, *answers]
    rendered = renderer_of(name).render(messages, tools=TOOLS, generation_prompt=True)
    given = {"tools": list(TOOLS), "add_generation_prompt": True}
    assert rendered.tokens.tolist() == processed_ids(processor_of(name), messages, parts=False, **given)


@pytest.mark.parametrize(
    ("name", "role"), [("qwen3-vl", "system"), ("qwen3.5", "system"), ("gemma-3", "system"), ("gemma-4", "tool")]
)
def test_an_image_where_the_template_writes_none_is_refused(name: str, role: str) -> None:
    call = called("search")
    content = [TextPart(text="x"), picture(1)]
    given = Message(role="system", content=content)
    messages = [given, user()]
    if role == "tool":
        parts = Message(role="tool", content=content)
        answer = result(call.tool_calls[0]).model_copy(update={"content": parts.content, "parts": parts.parts})
        messages = [user(), call, answer]
    with pytest.raises(RenderError):
        renderer_of(name).render(messages, tools=TOOLS if role == "tool" else (), generation_prompt=True)


@pytest.mark.parametrize(
    "parts", [("<tool_response>", "</tool_response>"), ("", "</tool_response>"), ("<tool_response>", "x")]
)
def test_a_query_with_images_is_recognized_as_qwens_template_does(parts: tuple[str, str]) -> None:
    """Reasoning is shown after the last query; what looks like a result of a tool is not one."""
    before, after = parts
    renderer = renderer_of("qwen3.5")
    answer = Message(role="assistant", content="a", reasoning="r")
    query = Message(role="user", content=[TextPart(text=before), picture(1), TextPart(text=after)])
    messages = [user(), answer, query]
    text = renderer.tokenizer.decode(renderer.render(messages, generation_prompt=True).tokens)
    expected = processed_ids(processor_of("qwen3.5"), messages, parts=False, add_generation_prompt=True)
    assert text == renderer.tokenizer.decode(np.array(expected, np.int32))


@pytest.mark.parametrize("name", ["qwen3.5", "gemma-3", pytest.param("qwen3-vl", marks=pytest.mark.full)])
def test_auto_chooses_a_renderer_that_writes_images_and_records_with_what(name: str) -> None:
    chosen = get_renderer("auto", tokenizer_of(name), processor=processor_of(name))
    assert chosen.writes_images
    assert chosen.chosen_because.endswith(f"; images are written with {type(processor_of(name)).__name__!r}")
    message = Message(role="user", content=[TextPart(text="a"), picture(1)])
    expected = processed_ids(processor_of(name), [message], parts=False)
    assert chosen.render([message]).tokens.tolist() == expected


@pytest.mark.matrix(every=9)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_doctor_reports_with_what_images_are_written(name: str) -> None:
    (check,) = [one for one in check_renderer(renderer_of(name), random_replies=2).checks if one.name == "images"]
    assert check.verdict == "PASS"
    assert check.detail.startswith(f"written with {type(processor_of(name)).__name__}: ")


def test_the_doctor_reports_why_images_are_refused() -> None:
    def detail(name: str, tokenizer: Any) -> str:
        report = check_renderer(get_renderer(name, tokenizer), random_replies=2)
        return next(one.detail for one in report.checks if one.name == "images")

    assert detail("qwen3", "embedded") == "images are refused: 'qwen3' cannot write them"
    assert detail("qwen3.5", tokenizer_of("qwen3.5")) == "images are refused without processor="


def test_the_same_screen_is_processed_once_in_a_hundred_steps() -> None:
    processed = 0

    class Counting(type(processor_of("qwen3.5").image_processor)):
        def preprocess(self, *args: Any, **options: Any) -> Any:
            nonlocal processed
            processed += 1
            return super().preprocess(*args, **options)

    class Screen(Env):
        def start(self) -> Turn:
            return self.respond(Message(role="assistant"))

        def respond(self, reply: Message) -> Turn:
            return Turn([Message(role="user", content=[ImagePart(np.full((64, 64, 3), 7, np.uint8))])])

    renderer = get_renderer("qwen3.5", tokenizer_of("qwen3.5"), processor=Counting(patch_size=16))
    stop = renderer.stop_token_ids[0]
    env = Screen(renderer=renderer, limits={"max_steps": 100})
    trajectory = rollout(env, lambda prompt, **request: Action([stop]), seed=0)
    assert len(trajectory.steps) == 100
    assert processed == 1
    assert len(trajectory.images) == 1
