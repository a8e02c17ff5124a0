"""Writes and reads tool calls as GLM-4.5 and later do: a name, and arguments between tags, with values as text.

Knows nothing about tokens: it handles the text between the tags of a call.
"""

import re
from collections.abc import Callable
from typing import Any

from envsdk.messages import ToolCall

from .argument_types import ArgumentTypes
from .json_calls import bare_value
from .tagged_values import read_values, text_arguments_error

TAGS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_OPENING = re.compile(r"\s*+<arg_key>(?>(.*?)</arg_key>)\s*+<arg_value>", re.DOTALL)
_CLOSING = "</arg_value>"
_FOLLOWING = re.compile(r"\s*+(?:<arg_key>|\Z)")


def call_parts(call: ToolCall, write_value: Callable[[Any], str] = bare_value) -> list[tuple[str, bool]]:
    """Return the parts of a call between its tags, each with whether it is scaffold, in which tags are tags.

    Raises:
        RenderError: If the arguments are a text: the format has no place for one.
    """
    if isinstance(call.arguments, str):
        raise text_arguments_error(call)
    parts = [(call.name, False)]
    for key, value in call.arguments.items():
        parts += [("\n<arg_key>", True), (key, False), ("</arg_key>\n<arg_value>", True)]
        parts += [(write_value(value), False), ("</arg_value>", True)]
    return [*parts, ("\n", True)]


def write_call(call: ToolCall, write_value: Callable[[Any], str] = bare_value) -> str:
    """Return the text of a call between its tags, as the template writes it.

    Raises:
        RenderError: If the arguments are a text: the format has no place for one.
    """
    return "".join(text for text, _ in call_parts(call, write_value))


def sampled_parts(call: ToolCall, text: str) -> list[tuple[str, bool]]:
    """Return the parts of the sampled text of a call; its tags are scaffold if they are those of `call`."""
    name, values = read_texts(text) or ("", [])
    is_same = name == call.name and [key for key, _ in values] == list(call.arguments)
    parts: list[tuple[str, bool]] = []
    position = 0
    for key, value in values if is_same else ():
        for tag, following in zip(TAGS, (key, "", value, ""), strict=True):
            start = text.index(tag, position)
            parts += [(text[position:start], False), (tag, True), (following, False)]
            position = start + len(tag) + len(following)
    return [*parts, (text[position:], False)]


def read_texts(text: str) -> tuple[str, list[tuple[str, str]]] | None:
    """Return the name of a call and the texts of its arguments; None if it cannot be read."""
    name, tag, arguments = text.partition("<arg_key>")
    name = name.strip()
    values, rest = read_values(tag + arguments, _OPENING, _CLOSING, _FOLLOWING)
    return None if not name or "\n" in name or rest.strip() else (name, values)


def read_call(text: str, types: ArgumentTypes, restore: Callable[[str], str] = str) -> ToolCall:
    """Read a call. A call that cannot be read has an error, and the text as its arguments.

    Args:
        text: The text between the tags of the call.
        types: The types of its arguments.
        restore: Restores what is hidden in `text` because it only spells a tag; it is applied to each text.
    """
    read = read_texts(text)
    if read is None:
        error = "a tool call is not a name with <arg_key> and <arg_value>"
        return ToolCall(name="", arguments=restore(text), error=error)
    name, values = read
    return types.read(restore(name), [(restore(key), restore(value)) for key, value in values])
