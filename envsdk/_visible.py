"""Text that is safe to print: characters that control a terminal, or are invisible, become escapes.

A record contains whatever a model sampled. If it were printed unchanged, it could clear the screen, set the window's
title, write to the clipboard, or reorder the text around it.
"""

import re
from typing import Any

# Control characters except tab and newline (C0, DEL, C1); characters that are invisible, reorder others, or end lines
# in some programs; tags, which are invisible as well; and unpaired surrogates, which cannot be encoded. Joiners stay,
# because scripts and emoji need them. `re` compiles the pattern at its first use, not at import.
_HIDDEN = (
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e0fff\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""Return a string in which each unsafe character is a Python escape, such as `\x1b`."""
    return re.sub(_HIDDEN, lambda found: ascii(found[0])[1:-1], text)


def on_one_line(text: str) -> str:
    """Do the same as `visible`, on one line: newlines and tabs become escapes as well."""
    return visible(text).replace("\n", r"\n").replace("\t", r"\t")


def shorten(text: str, chars: int) -> str:
    """Return a string of at most `chars` characters: if it is cut, between words if possible, with … at the cut."""
    if len(text) <= chars:
        return text
    start = text[: chars - 1]
    words = start.rpartition(" ")[0]
    return (words if len(words) > chars // 2 else start) + "…"


def brief(value: Any, chars: int = 80) -> str:
    """Return the `repr` of a value for a message, shortened."""
    return shorten(repr(value), chars)


def type_of(value: Any) -> str:
    """Return what a value is, for a message: None, a class by its name, or a type with its article, as in `an int`."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"
