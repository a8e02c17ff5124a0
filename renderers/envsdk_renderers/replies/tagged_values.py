"""The values of a call between tags, as XML and GLM write them. Knows nothing about tokens or schemas."""

import re

from envsdk.errors import RenderError
from envsdk.messages import ToolCall


def read_values(
    text: str, opening: re.Pattern[str], closing: str, following: re.Pattern[str]
) -> tuple[list[tuple[str, str]], str]:
    """Read consecutive values between tags, in time linear in the length of the text.

    A value may contain the closing tag: it ends at the first one that is followed by another value or by the end.

    Args:
        text: The text.
        opening: Matches the beginning of a value; its group is the value's name.
        closing: The tag that ends a value.
        following: Matches what follows the end of a value.

    Returns:
        The names with the texts of their values, and the rest of the text.
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


def text_arguments_error(call: ToolCall) -> RenderError:
    """Return the error of a call whose arguments are a text, in a format that writes them by name."""
    return RenderError(
        f"the arguments of the call of {call.name!r} are a text, {call.arguments!r:.80}; the format needs them by "
        "name, so give a dict"
    )
