"""Families of vision models against the processors of transformers, token by token."""

from random import Random
from typing import Any

import numpy as np
import pytest
from envsdk_renderers.fixed_base import FixedBase
from template_conversations import TOOLS, emitted
from vision_conversations import random_conversation
from vision_families import FAMILIES, processor_of, renderer_of, tokenizer_of
from vision_models import processed_ids

from envsdk.errors import RenderError


@pytest.mark.parametrize("name", FAMILIES)
def test_rendering_is_the_processors_own_to_the_token(name: str, is_full: bool) -> None:
    family, renderer, rng = FAMILIES[name], renderer_of(name), Random(f"images {name}")
    wanted = 300 if is_full else 12
    compared = images = 0
    for _ in range(3 * wanted):
        if compared == wanted:
            break
        messages = random_conversation(rng, family)
        tools = TOOLS if any(message.role == "tool" for message in messages) else ()
        try:
            rendered = renderer.render(messages, tools=tools, generation_prompt=True)
        except RenderError:
            continue  # 
        expected = processed_ids(
            processor_of(name), messages, tools=list(tools) or None, add_generation_prompt=True
        )
        assert rendered.tokens.tolist() == expected
        compared += 1
        images += sum(len(message.images) for message in messages)
    assert compared == wanted
    assert images > wanted
