"""Writes and reads tool calls as JSON, in the forms of Hermes, Llama, Mistral and Harmony.

The same rules hold for all forms: keys are unique, and values are what `ToolCall` accepts. A call that cannot be read
has an error, and its text as its arguments. Knows nothing about tokens.
"""

import json
import re
from typing import Any, cast

from pydantic import ValidationError

from envsdk.errors import RenderError
from envsdk.messages import ToolCall, with_unique_keys

_DECODER = json.JSONDecoder(object_pairs_hook=with_unique_keys)
_INVALID = (ValueError, RecursionError)
_CALL_START = re.compile(r'\s*\{\s*"(?:name|type|function)"\s*:')
_SEPARATORS = re.compile(r"[\s;]*")
_NAME = re.compile(r"\s*([^\s\[{]+)\s*(?:\[CALL_ID\]\s*([^\s\[]*)\s*)?(?:\[ARGS\])?")
MISTRAL_MARK = "[TOOL_CALLS]"
"""The text, or the control token, before Mistral's calls."""


def json_text(value: Any, what: str) -> str:
    """Write a value as transformers' `tojson` does.

    Raises:
        RenderError: If the value is not JSON; the error calls it `what`.
    """
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()  # half of a surrogate pair cannot be encoded
        return text
    except (TypeError, ValueError) as error:
        raise RenderError(f"a {what} is not JSON: {error}") from error


def bare_value(value: Any) -> str:
    """Write the value of an argument: a text verbatim, everything else as JSON."""
    return value if isinstance(value, str) else json_text(value, "value")


def write_object(call: ToolCall, *, encodes_text: bool = False) -> str:
    """Write a call as Hermes does between the tags of a call: `{"name": ..., "arguments": ...}`.

    Args:
        call: The call.
        encodes_text: Whether arguments given as a text are written as a JSON string; otherwise they are verbatim.

    Raises:
        RenderError: If the arguments are not JSON.
    """
    is_verbatim = isinstance(call.arguments, str) and not encodes_text
    arguments = call.arguments if is_verbatim else json_text(call.arguments, f"call of {call.name!r}")
    return f'\n{{"name": "{call.name}", "arguments": {arguments}}}\n'


def read_object(text: str) -> ToolCall:
    """Read a call as Hermes writes it between the tags of a call: `{"name": ..., "arguments": ...}`."""
    try:
        value: Any = json.loads(text, object_pairs_hook=with_unique_keys)
    except _INVALID as error:
        return _unreadable(text, error)
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        value = {name: fields[name] for name in ("name", "arguments") if name in fields}
    call = _call(value, text)
    return call.model_copy(update={"name": ""}) if call.error else call


def read_arguments(name: str, text: str) -> ToolCall:
    """Read the arguments of a call of `name`, which have to be an object (Harmony)."""
    try:
        value: Any = json.loads(text, object_pairs_hook=with_unique_keys)
    except _INVALID as error:
        return _unreadable(text, error, name)
    call = _checked("", value if isinstance(value, dict) else None, text)
    return call.model_copy(update={"name": name})


def read_llama(text: str) -> tuple[str, list[ToolCall]] | None:
    """Read one or more objects `{"name": ..., "parameters": ...}`, separated by `;`.

    An object without `parameters` (or `arguments`) is an answer in JSON, not a call.

    Returns:
        The text after the calls, and the calls; None if the text does not begin with a call.
    """
    text = text.strip().removeprefix("<|python_tag|>")
    calls: list[ToolCall] = []
    position = 0
    while _CALL_START.match(text, position):
        call, end = _next_object(text, _end_of_separators(text, position))
        if call is None:
            break
        calls.append(call)
        position = _end_of_separators(text, end)
    return (text[position:], calls) if calls else None


def read_mistral(text: str) -> tuple[str, list[ToolCall]]:
    """Read the text after `[TOOL_CALLS]`: a list of objects, or names with their arguments.

    Returns:
        The text after the calls, and the calls.
    """
    if text.lstrip()[:1] == "[":
        return _read_list(text)
    calls: list[ToolCall] = []
    position = 0
    while named := _NAME.match(text, position):
        call, position = _next_arguments(text, named.end(), named[1], named[2])
        calls.append(call)
        if not text.startswith(MISTRAL_MARK, position):
            break
        position += len(MISTRAL_MARK)
    return text[position:], calls or [_broken(text, "a tool call has no name")]


def _read_list(text: str) -> tuple[str, list[ToolCall]]:
    start = len(text) - len(text.lstrip())
    try:
        values, end = _DECODER.raw_decode(text, start)
        items = cast("list[Any]", values)
        # Each call gets its own text: the whole text for each would take quadratic time and memory.
        texts = [json.dumps(item) for item in items]
    except _INVALID as error:
        return "", [_broken(text, f"the tool calls are not valid JSON: {error}")]
    return text[end:], [*map(_call, items, texts)] or [_broken(text, "there is no call")]


def _end_of_separators(text: str, position: int) -> int:
    return _SEPARATORS.match(text, position).end()  # pyright: ignore[reportOptionalMemberAccess] - it also matches ""


def _next_object(text: str, start: int) -> tuple[ToolCall | None, int]:
    """Read the call that begins at `start`; None for an object that is not a call."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except _INVALID as error:
        return _unreadable(text[start:], error), len(text)
    fields = _fields(value)
    return (_call(value, text[start:end]) if "parameters" in fields or "arguments" in fields else None), end


def _next_arguments(text: str, start: int, name: str, call_id: str | None) -> tuple[ToolCall, int]:
    """Read the arguments that begin at `start`."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except _INVALID as error:
        return _unreadable(text[start:], error, name), len(text)
    return _checked(name, value, text[start:end], call_id or None), end


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a call: its own, or those of its `function`."""
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    inner = fields.get("function")
    return cast("dict[str, Any]", inner) if isinstance(inner, dict) else fields


def _call(value: Any, text: str) -> ToolCall:
    if not isinstance(value, dict):
        return _broken(text, "a tool call is not a JSON object")
    fields = _fields(cast("Any", value))
    name, call_id = fields.get("name"), cast("dict[str, Any]", value).get("id")
    if not isinstance(name, str) or not name:
        return _broken(text, "a tool call has no name")
    if "arguments" in fields and "parameters" in fields:
        return _broken(text, "a tool call has both arguments and parameters")
    arguments = fields.get("arguments", fields.get("parameters", {}))
    return _checked(name, arguments, text, call_id if isinstance(call_id, str) else None)


def _checked(name: str, arguments: Any, text: str, call_id: str | None = None) -> ToolCall:
    is_valid = isinstance(arguments, (dict, str))
    try:
        call = ToolCall(name=name, arguments=cast("Any", arguments) if is_valid else "", id=call_id)
    except ValidationError as error:  # the name may be what is invalid, so it is dropped
        return _unreadable(text, error.errors()[0]["msg"].removeprefix("Value error, "))
    return call if is_valid else _broken(text, "a tool call's arguments are not a JSON object", name)


def _unreadable(text: str, why: object, name: str = "") -> ToolCall:
    return _broken(text, f"a tool call is not valid JSON: {why}", name)


def _broken(text: str, error: str, name: str = "") -> ToolCall:
    return ToolCall(name=name, arguments=text, error=error, raw=text)
