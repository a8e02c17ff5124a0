"""Prime Intellect's renderers: the bridge to the next turn, and the rendering of whole conversations."""

from functools import cache
from time import process_time
from typing import Any

import real_models
from renderers.configs import Qwen3RendererConfig
from renderers.qwen3 import Qwen3Renderer
from transformers import AutoTokenizer

from benchmarks.contender import Repetition, contender
from benchmarks.workloads import answer, check_prompt, conversation, reply, tools

PACKAGES = ("renderers", "tokenizers", "transformers")
BRIDGES = 5
"""The bridges that one repetition measures."""


@cache
def tokenizer() -> Any:
    """Return Qwen3's tokenizer as transformers loads it."""
    return AutoTokenizer.from_pretrained(real_models.qwen3_folder())


@contender(
    "tool-turns",
    "renderers, bridge",
    packages=PACKAGES,
    note="`Qwen3Renderer.bridge_to_next_turn` alone, without reading the reply",
)
def bridge(size: int) -> Repetition:
    """Continue a prompt and a reply by a tool's answer."""
    renderer = Qwen3Renderer(tokenizer(), Qwen3RendererConfig())
    past, offered = conversation(size, "tools"), tools("tools")
    prompt = renderer.render_ids(past, tools=offered, add_generation_prompt=True)
    whole = renderer.render_ids([*past, reply(size, "tools")], tools=offered)
    completion = whole[len(prompt) : len(whole) - 1]  # the newline after the turn is not sampled
    first = renderer.bridge_to_next_turn(prompt, completion, [answer(size, "tools")], tools=offered)
    if first is None:
        raise ValueError("the bridge refuses")
    check_prompt(tokenizer().decode(first.token_ids), size, "tools")
    answers = [answer(step, "tools") for step in range(size, size + BRIDGES)]

    def bridges() -> float:
        start = process_time()
        for message in answers:
            renderer.bridge_to_next_turn(prompt, completion, [message], tools=offered)
        return (process_time() - start) / BRIDGES

    return bridges


@contender(
    "user-turns",
    "renderers",
    packages=PACKAGES,
    note="`Qwen3Renderer.render_ids` of the conversation: its bridge refuses where a user's message drops reasoning",
)
def render(size: int) -> Repetition:
    """Render the whole conversation."""
    renderer = Qwen3Renderer(tokenizer(), Qwen3RendererConfig())
    messages: Any = conversation(size + 1, "users")
    check_prompt(tokenizer().decode(renderer.render_ids(messages, add_generation_prompt=True)), size, "users")

    def rendered() -> None:
        renderer.render_ids(messages, add_generation_prompt=True)

    return rendered
