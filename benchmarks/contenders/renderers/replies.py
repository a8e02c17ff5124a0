"""Replies that Prime Intellect's renderers read."""

import os
from time import process_time
from typing import Any

import real_models
from renderers.base import Renderer, create_renderer
from renderers.configs import config_from_name
from transformers import AutoTokenizer

from benchmarks.contender import Repetition, contender
from benchmarks.workloads import READ, Family, gpt_oss_folder, peers_replies, tools

PACKAGES = ("renderers", "tokenizers", "transformers")
NOTE = "`Renderer.parse_response`"


def renderer(name: str, folder: Any) -> Renderer:
    """Return the renderer of a family, with its tokenizer as transformers loads it."""
    config = config_from_name(name)
    assert config is not None
    return create_renderer(AutoTokenizer.from_pretrained(folder), config)


def gpt_oss() -> Renderer:
    """Return the renderer of gpt-oss, which makes OpenAI's encoding of a file in this folder."""
    os.environ.setdefault("TIKTOKEN_ENCODINGS_BASE", str(real_models.o200k_folder()))
    return renderer("gpt-oss", gpt_oss_folder())


def reading(reader: Renderer, family: Family) -> Repetition:
    """Return the reading of replies of a family, after the header that a prompt of gpt-oss ends with."""
    header = [200006, 173781] if family == "harmony" else []
    given, offered = [[*header, *tokens] for tokens in peers_replies(family)], tools("tools")
    if not reader.parse_response(given[0], tools=offered).tool_calls:
        raise ValueError("it finds no call")

    def reads() -> float:
        start = process_time()
        for tokens in given:
            reader.parse_response(tokens, tools=offered)
        return (process_time() - start) / READ

    return reads


@contender("reply", "renderers", packages=PACKAGES, note=NOTE)
def qwen3(size: int) -> Repetition:
    """Replies of Qwen3."""
    return reading(renderer("qwen3", real_models.qwen3_folder()), "qwen3")


@contender("harmony-reply", "renderers", packages=PACKAGES, note=NOTE)
def harmony(size: int) -> Repetition:
    """Replies of gpt-oss."""
    return reading(gpt_oss(), "harmony")
