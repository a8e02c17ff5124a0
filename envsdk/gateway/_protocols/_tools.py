"""The tools of OpenAI's protocols as functions of the model, and their calls in the form that the program knows.

- `function`: as it is. In a `namespace`, its name is that of the namespace, `__`, and its own.
- `custom`: a function with one string, `input`. A grammar of the input is described, and not enforced.
- `local_shell`, `shell` (without a container of the vendor), `apply_patch` and `tool_search` (of the client): functions
  with the arguments that a call of this type has.
- Any other type, such as `web_search`, `mcp` or `code_interpreter`, runs on the vendor's server: it is left out.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..._visible import brief
from ...messages import ToolCall, ToolSchema, read_arguments
from .._requests import INVALID_JSON, GivenTool
from ._fields import Fields, not_of_kind, refused, tool_schema, valid
from ._wire import compact

_INPUT = "input"
_TYPE = re.compile("[A-Za-z][A-Za-z0-9_]{0,63}")
_STRINGS = {"type": "array", "items": {"type": "string"}}
_TIMEOUT = {"timeout_ms": {"type": "integer", "description": "How long it may take, in milliseconds."}}


class _CallForm(NamedTuple):
    """The item of a call in Responses: its type, the beginning of its id, and the field that has the arguments."""

    item: str
    prefix: str
    field: str


_FORMS = {
    "function": _CallForm("function_call", "fc", "arguments"),
    "custom": _CallForm("custom_tool_call", "ctc", _INPUT),
    "local_shell": _CallForm("local_shell_call", "lsh", "action"),
    "shell": _CallForm("shell_call", "sh", "action"),
    "apply_patch": _CallForm("apply_patch_call", "apc", "operation"),
    "tool_search": _CallForm("tool_search_call", "tsc", "arguments"),
}
CALLS: Mapping[str, str] = {form.item: type_ for type_, form in _FORMS.items()}
"""The type of the tool that an item of Responses calls, by the item's type."""
_ARGUMENTS = "ctca"  # begins the id of a custom tool's call whose input is the arguments that the model sampled
PREFIXES = frozenset((_ARGUMENTS, *(form.prefix for form in _FORMS.values())))
"""The beginnings of the ids of calls in Responses."""


def function(name: str, description: str, required: str, **properties: Any) -> ToolSchema:
    """Return a function with these parameters, one of which is required."""
    schema = {"type": "object", "properties": properties, "required": [required]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


_BUILT_IN: Mapping[str, ToolSchema] = {
    "local_shell": function(
        "local_shell",
        "Run a command.",
        "command",
        command=_STRINGS | {"description": "The program and its arguments."},
        working_directory={"type": "string"},
        **_TIMEOUT,
    ),
    "shell": function(
        "shell",
        "Run shell commands, one after the other.",
        "commands",
        commands=_STRINGS,
        max_output_length={"type": "integer", "description": "The most characters to return."},
        **_TIMEOUT,
    ),
    "apply_patch": function(
        "apply_patch",
        "Create, update or delete a file.",
        "path",
        type={"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
        path={"type": "string"},
        diff={"type": "string", "description": "The changes in the V4A diff format; for a new file, its lines with +."},
    ),
}


def read_tool(tool: Fields, *, is_nested: bool, namespace: str | None = None) -> list[GivenTool]:
    """Return the functions that a tool of a request is for the model: several for a namespace.

    Args:
        tool: The tool.
        is_nested: Whether the description of a tool is in a field that has the name of its type.
        namespace: The name of the namespace that has the tool, or None.

    Raises:
        RequestError: If a field is invalid.
    """
    type_ = tool.required_text("type")
    described = Fields(tool.get(type_), tool.name(type_)) if is_nested and type_ in _FORMS else tool
    if type_ == "namespace" and namespace is None:
        outer, path = tool.required_text("name"), tool.name("tools")
        inner = [Fields(value, f"{path}[{i}]") for i, value in enumerate(tool.items("tools"))]
        return [one for each in inner for one in read_tool(each, is_nested=is_nested, namespace=outer)]
    if type_ == "function":
        schema = tool_schema(described, "parameters")
    elif type_ == "custom":
        name, text = described.required_text("name"), described.text("description")
        schema = function(name, text or "", _INPUT, **{_INPUT: {"type": "string", **_grammar(described)}})
    elif type_ == "tool_search" and tool.text("execution") == "client":
        schema = tool_schema(Fields({**tool.value, "name": type_}, tool.path), "parameters")
    else:
        environment = tool.object("environment")
        is_remote = environment is not None and environment.text("type") != "local"
        schema = None if is_remote else _BUILT_IN.get(type_)
        if schema is None:
            return [vendor_tool(tool, type_)]
    name = schema["function"]["name"]
    if namespace is not None:
        schema = {**schema, "function": {**schema["function"], "name": _joined(name, namespace)}}
    return [GivenTool(schema, type_, name, namespace)]


def vendor_tool(tool: Fields, type_: str) -> GivenTool:
    """Return a tool that only the server of its vendor can run.

    Raises:
        RequestError: If its type is not a word, which enters the log.
    """
    if not _TYPE.fullmatch(type_):
        raise refused(tool.name("type"), f"got {brief(type_)}; expected the type of a tool")
    return GivenTool(None, type_)


def _grammar(tool: Fields) -> dict[str, str]:
    """Return the description of the input of a custom tool, if it has a grammar."""
    form = tool.object("format")
    if form is None or form.text("type") != "grammar":
        return {}
    grammar = form.object("grammar") or form  # an object in Chat Completions
    syntax = grammar.one_of("syntax", ("lark", "regex"))
    return {"description": f"It has to match this {syntax or 'lark'} grammar:\n{grammar.required_text('definition')}"}


def _joined(name: str, namespace: str | None) -> str:
    """Return the name by which the model calls a tool."""
    return name if namespace is None else f"{namespace}__{name}"


def custom_input(call: ToolCall) -> str:
    """Return the input of a call of a custom tool: the string, or what the model sampled instead of it."""
    arguments = call.arguments
    if isinstance(arguments, dict) and arguments.keys() == {_INPUT} and isinstance(arguments[_INPUT], str):
        return arguments[_INPUT]
    return compact(arguments)


def custom_call(call: Fields, call_id: str) -> ToolCall:
    """Return a call of a custom tool.

    Args:
        call: What has its name and its input.
        call_id: Its id.
    """
    given = call.text(_INPUT)
    if given is None:
        raise refused(call.name(_INPUT), "it is required")
    name = _joined(call.required_text("name"), call.text("namespace"))
    return valid(ToolCall, call.path, id=call_id, name=name, arguments={_INPUT: given})


# The items of Responses.


def write_call(call: ToolCall, tool: GivenTool | None, reply: str, index: int) -> dict[str, Any]:
    """Return the item of a call.

    Args:
        call: The call, with the name of the function.
        tool: The tool, if the program gave it in another form than as a function.
        reply: The id of the reply.
        index: The number of calls before it in the reply.
    """
    tool = tool or GivenTool(None, "function", call.name)
    form, arguments = _FORMS[tool.type], call.arguments
    item: dict[str, Any] = {"id": f"{form.prefix}_{reply}_{index}", "type": form.item, "call_id": call.id}
    if tool.type in ("function", "custom"):
        item["name"] = tool.name
        item[form.field] = compact(arguments) if tool.type == "function" else custom_input(call)
        if tool.type == "custom" and arguments != {_INPUT: item[form.field]}:
            item["id"] = f"{_ARGUMENTS}_{reply}_{index}"
        return item if tool.namespace is None else {**item, "namespace": tool.namespace}
    value: dict[str, Any] = {INVALID_JSON: arguments} if isinstance(arguments, str) else dict(arguments)
    if tool.type == "local_shell":
        value = {"type": "exec", "env": {}, **value}
    return {**item, form.field: value, **({"execution": "client"} if tool.type == "tool_search" else {})}


def read_call(item: Fields, type: str) -> ToolCall:
    """Return the call that an item holds.

    Args:
        item: The item.
        type: The type of the tool.

    Raises:
        RequestError: If a field is invalid.
    """
    call_id, field = item.required_text("call_id"), _FORMS[type].field
    if type == "custom":
        called = custom_call(item, call_id)
        if not (item.text("id") or "").startswith(_ARGUMENTS):
            return called
        arguments = read_arguments(item.text(_INPUT) or "")  # the model did not call it with an input
        return valid(ToolCall, item.path, id=call_id, name=called.name, arguments=arguments)
    name, arguments = type, item.get(field)
    if type == "function":
        if not isinstance(arguments, str):
            raise not_of_kind(item.name(field), "a string", arguments)
        name, arguments = _joined(item.required_text("name"), item.text("namespace")), read_arguments(arguments)
    else:
        given = Fields(arguments, item.name(field)).value
        if type == "local_shell":  # what a client adds
            given = {key: value for key, value in given.items() if key != "type" and value not in (None, {})}
        arguments = given[INVALID_JSON] if given.keys() == {INVALID_JSON} else given
    return valid(ToolCall, item.path, id=call_id, name=name, arguments=arguments)


def read_output(item: Fields, type: str) -> tuple[str, str]:
    """Return the id of a call, and the result that an item of this type holds, as text.

    Raises:
        RequestError: If a field is invalid.
    """
    # A client may name a local shell's call by `id`.
    named = "id" if type == "local_shell_call_output" and item.get("call_id") is None else "call_id"
    call_id = item.required_text(named)
    if type == "apply_patch_call_output":
        parts = [item.one_of("status", ("completed", "failed")), item.text("output")]
        return call_id, "\n".join(filter(None, parts))
    if type == "tool_search_output":
        found = [Fields(value, f"{item.name('tools')}[{i}]") for i, value in enumerate(item.items("tools"))]
        tools = [tool.schema for each in found for tool in read_tool(each, is_nested=False) if tool.schema is not None]
        return call_id, json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    given = item.get("output")
    return call_id, given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
