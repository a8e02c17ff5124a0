"""Tinker's cookbook: it renders the whole conversation at each step, as its `EnvFromMessageEnv` does."""

import json
from functools import cache
from typing import Any

import real_models
from tinker_cookbook.renderers.base import Message, Renderer, ThinkingPart, ToolCall
from tinker_cookbook.renderers.qwen3 import Qwen3Renderer
from transformers import AutoTokenizer

from benchmarks.contender import Repetition, contender
from benchmarks.workloads import SYSTEM, Kind, RawMessage, check_prompt, conversation, tools

PACKAGES = ("tinker-cookbook", "tinker", "tml-renderers", "tokenizers", "transformers")


@cache
def tokenizer() -> Any:
    """Return Qwen3's tokenizer as transformers loads it."""
    return AutoTokenizer.from_pretrained(real_models.qwen3_folder())


def message(given: RawMessage) -> Message:
    """Convert a message to the cookbook's form."""
    made = Message(role=given["role"], content=given["content"])
    if "reasoning_content" in given:
        thought = ThinkingPart(type="thinking", thinking=given["reasoning_content"])
        made["content"] = [thought, {"type": "text", "text": given["content"]}]
    if "tool_calls" in given:
        made["tool_calls"] = [call(each) for each in given["tool_calls"]]
    return made


def call(given: dict[str, Any]) -> ToolCall:
    """Convert a call, whose arguments are JSON text in the cookbook."""
    function = given["function"]
    body = ToolCall.FunctionBody(name=function["name"], arguments=json.dumps(function["arguments"]))
    return ToolCall(function=body, id=given["id"])


def messages(renderer: Renderer, size: int, kind: Kind) -> list[Message]:
    """Return the conversation up to the next reply; tools are a part of the system message."""
    converted = [message(given) for given in conversation(size + 1, kind)]
    if tools(kind):
        specifications = [tool["function"] for tool in tools(kind)]
        converted[:1] = renderer.create_conversation_prefix_with_tools(specifications, SYSTEM)
    return converted


def rendering(kind: Kind, size: int, *, strips: bool) -> Repetition:
    """Return the rendering of the whole conversation."""
    renderer = Qwen3Renderer(tokenizer(), strip_thinking_from_history=strips)
    given = messages(renderer, size, kind)
    check_prompt(tokenizer().decode(renderer.build_generation_prompt(given).to_ints()), size, kind)

    def render() -> None:
        renderer.build_generation_prompt(given)

    return render


@contender(
    "tool-turns",
    "tinker-cookbook",
    packages=PACKAGES,
    note="`Qwen3Renderer(strip_thinking_from_history=False).build_generation_prompt` of the conversation, without "
    "reading the reply",
)
def tool_turns(size: int) -> Repetition:
    """A conversation with tools."""
    return rendering("tools", size, strips=False)


@contender(
    "user-turns",
    "tinker-cookbook",
    packages=PACKAGES,
    note="`Qwen3Renderer.build_generation_prompt` of the conversation, without reading the reply",
)
def user_turns(size: int) -> Repetition:
    """A conversation with a user."""
    return rendering("users", size, strips=True)
