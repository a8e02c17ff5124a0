"""Tool calls as Qwen3.5 and later write them: a function and its parameters as tags, values as text.

Knows nothing about tokens; it gets what stands between the tags of a call.
"""

import re
from collections.abc import Callable
from typing import Any

from envsdk.errors import RenderError
from envsdk.messages import ToolCall

from .argument_types import ArgumentTypes

_OPENING = re.compile(r"\s*+<parameter=([^>\n]*)>\n?")
_CLOSING = "</parameter>"
_FOLLOWING = re.compile(r"\s*+(?:<parameter=|\Z)")
_NEXT = re.compile(r"</parameter>\s*+<parameter=")
_SWALLOWED = re.compile(r"^[^\S\n]*+<parameter=[^>\n]*>|</parameter>\s*+</function>", re.MULTILINE)
"""What a value does not hold: the next parameter, because this one was not closed, or the end of the function."""


def write_call(call: ToolCall, write_value: Callable[[Any], str]) -> str:
    """What stands between the tags of a call, as the templates write it.

    Raises:
        RenderError: If the arguments are a text: the format has no place for one. Or if one of them would be read as
            several, because it spells the tags of the format.
    """
    if isinstance(call.arguments, str):
        raise no_names(call)
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
    """Read a call. What cannot be read is a call with an error and the text as arguments."""
    name, values, error = _read_texts(text)
    return types.read(name, values) if error is None else ToolCall(name="", arguments=text, error=error)


def _read_texts(text: str) -> tuple[str, list[tuple[str, str]], str | None]:
    """The name of a call, the texts of its values, and what is wrong with them."""
    inner = text.strip().removeprefix("<function=").removesuffix("</function>")
    name, _, body = inner.partition(">")
    if text.strip() != f"<function={name}>{body}</function>" or not name or "\n" in name:
        return name, [], "a tool call is no <function=...> block"
    values, rest = read_values(body, _OPENING, _CLOSING, _FOLLOWING)
    if rest.strip():
        return name, [], f"a tool call of {name!r:.80} has more than parameters"
    values = [(key, value.removesuffix("\n")) for key, value in values]
    for key, value in values:
        if found := _SWALLOWED.search(value):
            return name, values, f"{name:.80}: the argument {key[:40]!r} holds {found[0][:40]!r}, a tag of the call"
    return name, values, None


def read_values(
    text: str, opening: re.Pattern[str], closing: str, following: re.Pattern[str]
) -> tuple[list[tuple[str, str]], str]:
    """Read values between tags, one after the other, in time linear in the length of the text.

    A value may hold the closing tag: it ends at the first one that is followed by another value or by the end.

    Args:
        text: The text.
        opening: What begins a value; its group is the value's name.
        closing: What ends a value.
        following: What is behind the end of a value.

    Returns:
        The names with the values, and what is left of the text.
    """
    values: list[tuple[str, str]] = []
    position = 0
    while opened := opening.match(text, position):
        end = text.find(closing, opened.end())
        while end >= 0 and not following.match(text, end + len(closing)):
            end = text.find(closing, end + len(closing))
        if end < 0:
            break
        values.append((opened[1], text[opened.end() : end]))
        position = end + len(closing)
    return values, text[position:]


def no_names(call: ToolCall) -> RenderError:
    """The error of a call whose arguments are a text, in a format that writes them by name."""
    return RenderError(
        f"the call of {call.name!r} has a text as its arguments, {call.arguments!r:.80}; the format needs them by "
        "name, so give a dict"
    )
