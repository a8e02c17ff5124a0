"""Reads tool calls that models write as JSON in their text: Llama's bare objects, Mistral's list or name and arguments.

Knows nothing about tokens. What cannot be read is a call with an error and the text as its arguments.
"""

import json
import re
from typing import Any, cast

from pydantic import ValidationError

from envsdk.messages import ToolCall

_DECODER = json.JSONDecoder()
_BEGINS_A_CALL = re.compile(r'\s*\{\s*"(?:name|type|function)"\s*:')
_BETWEEN = re.compile(r"[\s;]*")
_NAMED = re.compile(r"\s*([^\s\[{]+)\s*(?:\[CALL_ID\]\s*([^\s\[]*)\s*)?(?:\[ARGS\])?")


def read_llama(text: str) -> tuple[str, list[ToolCall]] | None:
    """Read `{"name": ..., "parameters": ...}`, of which there may be several with `;` between them.

    Returns:
        What stands behind the calls, and the calls; None if the text does not begin with one.
    """
    text = text.strip().removeprefix("<|python_tag|>")
    if not _BEGINS_A_CALL.match(text):
        return None
    calls: list[ToolCall] = []
    position = 0
    while _BEGINS_A_CALL.match(text, position):
        start = _BETWEEN.match(text, position).end()  # pyright: ignore[reportOptionalMemberAccess] - it matches nothing, too
        call, position = _decode(text, start)
        calls.append(call)
        position = _BETWEEN.match(text, position).end()  # pyright: ignore[reportOptionalMemberAccess]
    return text[position:], calls


def read_mistral(text: str) -> tuple[str, list[ToolCall]]:
    """Read what stands behind `[TOOL_CALLS]`: a list of objects, or a name and its arguments.

    Returns:
        What stands behind the calls, and the calls.
    """
    if text.lstrip()[:1] == "[":
        start = len(text) - len(text.lstrip())
        try:
            values, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            return "", [_broken(text, f"the tool calls are not valid JSON: {error}")]
        items = cast("list[Any]", values)
        # Each call has its own text: all of it for each would take quadratic time and memory.
        return text[end:], [_call_of(item, json.dumps(item)) for item in items] or [_broken(text, "there is no call")]
    calls: list[ToolCall] = []
    position, mark = 0, "[TOOL_CALLS]"
    while named := _NAMED.match(text, position):
        call, position = _decode(text, named.end(), named[1], named[2])
        calls.append(call)
        if not text.startswith(mark, position):
            break
        position += len(mark)
    return text[position:], calls or [_broken(text, "a tool call has no name")]


def _decode(text: str, start: int, name: str | None = None, call_id: str | None = None) -> tuple[ToolCall, int]:
    """Read the object that begins there: a call, or the arguments of a call by that name."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        return _broken(text[start:], f"a tool call is not valid JSON: {error}", name or ""), len(text)
    if name is None:
        return _call_of(value, text[start:end]), end
    return _checked(name, value, text[start:end], call_id or None), end


def _call_of(value: Any, text: str) -> ToolCall:
    if not isinstance(value, dict):
        return _broken(text, "a tool call is no JSON object")
    fields = cast("dict[str, Any]", value)
    inner = fields.get("function")
    fields = cast("dict[str, Any]", inner) if isinstance(inner, dict) else fields
    name, call_id = fields.get("name"), cast("dict[str, Any]", value).get("id")
    if not isinstance(name, str) or not name:
        return _broken(text, "a tool call has no name")
    arguments = fields.get("arguments", fields.get("parameters", {}))
    return _checked(name, arguments, text, call_id if isinstance(call_id, str) else None)


def _checked(name: str, arguments: Any, text: str, call_id: str | None) -> ToolCall:
    if not isinstance(arguments, (dict, str)):
        return _broken(text, "a tool call's arguments are no JSON object", name)
    try:
        return ToolCall(name=name, arguments=cast("dict[str, Any] | str", arguments), id=call_id)
    except ValidationError as error:
        what = error.errors()[0]["msg"].removeprefix("Value error, ")
        return _broken(text, f"a tool call is not valid JSON: {what}")


def _broken(text: str, error: str, name: str = "") -> ToolCall:
    return ToolCall(name=name, arguments=text, error=error, raw=text)
