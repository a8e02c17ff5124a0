"""Reads a call in Python's syntax, as a syntax tree that is never evaluated.

Some templates write strings between quotes without escaping what is in them. Models write proper Python. So a call is
read as Python first; only if it is not Python, a string ends at the first quote that an argument or the end follows.
"""

import ast
import re
from typing import Any

from envsdk.messages import check_json, with_unique_keys

from ._styles import CUT, end_of_brackets, literal, python_expression, python_value

_NAME = re.compile(r"\s*([^\W\d][\w.\-]*+)\s*\(")
_KEY = re.compile(r"\s*([^\W\d]\w*+)\s*=\s*")
_PLAIN = re.compile(r"[^\s,()\[\]{}'\"]++")
_BETWEEN = re.compile(r"\s*(,|\))")


class NotPython(ValueError):
    """A text is not a call.

    Args:
        error: Why.
        searched: How many characters were searched for its end.
    """

    def __init__(self, error: object, searched: int) -> None:
        super().__init__(str(error))
        self.searched = searched


def read_python_call(
    text: str, start: int, stop: int, quote: str, *, is_whole: bool = True
) -> tuple[str, dict[str, Any], int]:
    """Read the call that begins at `start` and ends before `stop`.

    Args:
        text: The text.
        start: Where the call begins.
        stop: Where it has to end.
        quote: The quote around strings that are not escaped; empty if the template escapes them.
        is_whole: Whether the text does not go on at `stop`.

    Returns:
        The name, the arguments, and the position after the call.

    Raises:
        NotPython: If it is not a call with named literals as its arguments; the error is `CUT` if that depends on how
            the text goes on.
    """
    named = _NAME.match(text, start, stop)
    if named is None:
        raise NotPython("it does not begin with a name", 0)
    end, arguments, error = stop, None, None
    try:
        end = end_of_brackets(text, named.end() - 1, stop)
        arguments = _keywords(python_expression("f" + text[named.end() - 1 : end]))
    except ValueError as found:
        error = found
    if error is not None:
        if not is_whole and (quote or end == stop):
            raise NotPython(CUT, 0)
        if quote:
            arguments, end = _read_unescaped(text, named.end(), stop, quote)
    if arguments is None:
        raise NotPython(error, (stop if quote else end) - start)
    try:
        check_json(arguments)
    except ValueError as found:
        raise NotPython(found, end - start) from found
    return named[1], arguments, end


def _read_unescaped(text: str, start: int, stop: int, quote: str) -> tuple[dict[str, Any] | None, int]:
    """Read arguments whose strings are not escaped, if they are such; return them and the position after them."""
    try:
        return _unescaped(text, start, stop, quote)
    except ValueError:
        return None, stop


def _keywords(node: ast.expr) -> dict[str, Any]:
    """Return the keyword arguments of a call's syntax tree."""
    if not isinstance(node, ast.Call) or node.args or any(word.arg is None for word in node.keywords):
        raise ValueError("it has arguments without a name")
    names = [word.arg or "" for word in node.keywords]
    if len(set(names)) < len(names):
        raise ValueError("an argument comes twice")
    return {name: literal(word.value) for name, word in zip(names, node.keywords, strict=True)}


def _unescaped(text: str, start: int, stop: int, quote: str) -> tuple[dict[str, Any], int]:
    """Read arguments whose strings are not escaped, and return the position after them."""
    ending = re.compile(re.escape(quote) + r"(?=\s*,\s*[^\W\d]\w*+\s*=|\s*\)(?:\s*,\s*[^\W\d][\w.\-]*+\(|\s*\]|\s*\Z))")
    pairs: list[tuple[str, Any]] = []
    position = start
    while key := _KEY.match(text, position, stop):
        if text.startswith(quote, key.end()):
            found = ending.search(text, key.end() + len(quote), stop)
            if found is None:
                raise ValueError("a string is not closed")
            value, position = text[key.end() + len(quote) : found.start()], found.end()
        else:
            end = _end_of_value(text, key.end(), stop)
            value, position = python_value(text[key.end() : end]), end
        pairs.append((key[1], value))
        following = _BETWEEN.match(text, position, stop)
        if following is None:
            break
        position = following.end()
        if following[1] == ")":
            return with_unique_keys(pairs), position
    raise ValueError("the call is not closed")


def _end_of_value(text: str, start: int, stop: int) -> int:
    if text[start : start + 1] in ("[", "{"):
        return end_of_brackets(text, start, stop)
    found = _PLAIN.match(text, start, stop)
    if found is None:
        raise ValueError("an argument has no value")
    return found.end()
