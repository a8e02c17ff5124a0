"""Writes and reads tool calls as Qwen3.5 and later do: a function and its parameters as tags, with values as text.

Knows nothing about tokens: it handles the text between the tags of a call.
"""

import re
from collections.abc import Callable
from typing import Any

from envsdk.errors import RenderError
from envsdk.messages import ToolCall

from .argument_types import ArgumentTypes
from .json_calls import bare_value
from .tagged_values import read_values, text_arguments_error

_OPENING = re.compile(r"\s*+<parameter=([^>\n]*)>\n?")
_CLOSING = "</parameter>"
_FOLLOWING = re.compile(r"\s*+(?:<parameter=|\Z)")
_NEXT = re.compile(r"</parameter>\s*+<parameter=")
_SWALLOWED = re.compile(r"^[^\S\n]*+<parameter=[^>\n]*>|</parameter>\s*+</function>", re.MULTILINE)
"""What a value must not contain: the next parameter, because this one was not closed, or the end of the function."""


def write_call(call: ToolCall, write_value: Callable[[Any], str] = bare_value) -> str:
    """Return the text of a call between its tags, as the templates write it.

    Raises:
        RenderError: If the arguments are a text, for which the format has no place, or if one of them would be read as
            several because it spells the tags of the format.
    """
    if isinstance(call.arguments, str):
        raise text_arguments_error(call)
    values = [(key, write_value(value)) for key, value in call.arguments.items()]
    for key, value in values:
        if _NEXT.search(value):
            raise RenderError(
                f"the argument {key!r:.80} of the call of {call.name!r:.80} would be read as several: it spells the "
                "end of a parameter and the next <parameter=...>, which are not control tokens; take them out"
            )
    parameters = [f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values]
    return f"\n<function={call.name}>\n{''.join(parameters)}</function>\n"


def read_call(text: str, types: ArgumentTypes) -> ToolCall:
    """Read a call. A call that cannot be read has an error, and the text as its arguments."""
    name, values, error = _read_texts(text)
    return types.read(name, values) if error is None else ToolCall(name="", arguments=text, error=error)


def _read_texts(text: str) -> tuple[str, list[tuple[str, str]], str | None]:
    """Return the name of a call, the texts of its values, and what is wrong with them."""
    inner = text.strip().removeprefix("<function=").removesuffix("</function>")
    name, _, body = inner.partition(">")
    if text.strip() != f"<function={name}>{body}</function>" or not name or "\n" in name:
        return name, [], "a tool call is not a <function=...> block"
    values, rest = read_values(body, _OPENING, _CLOSING, _FOLLOWING)
    if rest.strip():
        return name, [], f"a tool call of {name!r:.80} has more than parameters"
    values = [(key, value.removesuffix("\n")) for key, value in values]
    for key, value in values:
        if found := _SWALLOWED.search(value):
            return name, values, f"{name:.80}: the argument {key[:40]!r} holds {found[0][:40]!r}, a tag of the call"
    return name, values, None
