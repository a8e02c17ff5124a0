"""Images as chunks of tinker's own types."""

import asyncio
import hashlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import tinker
from trainers.pictures import Gallery, images_of, says, shown_sample
from vision_models import vision_renderer

from envsdk import rollout
from envsdk.trainers.tinker import CompleterPolicy, CookbookEnv, to_datums


def hashes(model_input: Any) -> list[str]:
    chunks = [chunk for chunk in model_input.chunks if isinstance(chunk, tinker.types.ImageChunk)]
    return [hashlib.sha256(chunk.data).hexdigest() for chunk in chunks]


def test_a_datum_has_an_image_in_the_place_of_its_tokens():
    sample = shown_sample()
    (datum,) = to_datums([sample])
    assert hashes(datum.model_input) == [image.sha256 for image in images_of(sample)]
    assert datum.model_input.length == len(sample) - 1
    ids: list[int] = []
    for chunk in datum.model_input.chunks:
        is_text = isinstance(chunk, tinker.EncodedTextChunk)
        ids += chunk.tokens if is_text else [0] * chunk.length
    inside = np.isin(sample.tokens, vision_renderer().vision.token_ids)
    expected = np.where(inside, 0, sample.tokens)
    assert ids == expected[:-1].tolist()
    assert datum.loss_fn_inputs["target_tokens"].data == expected[1:].tolist()


def test_a_completer_sees_the_images_of_the_prompt():
    renderer, seen = vision_renderer(), []

    async def completer(model_input: Any, stop: Any, *, max_tokens: Any) -> Any:
        seen.append(model_input)
        reply = says(renderer)(None)
        return SimpleNamespace(tokens=reply.tokens, maybe_logprobs=reply.logprobs, stop_reason="stop")

    trajectory = rollout(Gallery(renderer=renderer), CompleterPolicy(completer, renderer.tokenizer), seed=0)
    shown = [[placed.image.sha256 for placed in media] for media in trajectory.prompt_images()]
    assert [hashes(prompt) for prompt in seen] == shown == [shown[1][:2], shown[1]]
    assert [prompt.length for prompt in seen] == [len(prompt.prompt) for prompt in trajectory.prompts()]


def test_an_observation_of_the_cookbook_has_the_images_of_the_whole_prompt():
    renderer = vision_renderer()
    env = CookbookEnv(Gallery(renderer=renderer), seed=0)
    env.tokenizer = renderer.tokenizer  # type: ignore[attr-defined]
    first, _ = asyncio.run(env.initial_observation())
    result = asyncio.run(env.step(list(says(renderer)(None).tokens)))
    assert (len(hashes(first)), len(hashes(result.next_observation))) == (2, 3)
