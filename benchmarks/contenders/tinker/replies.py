"""Replies that tinker's cookbook reads."""

from time import process_time
from typing import Any

import real_models
from tinker_cookbook.renderers.base import Renderer
from tinker_cookbook.renderers.gpt_oss import GptOssRenderer
from tinker_cookbook.renderers.qwen3 import Qwen3Renderer
from transformers import AutoTokenizer

from benchmarks.contender import Repetition, contender
from benchmarks.workloads import READ, Family, gpt_oss_folder, peers_replies

PACKAGES = ("tinker-cookbook", "tokenizers", "transformers")
NOTE = "`Renderer.parse_response`; the arguments of a call stay text"


def reading(reader: Renderer, family: Family) -> Repetition:
    """Return the reading of replies of a family."""
    given = peers_replies(family)
    message, _ = reader.parse_response(given[0])
    if not message.get("tool_calls"):
        raise ValueError("it finds no call")

    def reads() -> float:
        start = process_time()
        for tokens in given:
            reader.parse_response(tokens)
        return (process_time() - start) / READ

    return reads


@contender("reply", "tinker-cookbook", packages=PACKAGES, note=NOTE)
def qwen3(size: int) -> Repetition:
    """Replies of Qwen3."""
    return reading(Qwen3Renderer(tokenizer(real_models.qwen3_folder())), "qwen3")


@contender("harmony-reply", "tinker-cookbook", packages=PACKAGES, note=NOTE)
def harmony(size: int) -> Repetition:
    """Replies of gpt-oss."""
    return reading(GptOssRenderer(tokenizer(gpt_oss_folder())), "harmony")


def tokenizer(folder: Any) -> Any:
    """Return a tokenizer as transformers loads it."""
    return AutoTokenizer.from_pretrained(folder)
