"""The probe messages from whose renderings a reply grammar is measured.

Every name, key and string of a probe is a word that begins with `STEM` and occurs nowhere else in its rendering.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from envsdk.messages import Message, ToolCall, ToolSchema

from .._templates._mask import STEM
from .._templates._sentinels import slot

TEXT, REASONING = slot(0), slot(1)
NAMES = tuple(f"{STEM.lower()}function{letter}" for letter in "abc")
KEYS = {
    "string": f"{STEM.lower()}zkey",
    "second": f"{STEM.lower()}akey",
    "number": f"{STEM.lower()}nkey",
    "boolean": f"{STEM.lower()}bkey",
    "null": f"{STEM.lower()}ukey",
    "array": f"{STEM.lower()}lkey",
    "object": f"{STEM.lower()}okey",
}
"""The keys of arguments; the first two are not in the order of the alphabet."""
UPPER_KEY = f"{STEM}mkey"
"""A key that sorting with regard to case puts first."""
HARD_TEXT = f'{STEM}hard "a" \\ {{b}}\n<c>\'é & d'
"""A string that every coding changes in its own way."""
NESTED = {"b": [f"{STEM}itemzq", 5, {"a": True}], "a": None}


def word(call: int, number: int) -> str:
    """Return a value of a call."""
    return f"{STEM}value{call}n{number}zq"


def call_of(index: int, arguments: Mapping[str, Any]) -> ToolCall:
    """Return the probe call with an index."""
    return ToolCall(name=NAMES[index], arguments=dict(arguments))


def two_arguments(index: int) -> dict[str, Any]:
    """Return arguments of two strings."""
    return {KEYS["string"]: word(index, 0), KEYS["second"]: word(index, 1)}


def reply(
    text: str = "", reasoning: str | None = None, calls: Iterator[ToolCall] | tuple[ToolCall, ...] = ()
) -> Message:
    """Return a probe message."""
    return Message(role="assistant", content=text, reasoning=reasoning, tool_calls=tuple(calls))


def shapes() -> Iterator[Message]:
    """Yield the replies from which the constants are learned: all shapes of a reply, and calls without arguments."""
    for reasoning, text, count in product((None, REASONING), (TEXT, ""), range(3)):
        if text or count or reasoning:
            yield reply(text, reasoning, tuple(call_of(index, two_arguments(index)) for index in range(count)))
    yield reply(calls=tuple(call_of(index, two_arguments(index)) for index in range(3)))
    for filled in ((False,), (False, False), (True, False), (False, True)):
        calls = tuple(call_of(i, two_arguments(i) if is_filled else {}) for i, is_filled in enumerate(filled))
        yield reply(calls=calls)
    yield reply(TEXT, calls=(call_of(0, {}),))


def typed(kind: str, value: Any) -> Message:
    """Return a call with a value of a JSON type between two strings."""
    arguments = {KEYS["string"]: word(0, 0), KEYS[kind]: value, KEYS["second"]: word(0, 1)}
    return reply(calls=(call_of(0, arguments),))


TYPED: Mapping[str, Any] = {"number": 3, "boolean": True, "null": None, "array": [f"{STEM}itemzq", 5], "object": NESTED}
"""A value of each JSON type but `string`."""


def _tools(properties: dict[str, Any]) -> tuple[ToolSchema, ...]:
    parameters = {"type": "object", "properties": properties, "required": [KEYS["string"]]}
    return tuple(
        {
            "type": "function",
            "function": {"name": name, "description": f"{STEM}descriptionzq", "parameters": parameters},
        }
        for name in NAMES
    )


TOOLS = _tools(
    {
        key: {"type": "string" if kind == "second" else kind, "description": f"{STEM}about{kind}zq"}
        for kind, key in KEYS.items()
    }
)
SIMPLE_TOOLS = _tools({KEYS["string"]: {"type": "string", "description": f"{STEM}parameterzq"}})
"""Tools for templates that refuse other types."""
