"""Random conversations in the OpenAI and Hugging Face dict format: all that Qwen3's official template renders.

One generator has two drivers: `random_conversation` takes a seeded `random.Random`, and hypothesis hands it a `Random`
whose every draw it chooses and shrinks. So in each choice the plainest case stands first.

No text holds a control token, so the template's text and an encoder that is safe from injection can be compared.
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

from hypothesis import strategies as st

from envsdk.messages import Message, ToolSchema
from envsdk.rendering.renderer import Rendered, Renderer

Messages = list[dict[str, Any]]
Tools = list[dict[str, Any]] | None

CONTROL_TOKEN = re.compile(r"<\|\w*\|>|</?(?:think|tool_call|tool_response)>")
NAMES = ("f", "get_weather", "search-docs", "überprüfe", "数える")
KEYS = ("a", "city", "limit", "größe", "键", "with space", 'quo"te', "")
SCHEMAS = ({"type": "string"}, {"type": "integer", "default": 3}, {"enum": ["a", "é", None]}, {"type": "array"})
SCALARS = (0, -7, 10**20, 0.5, -0.0, 1e-7, 1e20, True, False, None, "")
PIECES = (
    *("a", " ", "\n", "\n\n", "Hello there.", "  ", "\t", "\r\n", "\r", "12345", "x = 1\n    y\n", "user", "\\n"),
    *("<", ">", "<|", "|>", "<th", "ink>", "</", "<tools>", "</tools>", "<b>&amp;'\"", '{"name": "f"}', "{{ x }}"),
    *("é", "e\u0301", "\u0301", "A\u030a\u0323", "\u212b", "\u1100\u1161\u11a8", "\ufb01", "\u0344", "\u0958"),
    *("😀", "👩\u200d👩\u200d👧", "🇩🇪", "👍🏽", "𝔘𝔫𝔦", "𠜎", "你好，世界", "日本語", "한국어", "שלום", "مرحبا"),
    *("\x00", "\x1b", "\x7f", "\x85", "\xa0", "\u200b", "\u2028", "\u202e", "\u3000", "\ufeff", "\ufffd", "\U0010ffff"),
)  # fmt: skip
CODE_POINTS = ((0x20, 0x7E), (0, 0x2FF), (0x300, 0x36F), (0x370, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF))


def conversations() -> st.SearchStrategy[tuple[Messages, Tools]]:
    """Conversations as (messages, tools), messages never empty."""
    return st.builds(random_conversation, st.randoms(use_true_random=False))


def texts() -> st.SearchStrategy[str]:
    """Texts of any unicode, without control tokens and lone surrogates."""
    drawn = st.builds(random_text, st.randoms(use_true_random=False))
    return (st.text() | drawn).filter(lambda text: not CONTROL_TOKEN.search(text))


def random_conversation(rng: Random) -> tuple[Messages, Tools]:
    """Draw messages, cut anywhere so that any role ends the list, and None or 0 to 3 tools."""
    tools = [_tool(rng, name) for name in rng.sample(NAMES, rng.randint(0, 3))] if _may(rng) else None
    names = [tool["function"]["name"] for tool in tools or ()] or NAMES
    kinds = (*["user"] * 5, *["assistant"] * 2, *["tool round"] * 4, "system")
    if _may(rng, one_in=5):
        kinds = kinds[5:]
    messages = [{"role": "system", "content": random_text(rng)}] if _may(rng) else []
    for step in range(rng.randint(1, 7)):
        messages += _messages(rng, rng.choice(kinds), step, names)
    return messages[: rng.randint(1, len(messages))] if _may(rng, one_in=3) else messages, tools


def random_text(rng: Random) -> str:
    """Draw a text without control tokens: often empty or only newlines, often with newlines at its ends."""
    pieces = [_piece(rng) for _ in range(rng.choice((1, 0, 2, 3, 6)))]
    text = "".join([rng.choice(("", "", "\n", "\n\n")), *pieces, rng.choice(("", "", "\n", "\n\n"))])
    while CONTROL_TOKEN.search(text):
        text = CONTROL_TOKEN.sub("", text)
    return text


def emitted(
    renderer: Renderer,
    messages: Sequence[Message],
    tools: Sequence[ToolSchema] = (),
    *,
    generation_prompt: bool = False,
) -> Rendered:
    """Render messages as they are. `render` also reads tags in the content of assistants, which a model may sample."""
    return renderer._render(messages, "keep", tools=tools, generation_prompt=generation_prompt)


def _may(rng: Random, one_in: int = 2) -> bool:
    return rng.randrange(one_in) == one_in - 1


def _piece(rng: Random) -> str:
    return chr(rng.randint(*rng.choice(CODE_POINTS))) if _may(rng, one_in=4) else rng.choice(PIECES)


def _messages(rng: Random, kind: str, step: int, names: list[str] | tuple[str, ...]) -> Messages:
    message = {"role": "assistant" if kind == "tool round" else kind, "content": random_text(rng)}
    if message["role"] == "assistant" and _may(rng):
        message["reasoning_content"] = rng.choice(("", None)) if _may(rng, one_in=3) else random_text(rng)
    if kind != "tool round":
        return [message]
    if _may(rng, one_in=3):
        message["content"] = rng.choice(("", None))
    functions = [{"name": rng.choice(names), "arguments": _arguments(rng)} for _ in range(rng.choice((1, 1, 2, 3)))]
    calls = [
        {"id": f"call_{step}_{i}", "type": "function", "function": function} for i, function in enumerate(functions)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": random_text(rng)} for call in calls]
    return [{**message, "tool_calls": calls}, *results]


def as_servers_read(messages: Messages) -> Messages:
    """The messages as inference servers give them to a chat template: with arguments that are JSON text read."""
    read = json.loads(json.dumps(messages))
    for function in (call["function"] for message in read for call in message.get("tool_calls") or ()):
        with suppress(TypeError, ValueError):
            arguments = json.loads(function["arguments"])
            function["arguments"] = arguments if isinstance(arguments, dict) else function["arguments"]
    return read


def _arguments(rng: Random) -> dict[str, Any] | str:
    """Draw arguments as a dict, as its JSON in one of three styles, or as a text that may be no JSON at all."""
    style = rng.choice(("dict", "dict", "dict", "dict", "default", "compact", "indented", "text"))
    if style == "text":
        return random_text(rng)
    arguments = {rng.choice(KEYS): _value(rng, depth=2) for _ in range(rng.randint(0, 3))}
    styles = {"default": {}, "compact": {"separators": (",", ":")}, "indented": {"indent": 2, "ensure_ascii": False}}
    return arguments if style == "dict" else json.dumps(arguments, **styles[style])


def _value(rng: Random, depth: int) -> Any:
    kind = rng.choice(("scalar", "text", "list", "dict") if depth else ("scalar", "text"))
    if kind == "list":
        return [_value(rng, depth - 1) for _ in range(rng.randint(0, 2))]
    if kind == "dict":
        return {rng.choice(KEYS): _value(rng, depth - 1) for _ in range(rng.randint(0, 2))}
    return rng.choice(SCALARS) if kind == "scalar" else random_text(rng)


def _tool(rng: Random, name: str) -> dict[str, Any]:
    keys = rng.sample(KEYS, rng.randint(0, 3))
    properties = {key: {**rng.choice(SCHEMAS), "description": random_text(rng)} for key in keys}
    parameters = {"type": "object", "properties": properties, "required": keys[:1]}
    return {"type": "function", "function": {"name": name, "description": random_text(rng), "parameters": parameters}}
