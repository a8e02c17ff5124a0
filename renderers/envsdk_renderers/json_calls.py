"""Reads tool calls that models write as JSON in their text: Llama's bare objects, Mistral's list or name and arguments.

Knows nothing about tokens. What cannot be read is a call with an error and the text as its arguments.
"""

import json
import re
from typing import Any, cast

from pydantic import ValidationError

from envsdk.messages import ToolCall, with_unique_keys

_DECODER = json.JSONDecoder(object_pairs_hook=with_unique_keys)
_BEGINS_A_CALL = re.compile(r'\s*\{\s*"(?:name|type|function)"\s*:')
_BETWEEN = re.compile(r"[\s;]*")
_NAMED = re.compile(r"\s*([^\s\[{]+)\s*(?:\[CALL_ID\]\s*([^\s\[]*)\s*)?(?:\[ARGS\])?")


def read_llama(text: str) -> tuple[str, list[ToolCall]] | None:
    """Read `{"name": ..., "parameters": ...}`, of which there may be several with `;` between them.

    An object without `parameters` (or `arguments`) is an answer in JSON and no call.

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
        call, end = _decode(text, start)
        if call is None:
            break
        calls.append(call)
        position = _BETWEEN.match(text, end).end()  # pyright: ignore[reportOptionalMemberAccess]
    return (text[position:], calls) if calls else None


def read_mistral(text: str) -> tuple[str, list[ToolCall]]:
    """Read what stands behind `[TOOL_CALLS]`: a list of objects, or a name and its arguments.

    Returns:
        What stands behind the calls, and the calls.
    """
    if text.lstrip()[:1] == "[":
        start = len(text) - len(text.lstrip())
        try:
            values, end = _DECODER.raw_decode(text, start)
            items = cast("list[Any]", values)
            # Each call has its own text: all of it for each would take quadratic time and memory.
            texts = [json.dumps(item) for item in items]
        except (ValueError, RecursionError) as error:
            return "", [_broken(text, f"the tool calls are not valid JSON: {error}")]
        return text[end:], [*map(_call_of, items, texts)] or [_broken(text, "there is no call")]
    calls: list[ToolCall] = []
    position, mark = 0, "[TOOL_CALLS]"
    while named := _NAMED.match(text, position):
        call, position = _decode_arguments(text, named.end(), named[1], named[2])
        calls.append(call)
        if not text.startswith(mark, position):
            break
        position += len(mark)
    return text[position:], calls or [_broken(text, "a tool call has no name")]


def _decode(text: str, start: int) -> tuple[ToolCall | None, int]:
    """Read the call that begins there; None for an object that is no call."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        return _broken(text[start:], f"a tool call is not valid JSON: {error}"), len(text)
    fields = _fields_of(value)
    return (_call_of(value, text[start:end]) if "parameters" in fields or "arguments" in fields else None), end


def _decode_arguments(text: str, start: int, name: str, call_id: str | None) -> tuple[ToolCall, int]:
    """Read the arguments of a call by that name that begin there."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        return _broken(text[start:], f"a tool call is not valid JSON: {error}", name), len(text)
    return _checked(name, value, text[start:end], call_id or None), end


def _fields_of(value: Any) -> dict[str, Any]:
    """The fields of a call: its own, or those of its `function`."""
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    inner = fields.get("function")
    return cast("dict[str, Any]", inner) if isinstance(inner, dict) else fields


def _call_of(value: Any, text: str) -> ToolCall:
    if not isinstance(value, dict):
        return _broken(text, "a tool call is no JSON object")
    fields = _fields_of(cast("Any", value))
    name, call_id = fields.get("name"), cast("dict[str, Any]", value).get("id")
    if not isinstance(name, str) or not name:
        return _broken(text, "a tool call has no name")
    if "arguments" in fields and "parameters" in fields:
        return _broken(text, "a tool call has both arguments and parameters")
    arguments = fields.get("arguments", fields.get("parameters", {}))
    return _checked(name, arguments, text, call_id if isinstance(call_id, str) else None)


def _checked(name: str, arguments: Any, text: str, call_id: str | None) -> ToolCall:
    is_object = isinstance(arguments, (dict, str))
    try:
        call = ToolCall(name=name, arguments=cast("Any", arguments) if is_object else "", id=call_id)
    except ValidationError as error:
        what = error.errors()[0]["msg"].removeprefix("Value error, ")
        return _broken(text, f"a tool call is not valid JSON: {what}")
    return call if is_object else _broken(text, "a tool call's arguments are no JSON object", name)


def _broken(text: str, error: str, name: str = "") -> ToolCall:
    return ToolCall(name=name, arguments=text, error=error, raw=text)
