"""Supervised samples of conversations with images."""

import numpy as np
import pytest
from vision_models import picture, processed_ids, qwen_processor, vision_renderer

from envsdk import Message, sft_samples
from envsdk.messages import TextPart

CONVERSATION = [
    Message(
        role="user", content=[TextPart(text="Compare "), picture(1, 200, 160), TextPart(text=" with "), picture(2)]
    ),
    Message(role="assistant", content="They differ."),
    Message(role="user", content=[picture(1, 200, 160), TextPart(text=" again.")]),
    Message(role="assistant", content="As before."),
]


def images_at(sample, vision) -> None:
    inside = np.zeros(len(sample), bool)
    for placed in sample.media:
        inside[placed.start : placed.stop] = True
    assert np.array_equal(inside, np.isin(sample.tokens, vision.token_ids))
    sample.validate()


@pytest.mark.parametrize("template", ["qwen2_5_vl", "qwen3_vl"])
def test_the_ids_are_the_processor_s_and_the_images_are_at_their_tokens(template: str):
    renderer = vision_renderer(template)
    (sample,) = sft_samples(renderer, CONVERSATION)
    whole = processed_ids(qwen_processor(template), CONVERSATION)
    assert sample.tokens.tolist() == whole[: len(sample)]
    assert renderer.tokenizer.decode(np.array(whole[len(sample) :], np.int32)).strip() == ""
    images_at(sample, renderer.vision)
    assert [placed.image for placed in sample.media] == [
        part.data for message in CONVERSATION for part in message.parts or () if part.type == "image"
    ]


def test_a_sample_that_ends_early_has_only_the_images_before_its_end():
    renderer = vision_renderer()
    (sample,) = sft_samples(renderer, CONVERSATION, train_on=0)
    images_at(sample, renderer.vision)
    assert len(sample.media) == 2


def test_a_trained_user_message_does_not_train_its_images():
    renderer = vision_renderer()
    conversation = [Message(role="user", content=[picture(1), TextPart(text="What is this?")]), *CONVERSATION[1:2]]
    (sample,) = sft_samples(renderer, conversation, train_on=["user", "assistant"])
    images_at(sample, renderer.vision)
    assert "What is this?" in renderer.tokenizer.decode(sample.tokens[sample.mask])
