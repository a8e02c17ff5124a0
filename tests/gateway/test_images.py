"""Images that agent programs send: read in each protocol, recognized by their bytes, and written as placeholders."""

import base64
import contextlib
import io
from functools import cache
from typing import Any

import anthropic
import httpx
import numpy as np
import openai
import pytest
import real_models
from image_attacks import png_header
from PIL import Image as Pillow
from program_requests import Session, as_sent, result, user
from scripted_sessions import RunningGateway
from vision_models import picture, vision_renderer
from wire_clients import Wire, a_reply, anthropic_client, openai_client

import envsdk
from envsdk import Action, Message, get_renderer
from envsdk.errors import InvalidRecord, RequestError
from envsdk.gateway import ProgramEnv, from_requests
from envsdk.gateway._conversations import Continues
from envsdk.gateway._outside import PlayedSessions
from envsdk.gateway._protocols import WIRE_FORMATS
from envsdk.gateway._protocols._fields import RequestImages, request_images
from envsdk.images import PixelBudget
from envsdk.messages import ImagePart, TextPart
from envsdk.rollouts import StoredRun

SMALL, OTHER = picture(1, 64, 48), picture(2, 64, 48)
URL = SMALL.data.url
BASE64 = base64.b64encode(SMALL.data.data).decode()
SOURCE = {"type": "base64", "media_type": "image/png", "data": BASE64}
LOOK: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def shown(part: ImagePart = SMALL) -> dict[str, Any]:
    return part.to_openai()


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


# What the protocols read.


def test_the_openai_client_sends_images_in_messages_and_in_results_of_tools() -> None:
    wire = Wire("chat")
    wire.answers(a_reply("ok"))
    messages: list[Any] = [
        user([text("Compare "), shown(), text("with"), shown(OTHER)]),
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": [shown(), text("the screen")]},
    ]
    openai_client(wire).chat.completions.create(model="policy", messages=messages, tools=[LOOK])
    first, _, answer = [received.message for received in wire.last.messages]
    assert first.parts == (TextPart(text="Compare "), SMALL, TextPart(text="with"), OTHER)
    assert (answer.images, answer.content) == ((SMALL.data,), "the screen")


def test_the_openai_client_sends_images_in_responses() -> None:
    wire = Wire("responses")
    wire.answers(a_reply("ok"))
    image = {"type": "input_image", "image_url": URL, "detail": "auto"}
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "What is this?"}, image]},
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": [image]},
    ]
    openai_client(wire).responses.create(model="policy", input=items)
    first, _, answer = [received.message for received in wire.last.messages]
    assert first.parts == (TextPart(text="What is this?"), SMALL)
    assert answer.parts == (SMALL,)


def test_the_anthropic_client_sends_images_in_messages_and_in_results_of_tools() -> None:
    wire = Wire("anthropic")
    wire.answers(a_reply("ok"))
    block = {"type": "image", "source": SOURCE}
    messages: list[Any] = [
        user([block, text("What is this?")]),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "look", "input": {}}]},
        user([{"type": "tool_result", "tool_use_id": "call_1", "content": [text("Look:"), block]}, block]),
    ]
    anthropic_client(wire).messages.create(model="policy", messages=messages, max_tokens=5)
    first, _, answer, last = [received.message for received in wire.last.messages]
    assert first.parts == (SMALL, TextPart(text="What is this?"))
    assert answer.parts == (TextPart(text="Look:"), SMALL)
    assert last.parts == (SMALL,)


def a_chat(part: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [part]}]}


def of_responses(part: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [{"type": "input_image", **part}]}]}


def of_anthropic(source: Any) -> dict[str, Any]:
    return {"messages": [user([{"type": "image", "source": source}])], "max_tokens": 1}


REMOTE = "https://example.com/cat.png"
TRUNCATED = base64.b64encode(SMALL.data.data[:200]).decode()
FIRST = "messages[0].content[0]"


@pytest.mark.parametrize(
    ("protocol", "body", "field", "reason"),
    [
        ("chat", a_chat({"type": "image_url", "image_url": {"url": REMOTE}}), f"{FIRST}.image_url.url", "not fetched"),
        ("chat", a_chat({"type": "image_url", "image_url": {"url": 5}}), f"{FIRST}.image_url.url", "a string"),
        ("chat", a_chat({"type": "image_url"}), f"{FIRST}.image_url", "required"),
        ("chat", a_chat(shown(), role="system"), FIRST, "not supported"),
        ("chat", a_chat(shown(), role="assistant"), FIRST, "not supported"),
        ("responses", of_responses({"image_url": REMOTE}), "input[0].content[0].image_url", "not fetched"),
        ("responses", of_responses({"file_id": "file_1"}), "input[0].content[0].file_id", "not stored"),
        ("anthropic", of_anthropic({"type": "url", "url": REMOTE}), f"{FIRST}.source.type", "nothing is fetched"),
        ("anthropic", of_anthropic({**SOURCE, "data": "%"}), f"{FIRST}.source.data", "not base64"),
        (
            "anthropic",
            of_anthropic({**SOURCE, "data": "aGVsbG8="}),
            f"{FIRST}.source.data",
            "not PNG, JPEG or WebP$",
        ),
        ("anthropic", of_anthropic({**SOURCE, "data": TRUNCATED}), f"{FIRST}.source.data", "cannot be read"),
    ],
)
def test_an_image_that_cannot_be_read_is_refused_and_named(
    protocol: str, body: dict[str, Any], field: str, reason: str
) -> None:
    with pytest.raises(RequestError, match=reason) as found:
        WIRE_FORMATS[protocol].read({"model": "m", **body}, {})
    assert (found.value.status, found.value.field) == (400, field)


def huge(width: int, height: int) -> dict[str, Any]:
    """A part whose file promises many pixels and has none: to decode it would be another error."""
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded(png_header(width, height))}"}}


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def read_with(content: list[Any], **limits: int) -> None:
    token = request_images.set(RequestImages(budget=PixelBudget(**limits)))
    try:
        WIRE_FORMATS["chat"].read({"model": "m", "messages": [user(content)]}, {})
    finally:
        request_images.reset(token)


def test_the_pixels_of_all_images_of_a_body_are_counted_before_one_too_many_is_decoded():
    with pytest.raises(RequestError, match="more than 700,000 pixels together") as found:
        read_with([shown(picture(1, 512, 512)), shown(picture(2, 512, 512)), huge(1024, 512)], pixels=700_000)
    assert found.value.field == "messages[0].content[2].image_url.url"
    with pytest.raises(RequestError, match="1024 x 512 pixels; at most 400,000"):
        read_with([huge(1024, 512)], each=400_000)


def test_many_small_images_count_for_more_than_their_pixels():
    with pytest.raises(RequestError, match="together") as found:
        read_with([shown()] * 9, pixels=8 * 2**17)
    assert found.value.field == "messages[0].content[8].image_url.url"


def test_a_webp_image_is_read_and_an_animation_format_is_not():
    webp, gif = io.BytesIO(), io.BytesIO()
    Pillow.new("RGB", (8, 8)).save(webp, "WEBP")
    Pillow.new("RGB", (8, 8)).save(gif, "GIF")
    for file, is_read in ((webp, True), (gif, False)):
        part = {"type": "image_url", "image_url": {"url": f"data:;base64,{encoded(file.getvalue())}"}}
        with contextlib.nullcontext() if is_read else pytest.raises(RequestError, match="not PNG, JPEG or WebP"):
            read_with([part])


# What requests with images mean.


def a_session() -> tuple[Session, list[dict[str, Any]]]:
    session = Session()
    sent = [user([text("What is "), shown(), text("this?")])]
    reply = session.ask(sent, "Let me look.", [("look", {})])
    sent += [as_sent(reply), result(reply.tool_calls[0].id or "", [shown(OTHER)])]
    return session, [*sent, as_sent(session.ask(sent, "It is noise, in gray and in many other colors."))]


def test_an_image_that_is_sent_again_is_the_same_message():
    session, sent = a_session()
    placed = session.place([*sent, user("Are you sure?")])
    assert isinstance(placed, Continues) and placed.keep is None
    assert [message.content for message in placed.messages] == ["Are you sure?"]


def test_an_image_in_another_form_of_its_message_is_the_same_message():
    session, sent = a_session()
    sent[0] = user([text("What is "), shown(), text("this"), text("?\n")])
    placed = session.place([*sent, user("Are you sure?")])
    assert isinstance(placed, Continues) and placed.keep is None


@pytest.mark.parametrize(
    ("index", "content"),
    [
        (0, [text("What is "), shown(OTHER), text("this?")]),
        (0, [shown(), text("What is this?")]),
        (0, [text("What is this?")]),
        (2, [shown()]),
    ],
    ids=["another image", "another place", "left out", "another result"],
)
def test_an_image_that_changed_is_an_edit(index, content):
    session, sent = a_session()
    sent[index] = {**sent[index], "content": content}
    placed = session.place([*sent, user("And now?")])
    assert isinstance(placed, Continues)
    assert (placed.context, placed.keep) == ("main", index + 1)
    assert placed.changed == f"message {index + 1} ({sent[index]['role']}) differs"


def test_messages_with_an_image_are_never_taken_for_one_with_fewer_of_them():
    session = Session()
    sent = [user([text("a"), shown()]), user([text("b"), shown()])]
    sent.append(as_sent(session.ask(sent, "Two pictures of noise, one after another.")))
    placed = session.place([user([text("a"), shown(), text("b")]), *sent[2:], user("And now?")])
    assert not isinstance(placed, Continues) or placed.keep is not None


# Episodes.


class Looks(ProgramEnv):
    """A program that shows a picture, then another one in a tool's result, with the first one sent again."""

    def run(self, model: Any) -> float:
        with anthropic.Anthropic(base_url=model.anthropic_base_url, api_key=model.api_key, max_retries=0) as client:
            messages: list[Any] = [user([text("What is this?"), {"type": "image", "source": SOURCE}])]
            for content in ("Look again.", [{"type": "image", "source": SOURCE}]):
                reply = client.messages.create(model="m", messages=messages, max_tokens=50)
                messages += [{"role": "assistant", "content": [b.model_dump() for b in reply.content]}, user(content)]
        return 1.0


def saying(renderer: Any, seen: list[Any] | None = None) -> Any:
    reply = [*renderer.tokenizer.encode("Noise.").tolist(), renderer.stop_token_ids[0]]

    def policy(prompt: Any, *, media: Any = (), **_: Any) -> Action:
        if seen is not None:
            seen.append((prompt, media))
        return Action(reply, np.full(len(reply), -0.5))

    policy.tokenizer = "any"  # type: ignore[attr-defined]
    return policy


def test_a_program_that_sends_an_image_samples_from_a_prompt_with_its_placeholders():
    renderer, seen = vision_renderer(), []
    trajectory = envsdk.rollout(Looks(renderer=renderer), saying(renderer, seen), seed=0)
    assert (trajectory.status, trajectory.reward, trajectory.breaks) == ("terminated", 1.0, [])
    pad = renderer.tokenizer.token_id("<|image_pad|>")
    for prompt, media in seen:
        [placed] = media
        assert placed.image == SMALL.data
        assert np.flatnonzero(prompt == pad).tolist() == list(range(placed.start, placed.stop))
    assert len({id(image) for image in trajectory.images}) == 1


def test_an_image_counts_with_its_placeholders_where_a_context_is_full():
    renderer = vision_renderer()
    large = picture(3, 1024, 1024)

    class TooLarge(ProgramEnv):
        def run(self, model: Any) -> float:
            with openai.OpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0) as client:
                client.chat.completions.create(model="m", messages=[user([shown()])])
                with pytest.raises(openai.BadRequestError, match="maximum context length"):
                    client.chat.completions.create(model="m", messages=[user([shown(large)])])
                client.chat.completions.create(model="m", messages=[user([shown(OTHER)])])
            return 1.0

    env = TooLarge(renderer=renderer, limits={"max_context_tokens": 400})
    trajectory = envsdk.rollout(env, saying(renderer), seed=0)
    assert (trajectory.status, trajectory.reward) == ("terminated", 1.0), trajectory.error


@pytest.mark.parametrize("renderer", ["qwen3", "fixed_base"])
def test_a_renderer_of_texts_refuses_the_request_before_it_decodes_the_image_and_the_program_goes_on(renderer):
    class Tries(ProgramEnv):
        def run(self, model: Any) -> float:
            with openai.OpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0) as client:
                with pytest.raises(openai.BadRequestError, match=r"content\[0\].*cannot write images"):
                    client.chat.completions.create(model="m", messages=[user([huge(8000, 8000)])])  # type: ignore
                client.chat.completions.create(model="m", messages=[user("Then in words.")])
            return 1.0

    with_folder = {"renderer": renderer, "tokenizer": real_models.qwen3_folder()}
    env = Tries(**with_folder)
    trajectory = envsdk.rollout(env, saying(env.renderer), seed=0)
    assert (trajectory.status, trajectory.reward) == ("terminated", 1.0), trajectory.error


def test_the_gateway_stores_an_image_that_is_sent_with_each_request_once(tmp_path):
    renderer = vision_renderer()
    sessions = PlayedSessions(saying(renderer), {"renderer": renderer}, out=tmp_path / "run")
    with RunningGateway(sessions) as url, httpx.Client(base_url=url, timeout=600) as client:
        opened = client.post("/sessions", json={}).json()
        messages: list[Any] = [user([text("What is this?"), shown()])]
        for _ in range(3):
            body = {"model": "m", "messages": messages}
            answer = client.post(f"{opened['openai_base_url']}/chat/completions", json=body).json()
            messages += [answer["choices"][0]["message"], user("Are you sure?")]
        client.post(f"/sessions/{opened['id']}/close", json={}).raise_for_status()
    assert [file.name for file in (tmp_path / "run" / "media").iterdir()] == [SMALL.data.file_name]
    (trajectory,) = StoredRun(tmp_path / "run").trajectories()
    assert (len(trajectory.steps), trajectory.breaks) == (3, [])
    assert [image.data for image in trajectory.images] == [SMALL.data.data]


# Logged sessions.


@cache
def renderer() -> Any:
    return vision_renderer()


def logged(*images: list[ImagePart], has_ids: bool = True) -> list[dict[str, Any]]:
    """The records of a conversation whose messages of the user have images: for each request, those of all messages."""
    records = []
    for given in images:
        messages: list[Message] = []
        for number, part in enumerate(given):
            messages += [Message(role="assistant", content=f"Noise {number}.")] if number else []
            messages.append(Message(role="user", content=[TextPart(text=f"What is {number}?"), part]))
        reply = Message(role="assistant", content=f"Noise {len(given)}.")
        ids: dict[str, Any] = {
            "prompt_token_ids": renderer().render(messages, generation_prompt=True).tokens.tolist(),
            "token_ids": renderer().reply(reply).tolist(),
        }
        choice = {"message": {"role": "assistant", "content": reply.content}, "finish_reason": "stop"}
        ids = ids if has_ids else {}
        sent = [message.to_openai() for message in messages]
        records.append({"request": {"messages": sent}, "response": {"choices": [choice | ids]} | ids})
    return records


def test_a_logged_session_has_its_images_at_their_tokens():
    parts = [SMALL, picture(3, 200, 90)]
    imported = from_requests(logged([SMALL], parts), renderer=renderer())
    trajectory, log = imported.trajectory, imported.trajectory.contexts["main"]
    assert [step.extends for step in trajectory.steps] == [False, True]
    assert [placed.image for placed in log.media] == [part.data for part in parts]
    for placed in log.media:
        own = log.tokens[placed.start : placed.stop]
        assert len(own) == renderer().vision.count(placed.image) and np.isin(own, renderer().vision.token_ids).all()
    (sample,) = trajectory.samples()
    assert sample.tokens.tolist() == log.tokens.tolist() and list(sample.media) == log.media
    assert envsdk.Trajectory.from_json(trajectory.to_json()).to_json() == trajectory.to_json()


def test_another_image_with_the_same_tokens_is_not_shared_in_a_logged_session():
    imported = from_requests(logged([SMALL, SMALL], [SMALL, OTHER, SMALL]), renderer=renderer())
    log, step = imported.trajectory.contexts["main"], imported.trajectory.steps[1]
    assert (step.keep, step.extends) == (log.media[1].start, False)
    assert [[placed.image for placed in own] for own in imported.trajectory.prompt_images()] == [
        [SMALL.data, SMALL.data],
        [SMALL.data, OTHER.data, SMALL.data],
    ]


def test_logged_texts_with_images_become_supervised_samples_with_images():
    imported = from_requests(logged([SMALL], [SMALL, OTHER], has_ids=False), renderer=renderer())
    assert [[placed.image for placed in sample.media] for sample in imported.sft] == [[SMALL.data, OTHER.data]]
    assert not imported.trajectory.steps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda: {"renderer": get_renderer("qwen3", real_models.qwen3_folder())}, "pass renderer= of a vision model"),
        (lambda: {"vocab_size": renderer().tokenizer.vocab_size}, "record 0: the request has images"),
        (
            lambda: {"renderer": vision_renderer("qwen3_vl")},
            "record 0: the tokens of the images in the logged prompt are not",
        ),
    ],
)
def test_logged_images_whose_tokens_are_not_known_are_refused(options, message):
    with pytest.raises(InvalidRecord, match=message):
        from_requests(logged([picture(3, 200, 90)]), **options())


def test_a_logged_image_at_a_remote_url_is_refused():
    (given,) = logged([SMALL])
    given["request"]["messages"][0]["content"][1]["image_url"]["url"] = "https://example.com/x.png"
    with pytest.raises(InvalidRecord, match=r"record 0: .*is not fetched"):
        from_requests([given], renderer=renderer())
