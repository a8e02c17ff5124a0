"""Images in the prompts of policies on servers: the tokens that a server makes of them are checked."""

import base64
import io

import numpy as np
import PIL.Image
import pytest
from model_servers import ModelServer
from policy_requests import ask
from vision_models import picture, qwen_processor, vision_renderer

import envsdk
from envsdk import Action, Env, Turn
from envsdk.errors import ConfigError, PolicyError, ServerMismatch, ServerReplyError
from envsdk.images import Image, rgb_image
from envsdk.messages import Message, TextPart
from envsdk.policies import VLLM, OpenAIChat, SGLang
from envsdk.policies._openai_chat import chat_messages
from envsdk.rendering._vision import Vision

GENERATE = "/inference/v1/generate"
PARTS = [TextPart(text="Compare "), picture(1, 200, 160), TextPart(text=" with "), picture(2, 96, 60)]
IMAGES = [PARTS[1].data, PARTS[3].data]
RENDERER = vision_renderer()
PROMPT = RENDERER.render([Message(role="user", content=PARTS)], generation_prompt=True).tokens
MEDIA = tuple(RENDERER.vision.places(PROMPT, IMAGES))
PAD = RENDERER.tokenizer.token_id("<|image_pad|>")


def server_of(kind="vllm", **options):
    return ModelServer(kind, tokenizer=RENDERER.tokenizer, **options)


@pytest.mark.parametrize("streams", [False, True])
def test_vllm_gets_one_placeholder_for_each_image_and_samples_from_our_prompt(streams):
    seen = []
    with server_of() as server:
        server.vision = RENDERER.vision
        given = {"on_tokens": lambda tokens: seen.extend(tokens)} if streams else {}
        action = ask(VLLM(server.url, check=False), prompt=PROMPT, media=MEDIA, max_tokens=5, **given)
        (body,) = server.bodies(GENERATE)
    assert len(action.tokens)
    assert seen == (action.tokens.tolist() if streams else [])
    assert body["content_parts"] == [{"type": "image_url", "url": image.url} for image in IMAGES]
    later = [index for placed in MEDIA for index in range(placed.start + 1, placed.stop)]
    assert body["token_ids"] == np.delete(PROMPT, later).tolist()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_a_transparent_image_is_sent_with_the_pixels_that_a_processor_sees(mode):
    pixels = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 96, 4), dtype=np.uint8))
    file = io.BytesIO()
    pixels.convert(mode).save(file, "PNG", **({"transparency": 2} if mode == "P" else {}))
    image = Image.read(file.getvalue())
    sent = PIL.Image.open(io.BytesIO(base64.b64decode(rgb_image(image).url.split(",")[1])))
    assert image.media_type == "image/png"
    assert sent.mode == "RGB"
    assert np.array_equal(np.asarray(sent), np.asarray(image.pixels))


def test_the_probe_of_a_server_has_no_placeholders():
    with server_of() as server:
        server.vision = RENDERER.vision
        ask(VLLM(server.url), prompt=PROMPT, media=MEDIA, max_tokens=5)
        probes = [body for path, body, _ in server.requests if path == GENERATE][:-1]
    assert probes
    assert not any(PAD in body["token_ids"] for body in probes)


def test_a_server_with_another_image_processor_is_refused():
    processor = qwen_processor("qwen3_vl")
    with server_of() as server:
        server.vision = Vision(processor, RENDERER.tokenizer)
        with pytest.raises(
            ServerReplyError, match=r"sampled from a different prompt: .* Start vLLM with the image processor"
        ):
            ask(VLLM(server.url, check=False), prompt=PROMPT, media=MEDIA, max_tokens=5)


def test_a_server_that_does_not_return_its_prompt_is_refused():
    with server_of() as server, pytest.raises(ServerReplyError, match="did not return prompt_token_ids"):
        ask(VLLM(server.url, check=False), prompt=PROMPT, media=MEDIA, max_tokens=5)


def test_completions_take_no_images():
    with server_of(has_token_endpoint=False) as server, pytest.raises(ServerMismatch, match="--enable-scale-out"):
        ask(VLLM(server.url, check=False), prompt=PROMPT, media=MEDIA, max_tokens=5)
        assert not server.bodies("/v1/completions")


def test_sglang_refuses_images_before_it_asks_a_server():
    with server_of("sglang") as server:
        with pytest.raises(ConfigError, match=r"the prompt has an image: SGLang's /generate"):
            ask(SGLang(server.url), prompt=PROMPT, media=MEDIA, max_tokens=5)
        assert not server.requests


def test_a_chat_model_gets_the_images_as_parts_of_its_messages():
    (sent,) = chat_messages([Message(role="user", content=PARTS)])
    assert [part["type"] for part in sent["content"]] == ["text", "image_url", "text", "image_url"]
    assert sent["content"][1]["image_url"]["url"] == IMAGES[0].url
    assert not OpenAIChat.trainable


def test_a_policy_without_the_keyword_media_is_refused_where_a_prompt_has_images():
    class Show(Env):
        def start(self):
            return Turn([Message(role="user", content=PARTS)])

        def respond(self, reply):
            return Turn(terminated=True)

    def blind(prompt, *, episode_id, context, base, keep, role, stop_token_ids, stop, max_tokens, sampling):
        return Action([stop_token_ids[0]])

    with pytest.raises(PolicyError, match="the policy blind does not take images: add the keyword argument media"):
        envsdk.rollout(Show(renderer=RENDERER), blind, seed=0)
