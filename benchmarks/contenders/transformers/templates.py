"""The chat template of transformers, in a process of its own, which renders the whole conversation at each step."""

from functools import cache
from typing import Any

import real_models
from transformers import AutoTokenizer

from benchmarks.contender import Repetition, contender
from benchmarks.workloads import Kind, check_prompt, conversation, tools

PACKAGES = ("transformers", "jinja2")
NOTE = "`apply_chat_template(tokenize=True)` of the conversation, with transformers' fast tokenizer"


@cache
def tokenizer() -> Any:
    """Return Qwen3's tokenizer with its official template, as transformers loads it."""
    loader: Any = AutoTokenizer  # its arguments have no types
    return loader.from_pretrained(real_models.qwen3_folder())


def rendering(kind: Kind, size: int) -> Repetition:
    """Return the rendering of the conversation up to the next reply."""
    messages, offered = conversation(size + 1, kind), tools(kind) or None
    options = {"tools": offered, "add_generation_prompt": True, "tokenize": True, "return_dict": False}
    template = tokenizer()
    check_prompt(template.decode(template.apply_chat_template(messages, **options)), size, kind)

    def render() -> None:
        template.apply_chat_template(messages, **options)

    return render


@contender("tool-turns", "chat template", packages=PACKAGES, note=NOTE)
def tool_turns(size: int) -> Repetition:
    """A conversation with tools."""
    return rendering("tools", size)


@contender("unknown-template", "chat template", packages=PACKAGES, note=NOTE)
def unknown_template(size: int) -> Repetition:
    """A conversation with tools."""
    return rendering("tools", size)


@contender("user-turns", "chat template", packages=PACKAGES, note=NOTE)
def user_turns(size: int) -> Repetition:
    """A conversation with a user."""
    return rendering("users", size)
