"""Chat templates to measure, a vocabulary and a renderer for each, and random conversations that most of them take."""

import functools
import importlib.metadata
import json
import os
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import real_models
from envsdk_renderers._fixed_base import FixedBase
from envsdk_renderers._grammars._probes import KEYS, call_of, reply
from envsdk_renderers._grammars._proof import has_all
from matrices import covering
from stand_in_tokenizers import NAMES, SHAPE, end_of_turn, tokenizer_with

from envsdk import Message, Renderer, ToolCall, load_tokenizer
from envsdk.rendering.renderer import EmittedDelta
from envsdk.rendering.tokenizers import Tokenizer

TEXTS = (
    *("Hello there.", "a", "12", " padded ", "\nline\n\nline\n", "x = 1\n    y\n", "你好，世界", "😀 é", "user"),
    *('{"a": [1, "b"]}', "<b>&amp;'\"", "- one\n- two", "\\n", "yes", "tool", "{{ x }}", "", "  ", "None"),
)
VALUES: dict[str, tuple[Any, ...]] = {
    "string": TEXTS,
    "second": TEXTS,
    "number": (0, -3, 2.5, 10**12),
    "boolean": (True, False),
    "array": ([], ["a", {"b": None}], [1, [2]]),
    "object": ({}, {"a": {"b": ["</x>", '"']}}),
}
"""Values of arguments, by their kind as `KEYS` names it."""
TOOLS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Does what it says.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Where."}}},
        },
    }
    for name in ("get_weather", "search")
)
REAL = {"qwen2_5": "qwen2.5", "qwq": "qwen2.5", "qwen3": "qwen3", "gptoss": "gpt-oss", "deepseek": "deepseek-v4"}


def _may_use_shared() -> bool:
    return os.environ.get("ENVSDK_TEST_NO_SHARED") != "1"


@functools.cache
def templates() -> dict[str, str]:
    """All templates by name: those of the trl wheel, and those of shared/ that it does not have."""
    found: dict[str, str] = {}
    for file in importlib.metadata.files("trl") or ():
        if file.parent.as_posix() == "trl/chat_templates" and file.suffix == ".jinja":
            found[file.stem] = file.read_binary().decode()
    shared = real_models.SHARED / "templates"
    for path in sorted(shared.glob("*.jinja")) if _may_use_shared() else ():
        found.setdefault(path.stem, path.read_bytes().decode())
    return found


TABLE = Path(__file__).parent / "renderers" / "template_table.json"


@functools.cache
def stored_rows() -> dict[str, Any]:
    """What was measured for each template, by its name; see `template_table`."""
    return {row["name"]: row for row in json.loads(TABLE.read_text(encoding="utf-8"))}


@functools.cache
def short_run_templates() -> list[str]:
    """A few templates with each judgement that any of them has, and each that is not in the table yet."""
    names = sorted(templates(), key=lambda name: stored_rows().get(name, {}).get("ms", 0))
    rows: list[dict[str, Any]] = []
    for name in names:
        row = stored_rows().get(name, {"name": name, "cells": {}})
        values = {key: row.get(key, "") for key in ("reading", "reasoning")} | {"strip": row.get("strip", name)[:8]}
        cells = {f"{kind} {at}": letter for kind, cell in row["cells"].items() for at, letter in enumerate(cell)}
        rows.append(values | cells)
    return sorted(names[at] for at in covering(rows))


def every_template() -> list[Any]:
    """The names of all templates as rows of a test, of which a short run takes a few."""
    short = short_run_templates()
    return [name if name in short else pytest.param(name, marks=pytest.mark.full) for name in templates()]


def end_token(name: str) -> str:
    """What the model samples to end a turn, if its configuration specifies it."""
    return "<|endoftext|>" if name.startswith("glm") else end_of_turn(templates()[name])


@functools.cache
def tokenizer_of(name: str) -> Tokenizer:
    """The real vocabulary where there is one, else the embedded one with the control tokens of all templates."""
    family = next((folder for prefix, folder in REAL.items() if name.startswith(prefix)), None)
    if family == "qwen3":
        return load_tokenizer(real_models.qwen3_folder())
    folder = real_models.SHARED / "tokenizers" / (family or "none")
    is_real = family is not None and _may_use_shared() and folder.is_dir()
    return load_tokenizer(folder) if is_real else _stand_in()


@functools.cache
def _stand_in() -> Tokenizer:
    shaped = {shape for text in templates().values() for shape in SHAPE.findall(text)}
    return tokenizer_with({*shaped, *NAMES, "<|endoftext|>"})


def random_conversation(rng: Random, *, calls: bool, reasoning: bool, system: bool) -> list[Message]:
    """Draw a conversation that begins with a user's message, after a system message perhaps."""
    messages = [Message(role="system", content=rng.choice(TEXTS) or "s")] if system and rng.random() < 0.5 else []
    messages.append(Message(role="user", content=rng.choice(TEXTS)))
    for step in range(rng.randint(1, 5)):
        count = rng.choice((0, 1, 1, 2)) if calls else 0
        messages.append(_reply(rng, step, count, reasoning))
        messages += [
            Message(role="tool", content=rng.choice(TEXTS), tool_call_id=call.id, name=call.name)
            for call in messages[-1].tool_calls
        ]
        if not count or rng.random() < 0.2:
            messages.append(Message(role="user", content=rng.choice(TEXTS)))
    return messages


def _reply(rng: Random, step: int, count: int, reasoning: bool) -> Message:
    calls = tuple(
        ToolCall(
            name=rng.choice(("get_weather", "search")),
            arguments={"city": rng.choice(TEXTS), **({"days": 3} if rng.random() < 0.3 else {})},
            id=f"call{step}{index}abc",
        )
        for index in range(count)
    )
    content = rng.choice(TEXTS) if not calls or rng.random() < 0.3 else ""
    thought = rng.choice(TEXTS) if reasoning and rng.random() < 0.4 else None
    return Message(role="assistant", content=content, reasoning=thought, tool_calls=calls)


@functools.cache
def fixed_base(name: str, **options: Any) -> FixedBase:
    """The renderer of one of the templates, as its model's configuration would make it."""
    end = end_token(name)
    special_tokens = {"bos_token": "<bos>", "eos_token": end}
    return FixedBase(tokenizer_of(name), template=templates()[name], stop=end, special_tokens=special_tokens, **options)


@functools.cache
def qwen3(*, thinks: bool = True) -> FixedBase:
    arguments = None if thinks else {"enable_thinking": False}
    return FixedBase(real_models.qwen3_folder(), template_arguments=arguments)


def user(text: str = "u") -> Message:
    return Message(role="user", content=text)


def said(text: str = "a", reasoning: str | None = None) -> Message:
    return Message(role="assistant", content=text, reasoning=reasoning)


def called(*names: str) -> Message:
    calls = tuple(ToolCall(name=name, arguments={"city": "x"}, id=f"call{i}abcd") for i, name in enumerate(names))
    return Message(role="assistant", tool_calls=calls)


def result(call: ToolCall, text: str = "sunny") -> Message:
    return Message(role="tool", content=text, tool_call_id=call.id, name=call.name)


def turns_of(messages: list[Message]) -> list[tuple[int, int]]:
    """The index of each reply, and the end of the messages that answer it."""
    replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
    return [(reply, end) for reply, end in pairwise([*replies, len(messages)]) if end > reply + 1]


def emitted(renderer: FixedBase, messages: list[Message], tools: Any = (), rng: Random | None = None) -> Any:
    """The deltas that an episode emits after its replies, which may be cut anywhere."""
    turns: list[EmittedDelta] = []
    for at, end in turns_of(messages):
        reply = renderer.reply(messages[at])
        reply = reply[: rng.randint(0, len(reply))] if rng and rng.random() < 0.5 else reply
        given: Any = {"history": messages[: at + 1], "tools": tools, "generation_prompt": end < len(messages)}
        rendered = renderer.extension(reply, messages[at + 1 : end], **given)
        turns.append(EmittedDelta(at, rendered.tokens[rendered.starts[0] :], given["generation_prompt"]))
    return turns


def random_reply(rng: Random, fewest_calls: int = 0) -> Message:
    """A reply with random texts and arguments, and at most three calls of the tools of the probes."""
    calls = [
        call_of(index, {KEYS[kind]: rng.choice(VALUES[kind]) for kind in rng.sample(sorted(VALUES), rng.randint(0, 3))})
        for index in range(rng.randint(fewest_calls, 3))
    ]
    text = rng.choice(TEXTS) if not calls or rng.random() < 0.3 else ""
    return reply(text, rng.choice(TEXTS) or "r" if rng.random() < 0.3 else None, tuple(calls))


def template_text(renderer: FixedBase, messages: list[Message], tools: Any = ()) -> str:
    """What a template writes for a conversation, of which nothing is hidden."""
    template = renderer._template
    dialect = template.dialect
    return template.chat_template.render(
        dialect.messages(dialect.addressed([dialect.readable(message) for message in messages])),
        tools=dialect.tools(tools),
        generation_prompt=messages[-1].role != "assistant",
        arguments=template.arguments,
    )


def written_by_template(renderer: FixedBase, messages: list[Message], reply: Message, tools: Any = ()) -> Any:
    """The tokens of a reply, up to its end, as the template writes it after a prompt.

    An end that the template does not write is added. None if it opens the reply differently, or drops a part of it.
    """
    prompt, whole = template_text(renderer, messages, tools), template_text(renderer, [*messages, reply], tools)
    if not whole.startswith(prompt) or not has_all(whole[len(prompt) :], reply):
        return None
    out = Renderer._emission(renderer)  # probes may be in it
    out.scaffold(whole[len(prompt) :])
    tokens = out.tokens()[0]
    ends = np.flatnonzero(np.isin(tokens, renderer.stop_token_ids))
    return tokens[: ends[-1] + 1] if len(ends) else np.append(tokens, renderer.stop_token_ids[0])
