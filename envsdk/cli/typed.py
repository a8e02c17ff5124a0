"""What a person types, read as an assistant's message: text, and calls of tools."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ..errors import unknown_name, what_is_invalid
from ..messages import Message, ToolCall, ToolSchema

HELP = '''\
Type a reply and press Enter.
  some text               a reply; a line that ends with \\ goes on with the next one
  """                     begins and ends a text of several lines, taken as it is
  /tool key=value ...     calls a tool; values with spaces in "quotes"
  /tool {"key": value}    the same, with the arguments as JSON
  /tool value             the same, if the tool takes one argument
  /{"reasoning": ..., "content": ..., "tool_calls": [{"name": ..., "arguments": {...}}]}
                          a whole message as JSON
  //text                  a text that begins with a slash
Lines joined by \\ may hold several calls, each on a line of its own, and text.
  :tools :prompt :help    the tools again; the whole prompt, as the model has it; this
  :quit, or Ctrl-D        ends it'''

_QUOTES = '"""'


class TypingError(ValueError):
    """What was typed is no reply; it says why."""


def read_reply(line: str, more: Callable[[], str], tools: Sequence[ToolSchema]) -> Message:
    """Read a reply.

    Args:
        line: Its first line.
        more: Asks for another line.
        tools: The tools that can be called.

    Raises:
        TypingError: If it is none.
        EOFError: If `more` raises it: the reply was not finished.
    """
    if line.strip() == _QUOTES:
        return _said("\n".join(iter(lambda: _inside(more()), None)))
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(more())
    if lines[0].startswith("/{"):
        return _message("\n".join(lines)[1:])
    texts = [text.removeprefix("/") for text in lines if not _is_call(text)]
    return _said("\n".join(texts), [_call(text[1:], tools) for text in lines if _is_call(text)])


def signatures(tools: Sequence[ToolSchema]) -> list[str]:
    """How each tool is called, and what it does, in lines."""
    lines: list[str] = []
    for tool in tools:
        function = _function(tool)
        required = function.get("parameters", {}).get("required", ())
        arguments = [
            f"{name}=..." if name in required else f"[{name}=...]" for name, _ in _parameters(function).items()
        ]
        lines.append(" ".join(["/" + function["name"], *arguments]))
        lines += [f"    {line}" for line in str(function.get("description", "")).splitlines()]
        lines += [f"    {name}: {_told(schema)}" for name, schema in _parameters(function).items()]
    return lines


def _inside(line: str) -> str | None:
    return None if line.strip() == _QUOTES else line


def _is_call(line: str) -> bool:
    return line.startswith("/") and not line.startswith("//")


def _said(content: str, calls: Sequence[ToolCall] = ()) -> Message:
    try:
        return Message(role="assistant", content=content, tool_calls=tuple(calls))
    except ValidationError as error:
        raise TypingError(what_is_invalid(error)) from error


def _message(text: str) -> Message:
    """A message given as JSON."""
    try:
        fields = json.loads(text)
        return Message.from_openai({**fields, "role": "assistant"})
    except ValidationError as error:
        raise TypingError(f"it is no message: {what_is_invalid(error)}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise TypingError(f"it is no message as JSON: {error}") from error


def _call(text: str, tools: Sequence[ToolSchema]) -> ToolCall:
    """A call, without its slash."""
    name, _, rest = text.strip().partition(" ")
    functions = {str(_function(tool)["name"]): _function(tool) for tool in tools}
    if name not in functions:
        error = unknown_name("tool", name, functions, "A text that begins with a slash is typed with two: //text")
        raise TypingError(str(error))
    try:
        return ToolCall(name=name, arguments=_arguments(rest.strip(), _parameters(functions[name])))
    except ValidationError as error:
        raise TypingError(what_is_invalid(error)) from error


def _arguments(text: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call: JSON, pairs, or the one value that there is to give."""
    if text.startswith("{"):
        try:
            return dict(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise TypingError(f"the arguments are no JSON object: {error}") from error
    only = next(iter(parameters)) if len(parameters) == 1 else None
    if text and only is not None and text.partition("=")[0].strip() != only:
        return {only: _value(text, parameters[only])}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise TypingError(f"{text!r} cannot be read: {error}. Write key=value, with spaces in quotes") from error
    pairs = [word.partition("=") for word in words]
    wrong = [key for key, equals, _ in pairs if not equals]
    if wrong:
        raise TypingError(f"{wrong[0]!r} is no key=value; the keys are {', '.join(parameters) or 'none'}")
    return {key: _value(value, parameters.get(key, {})) for key, _, value in pairs}


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """A value, as the schema has it: text stays text, anything else is JSON if it can be read as that."""
    if schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _function(tool: ToolSchema) -> Mapping[str, Any]:
    return tool.get("function", tool)


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    return function.get("parameters", {}).get("properties", {})


def _told(schema: Mapping[str, Any]) -> str:
    """What a parameter is: its type, what is told of it, and its default."""
    kind = schema.get("type") or ("one of " + json.dumps(schema["enum"]) if "enum" in schema else "any")
    default = f" (default {json.dumps(schema['default'])})" if "default" in schema else ""
    return ": ".join(filter(None, [str(kind), schema.get("description", "")])) + default
