"""The parser of replies that a person types: text and tool calls."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from .._describing import what_is_invalid
from ..errors import UnknownName
from ..messages import Message, ToolCall, ToolSchema

HELP = '''\
Type a reply and press Enter.
  some text               send text; end a line with \\ to continue it on the next line
  """                     start or end text of several lines, which is sent literally
  /tool key=value ...     call a tool; put values with spaces in "quotes"
  /tool {"key": value}    call a tool with JSON arguments
  /tool value             call a tool that has one parameter
  /{"reasoning": ..., "content": ..., "tool_calls": [{"name": ..., "arguments": {...}}]}
                          send a whole message as JSON
  //text                  send text that starts with a slash
A reply of several lines, continued with \\, may contain text and several calls, each on its own line.
  :tools :prompt :help    show the tools; the prompt that the model sees; this help
  :quit, or Ctrl-D        quit'''

_QUOTES = '"""'


class TypingError(ValueError):
    """The typed text is not a valid reply."""


def read_reply(line: str, more: Callable[[], str], tools: Sequence[ToolSchema]) -> Message:
    """Read a reply.

    Args:
        line: The first line of the reply.
        more: A function that reads another line.
        tools: The tools that the reply may call.

    Raises:
        TypingError: If the reply is not valid.
        EOFError: If `more` raises it, because the input ends before the reply does.
    """
    calls: list[ToolCall] = []
    if line.strip() == _QUOTES:
        texts: list[str] = []
        while (text := more()).strip() != _QUOTES:
            texts.append(text)
    else:
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(more())
        if lines[0].startswith("/{"):
            try:
                fields = json.loads("\n".join(lines)[1:])
                return Message.from_openai({**fields, "role": "assistant"})
            except ValidationError as error:
                raise TypingError(f"the JSON is not a message: {what_is_invalid(error)}") from error
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise TypingError(f"the message is not valid JSON: {error}") from error
        is_call = [text.startswith("/") and not text.startswith("//") for text in lines]
        texts = [text.removeprefix("/") for text, is_one in zip(lines, is_call, strict=True) if not is_one]
        calls = [_call(text[1:], tools) for text, is_one in zip(lines, is_call, strict=True) if is_one]
    try:
        return Message.model_validate({"role": "assistant", "content": "\n".join(texts), "tool_calls": tuple(calls)})
    except ValidationError as error:
        raise TypingError(what_is_invalid(error)) from error


def signatures(tools: Sequence[ToolSchema]) -> list[str]:
    """Return lines that show how to call each tool, and what it does."""
    lines: list[str] = []
    for function in map(_function, tools):
        parameters, required = _parameters(function), function.get("parameters", {}).get("required", ())
        arguments = [f"{name}=..." if name in required else f"[{name}=...]" for name in parameters]
        lines.append(" ".join(["/" + function["name"], *arguments]))
        lines += [f"    {line}" for line in str(function.get("description", "")).splitlines()]
        for name, schema in parameters.items():
            kind = schema.get("type") or ("one of " + json.dumps(schema["enum"]) if "enum" in schema else "any")
            default = f" (default {json.dumps(schema['default'])})" if "default" in schema else ""
            about = ": ".join(filter(None, [str(kind), schema.get("description", "")]))
            lines.append(f"    {name}: {about}{default}")
    return lines


def _call(text: str, tools: Sequence[ToolSchema]) -> ToolCall:
    """Parse a call, without its slash."""
    name, _, rest = text.strip().partition(" ")
    functions = {str(_function(tool)["name"]): _function(tool) for tool in tools}
    if name not in functions:
        error = UnknownName.of("tool", name, functions, "To start your reply with a slash, type two: //text")
        raise TypingError(str(error))
    try:
        arguments = _arguments(rest.strip(), _parameters(functions[name]))
        return ToolCall.model_validate({"name": name, "arguments": arguments})
    except ValidationError as error:
        raise TypingError(what_is_invalid(error)) from error


def _arguments(text: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the arguments of a call: JSON, pairs, or the value of the only parameter."""
    if text.startswith("{"):
        try:
            return dict(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise TypingError(f"the arguments are not a JSON object: {error}") from error
    only = next(iter(parameters)) if len(parameters) == 1 else None
    if text and only is not None and text.partition("=")[0].strip() != only:
        return {only: _value(text, parameters[only])}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise TypingError(f"the arguments are {text!r} ({error}); expected key=value, with spaces in quotes") from error
    pairs = [word.partition("=") for word in words]
    wrong = [key for key, equals, _ in pairs if not equals]
    if wrong:
        raise TypingError(
            f"the argument is {wrong[0]!r}; expected key=value with a key of: {', '.join(parameters) or '(no keys)'}"
        )
    return {key: _value(value, parameters.get(key, {})) for key, _, value in pairs}


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """Parse a value by its schema: a string stays as typed; any other type is JSON, or a string if that fails."""
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
