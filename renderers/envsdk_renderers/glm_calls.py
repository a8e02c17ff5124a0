"""Tool calls as GLM-4.5 and later write them: a name, and arguments between tags, values as text.

Knows nothing about tokens; it gets what stands between the tags of a call.
"""

import re
from collections.abc import Callable
from typing import Any

from envsdk.messages import ToolCall

from .argument_types import ArgumentTypes
from .xml_calls import no_names, read_values

_OPENING = re.compile(r"\s*+<arg_key>(?>(.*?)</arg_key>)\s*+<arg_value>", re.DOTALL)
_CLOSING = "</arg_value>"
_FOLLOWING = re.compile(r"\s*+(?:<arg_key>|\Z)")


def write_call(call: ToolCall, write_value: Callable[[Any], str]) -> str:
    """What stands between the tags of a call, as the template writes it.

    Raises:
        RenderError: If the arguments are a text: the format has no place for one.
    """
    if isinstance(call.arguments, str):
        raise no_names(call)
    lines = [
        f"<arg_key>{key}</arg_key>\n<arg_value>{write_value(value)}</arg_value>\n"
        for key, value in call.arguments.items()
    ]
    return f"{call.name}\n{''.join(lines)}"


def read_texts(text: str) -> tuple[str, list[tuple[str, str]]] | None:
    """Return the name of a call and the texts of its arguments; None if it cannot be read."""
    name, tag, behind = text.partition("<arg_key>")
    name = name.strip()
    values, rest = read_values(tag + behind, _OPENING, _CLOSING, _FOLLOWING)
    return None if not name or "\n" in name or rest.strip() else (name, values)


def read_call(text: str, types: ArgumentTypes, restore: Callable[[str], str] = str) -> ToolCall:
    """Read a call. What cannot be read is a call with an error and the text as arguments.

    Args:
        text: What stands between the tags of the call.
        types: The types of its arguments.
        restore: Applied to each text that is read, where what is not a tag was hidden in `text`.
    """
    read = read_texts(text)
    if read is None:
        error = "a tool call is no name with <arg_key> and <arg_value>"
        return ToolCall(name="", arguments=restore(text), error=error)
    name, values = read
    return types.read(restore(name), [(restore(key), restore(value)) for key, value in values])
