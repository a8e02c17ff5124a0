"""Tool calls as Qwen3.5 and later write them: a function and its parameters as tags, values as text.

Knows nothing about tokens; it gets what stands between the tags of a call.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from envsdk.errors import RenderError
from envsdk.messages import ToolCall, check_json

_PARAMETER = re.compile(r"\s*<parameter=([^>\n]*)>\n?(.*?)\n?</parameter>(?=\s*(?:<parameter=|\Z))", re.DOTALL)


def write_call(call: ToolCall, write_value: Callable[[Any], str]) -> str:
    """What stands between the tags of a call, as the templates write it.

    Raises:
        RenderError: If the arguments are a text: the format has no place for one.
    """
    if isinstance(call.arguments, str):
        raise RenderError(f"the call of {call.name!r} has a text as its arguments; the format needs them by name")
    parameters = [f"<parameter={key}>\n{write_value(value)}\n</parameter>\n" for key, value in call.arguments.items()]
    return f"\n<function={call.name}>\n{''.join(parameters)}</function>\n"


def read_call(text: str) -> ToolCall:
    """Read a call. What cannot be read is a call with an error and the text as arguments."""
    inner = text.strip().removeprefix("<function=").removesuffix("</function>")
    name, _, body = inner.partition(">")
    if text.strip() != f"<function={name}>{body}</function>" or not name or "\n" in name:
        return ToolCall(name="", arguments=text, error="a tool call is no <function=...> block")
    arguments: dict[str, Any] = {}
    position = 0
    while parameter := _PARAMETER.match(body, position):
        arguments[parameter[1]] = read_value(parameter[2])
        position = parameter.end()
    if body[position:].strip():
        return ToolCall(name="", arguments=text, error=f"a tool call of {name!r} has more than parameters")
    return ToolCall(name=name, arguments=arguments)


def read_value(text: str) -> Any:
    """Read a value: objects and lists of JSON as such, everything else as text.

    The format does not tell the number 3 from the text "3"; a tool's own types do, and they convert from text.
    """
    if text[:1] not in ("{", "["):
        return text
    try:
        value: Any = json.loads(text)
        check_json(value)
    except (ValueError, RecursionError):
        return text
    return value
