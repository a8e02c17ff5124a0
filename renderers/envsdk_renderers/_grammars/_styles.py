"""Reads and writes values as a chat template spells them: as JSON, as Python, verbatim, or in its own notation.

Knows nothing about templates and tokens. A string that is read is `coded`: its control tokens are single characters.
"""

import ast
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from envsdk._visible import brief
from envsdk.errors import RenderError
from envsdk.messages import check_json, with_unique_keys

CONTROL = re.compile("[\ud800-\udfff]")
"""Matches a control token in a coded string."""
Escapes: TypeAlias = Literal["json", "ascii", "python", "none"]
Order: TypeAlias = Literal["given", "sorted", "folded"]
_DECODER = json.JSONDecoder(object_pairs_hook=with_unique_keys)
LONGEST_WORD = 16
"""The most characters of a part of JSON that is not a string: `-Infinity`, or an escaped surrogate pair."""
_MAX_DEPTH = 64
PYTHON_WORDS: Mapping[str, Any] = {"True": True, "False": False, "None": None}
_WORDS = {"true": True, "false": False, "null": None, **PYTHON_WORDS}
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SCALAR = re.compile(r"[^\s,{}\[\]\"']+")
_SPACE = re.compile(r"\s*")


class TextPiece(NamedTuple):
    """A part of the written text."""

    text: str
    is_scaffold: bool
    """True if names of control tokens in it are control tokens."""


@dataclass(frozen=True)
class Style:
    """The spelling of values."""

    quotes: tuple[str, str] = ('"', '"')
    """The text around a string."""
    key_quotes: tuple[str, str] = ('"', '"')
    """The text around a key of an object."""
    escapes: Escapes = "json"
    """The escaping of characters in a string. `python` also chooses the quotes as `repr` does."""
    words: tuple[str, str, str] = ("true", "false", "null")
    comma: str = ", "
    colon: str = ": "
    order: Order = "given"
    """The order of keys: as given, sorted, or sorted without regard to case."""
    indent: int = 0
    """The number of spaces by which each level is indented; 0 means that all is in one line."""

    @cached_property
    def is_verbatim(self) -> bool:
        """True if a string is written as it is, so that nothing shows that it is a string."""
        return not any(self.quotes) and self.escapes == "none"

    @cached_property
    def is_json(self) -> bool:
        """True if what is written is JSON."""
        return self.escapes in ("json", "ascii") and self.quotes == self.key_quotes == ('"', '"')


JSON = Style()
PYTHON = Style(escapes="python", words=("True", "False", "None"))
VERBATIM = Style(quotes=("", ""), escapes="none")


# Writing.


def write_value(value: Any, style: Style) -> list[TextPiece]:
    """Write a value.

    Raises:
        RenderError: If it is not a value of JSON, or the style cannot spell it.
    """
    try:
        check_json(value)
    except ValueError as error:
        raise RenderError(f"a value of a call is not JSON: {error}") from error
    return _written(value, style, 0)


def json_text(value: Any, what: str) -> str:
    """Write a value as transformers' `tojson` does.

    Raises:
        RenderError: If the value is not JSON; the error calls it `what`.
    """
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()  # an unpaired surrogate cannot be encoded
        return text
    except (TypeError, ValueError) as error:
        raise RenderError(f"a {what} is not JSON: {error}") from error


def written_text(value: Any, style: Style) -> str:
    """Return the text that `write_value` writes."""
    return "".join(piece.text for piece in write_value(value, style))


def _written(value: Any, style: Style, depth: int) -> list[TextPiece]:
    match value:
        case dict() | list() if style == JSON:
            return [TextPiece(json.dumps(value, ensure_ascii=False), False)]
        case str() if style.is_verbatim:
            return [TextPiece(value, False)]
        case str():
            return _written_string(value, style, style.quotes)
        case None | bool():
            return [TextPiece(style.words[2] if value is None else style.words[0 if value else 1], False)]
        case int() | float():
            return [TextPiece(json.dumps(value), False)]
        case dict():
            opener, closer, fields = "{", "}", cast("dict[str, Any]", value)
            items = [
                [
                    *_written_string(key, style, style.key_quotes),
                    TextPiece(style.colon, True),
                    *_written(fields[key], style, depth + 1),
                ]
                for key in in_order(fields, style.order)
            ]
        case _:
            opener, closer = "[", "]"
            items = [_written(item, style, depth + 1) for item in cast("list[Any]", value)]
    line = "\n" + " " * style.indent * depth if style.indent else ""
    inner = line + " " * style.indent
    comma = (style.comma.rstrip() if style.indent else style.comma) + inner
    pieces = [TextPiece(opener, False)]
    for number, item in enumerate(items):
        pieces += [TextPiece(comma if number else inner, True), *item]
    return [*pieces, TextPiece((line if items else "") + closer, False)]


def _written_string(text: str, style: Style, quotes: tuple[str, str]) -> list[TextPiece]:
    if style.escapes == "python":
        return [TextPiece(repr(text), False)]
    if style.escapes != "none":
        text = json.dumps(text, ensure_ascii=style.escapes == "ascii")[1:-1]
    return [TextPiece(quotes[0], True), TextPiece(text, False), TextPiece(quotes[1], True)]


def in_order(value: dict[str, Any], order: Order) -> list[str]:
    """Return the keys of an object in the order in which they are written."""
    if order == "given":
        return [*value]
    return sorted(value) if order == "sorted" else sorted(value, key=str.lower)


# Reading.


class InvalidValue(ValueError):
    """There is no value.

    Args:
        error: Why.
        end: The position up to which the text was read. If the text ends there, more text may complete the value.
    """

    def __init__(self, error: object, end: int) -> None:
        super().__init__(str(error))
        self.end = end


def read_value(coded: str, start: int, style: Style) -> tuple[Any, int]:
    """Read the value that begins at `start`, after whitespace.

    Args:
        coded: The text.
        start: The position.
        style: How the value is spelled.

    Returns:
        The value and the position after it.

    Raises:
        InvalidValue: If there is none, it is nested too deeply, or a key comes twice.
    """
    start = skip_space(coded, start)
    if style.is_json:
        try:
            value, end = _DECODER.raw_decode(coded, start)
        except json.JSONDecodeError as error:
            why = json.JSONDecodeError(error.msg, coded[start : error.pos], error.pos - start)  # counted from `start`
            is_unterminated = error.msg.startswith("Unterminated string")
            raise InvalidValue(why, len(coded) if is_unterminated else error.pos) from None
        except RecursionError:
            raise InvalidValue("it is nested too deeply", start) from None
        except ValueError as error:  # a key comes twice, or an integer is too long
            raise InvalidValue(error, start) from None
    elif style.escapes == "python":
        end = end_of_brackets(coded, start, len(coded))
        try:
            value = python_value(coded[start:end])
        except ValueError as error:
            raise InvalidValue(error, end - 1) from None
    else:
        try:
            value, end = _read_notation(coded, start, style, 0)
        except InvalidValue as error:
            raise InvalidValue(f"{error} at position {error.end - start}", error.end) from None
    quotes = "".join((*style.quotes, *style.key_quotes))
    if any(found[0] not in quotes for found in CONTROL.finditer(coded, start, end)):
        raise InvalidValue("a control token is inside it", start)
    try:
        check_json(value)
    except ValueError as error:
        raise InvalidValue(error, start) from None
    return value, end


def parse_value(text: str, words: Mapping[str, Any] = _WORDS, *, reads_python: bool = True) -> Any:
    """Return the value that a whole text spells, as JSON or else as Python.

    Args:
        text: The text.
        words: The words besides those of JSON.
        reads_python: Whether a list or an object may be spelled as in Python.

    Raises:
        ValueError: If it is neither; the reason is why it is not JSON.
    """
    word = text.strip()
    if word in words:
        return words[word]
    try:
        value: Any = _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        if not reads_python or word[:1] not in ("{", "["):
            raise
        try:
            value = python_value(word)
        except ValueError:
            raise error from None
    check_json(value)
    return value


def skip_space(text: str, start: int) -> int:
    """Return the position after the whitespace at `start`."""
    return _SPACE.match(text, start).end()  # pyright: ignore[reportOptionalMemberAccess] - it also matches ""


_BRACKETS = re.compile(r"""'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+"|[^'"()\[\]{}]++|(.)""", re.DOTALL)


def end_of_brackets(text: str, start: int, stop: int) -> int:
    """Return the position after the bracket that closes the first one before `stop`, in Python's syntax.

    Raises:
        InvalidValue: If it is not closed.
    """
    depth = 0
    for found in _BRACKETS.finditer(text, start, stop):
        mark = found[1]
        if mark is None:
            continue
        if mark in "'\"":
            raise InvalidValue("a string is not closed", stop)
        depth += 1 if mark in "([{" else -1
        if depth <= 0:
            return found.end()
    raise InvalidValue("a bracket is not closed", stop)


def python_value(text: str) -> Any:
    """Return the value of a Python literal, in which JSON's words are allowed; nothing is evaluated.

    Raises:
        ValueError: If it is not a literal.
    """
    return _literal(python_expression(text))


def python_expression(text: str) -> ast.expr:
    """Return the syntax tree of an expression.

    Raises:
        ValueError: If it is not an expression.
    """
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"it is not Python: {getattr(error, 'msg', None) or error}") from None


def _literal(node: ast.expr | None, depth: int = 0) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.List(elts=items):
            return [_literal(item, depth + 1) for item in items]
        case ast.Dict(keys=keys, values=values):
            names = [_literal(key, depth + 1) for key in keys if key is not None]
            if len(names) < len(keys) or not all(isinstance(name, str) for name in names):
                raise ValueError("a key is not a string")
            return with_unique_keys(
                [(name, _literal(value, depth + 1)) for name, value in zip(names, values, strict=True)]
            )
        case _:
            raise ValueError(f"{ast.unparse(node)[:40] if node else ''!r} is not a literal")


def _read_notation(coded: str, start: int, style: Style, depth: int) -> tuple[Any, int]:
    """Read a value in a separate notation: objects and lists in the usual brackets, with measured quotes."""
    start = skip_space(coded, start)
    if coded.startswith(("{", "["), start):
        return _read_container(coded, start, style, depth)
    if style.quotes[0] and coded.startswith(style.quotes[0], start):
        return _read_quoted(coded, start, style.quotes)
    word = _SCALAR.match(coded, start)
    if word is None:
        raise InvalidValue("there is no value", start)
    if word[0] in _WORDS:
        return _WORDS[word[0]], word.end()
    if not _NUMBER.fullmatch(word[0]):
        raise InvalidValue(f"{brief(word[0], 40)} is not a value", word.end())
    return json.loads(word[0]), word.end()


def _read_container(coded: str, start: int, style: Style, depth: int) -> tuple[dict[str, Any] | list[Any], int]:
    if depth > _MAX_DEPTH:
        raise InvalidValue("it is nested too deeply", start)
    pairs: list[tuple[str, Any]] = []
    is_object, comma, colon = coded[start] == "{", style.comma.strip(), style.colon.strip()
    closer = "}" if is_object else "]"
    position = skip_space(coded, start + 1)
    while not coded.startswith(closer, position):
        if pairs:
            if not coded.startswith(comma, position):
                raise InvalidValue(f"expected {comma!r} or {closer!r}", position)
            position = skip_space(coded, position + len(comma))
        key, begun = "", position
        if is_object and style.key_quotes[0]:
            if not coded.startswith(style.key_quotes[0], position):
                raise InvalidValue("there is no key", position)
            key, position = _read_quoted(coded, position, style.key_quotes)
        elif is_object:
            found = _SCALAR.match(coded, position)
            key = found[0].partition(colon)[0] if found else ""
            position += len(key)
        if is_object:
            position = skip_space(coded, position)
            if not key or not coded.startswith(colon, position):
                raise InvalidValue("there is no key", begun if position < len(coded) else position)
            position += len(colon)
        value, position = _read_notation(coded, position, style, depth + 1)
        pairs.append((key, value))
        position = skip_space(coded, position)
    try:
        return with_unique_keys(pairs) if is_object else [value for _, value in pairs], position + 1
    except ValueError as error:
        raise InvalidValue(error, position) from None


def _read_quoted(coded: str, start: int, quotes: tuple[str, str]) -> tuple[str, int]:
    begin = start + len(quotes[0])
    end = coded.find(quotes[1], begin)
    if end < 0:
        raise InvalidValue("a string is not closed", len(coded))
    return coded[begin:end], end + len(quotes[1])


_NAME = re.compile(r"\s*([^\W\d][\w.\-]*+)\s*\(")
_KEY = re.compile(r"\s*([^\W\d]\w*+)\s*=\s*")
_PLAIN = re.compile(r"[^\s,()\[\]{}'\"]++")
_BETWEEN = re.compile(r"\s*(,|\))")


def read_python_call(
    text: str, start: int, stop: int, quote: str, *, is_whole: bool = True
) -> tuple[str, dict[str, Any], int]:
    """Read the call that begins at `start` and ends before `stop`.

    Args:
        text: The text.
        start: Where the call begins.
        stop: Where it has to end.
        quote: The quote around strings that the template does not escape, so that a backslash in them is one; empty if
            it escapes them.
        is_whole: Whether the text does not go on at `stop`.

    Returns:
        The name, the arguments, and the position after the call.

    Raises:
        InvalidValue: If it is not a call with named literals as its arguments.
    """
    named = _NAME.match(text, start, stop)
    if named is None:
        raise InvalidValue("it does not begin with a name", start)
    if quote and not is_whole:
        raise InvalidValue("what follows decides where its strings end", stop)
    arguments, end = None, stop
    if quote:
        with suppress(ValueError):
            arguments, end = _unescaped(text, named.end(), stop, quote)
    try:
        if arguments is None:  # it may still be proper Python
            end = end_of_brackets(text, named.end() - 1, stop)
            call = python_expression("f" + text[named.end() - 1 : end])
            if not isinstance(call, ast.Call) or call.args or any(word.arg is None for word in call.keywords):
                raise ValueError("it has arguments without a name")
            if len({word.arg for word in call.keywords}) < len(call.keywords):
                raise ValueError("an argument comes twice")
            arguments = {word.arg or "": _literal(word.value) for word in call.keywords}
    except ValueError as error:
        raise InvalidValue(error, stop if quote else end) from None
    try:
        check_json(arguments)
    except ValueError as error:
        raise InvalidValue(error, end) from error
    return named[1], arguments, end


def _unescaped(text: str, start: int, stop: int, quote: str) -> tuple[dict[str, Any], int]:
    """Read arguments whose strings are not escaped, and return the position after them."""
    ending = re.compile(re.escape(quote) + r"(?=\s*,\s*[^\W\d]\w*+\s*=|\s*\)(?:\s*,\s*[^\W\d][\w.\-]*+\(|\s*\]|\s*\Z))")
    pairs: list[tuple[str, Any]] = []
    position = start
    while key := _KEY.match(text, position, stop):
        begin = key.end()
        if text.startswith(quote, begin):
            found = ending.search(text, begin + len(quote), stop)
            if found is None:
                raise ValueError("a string is not closed")
            value, position = text[begin + len(quote) : found.start()], found.end()
        elif text.startswith(("[", "{"), begin):
            position = end_of_brackets(text, begin, stop)
            value = python_value(text[begin:position])
        else:
            plain = _PLAIN.match(text, begin, stop)
            if plain is None:
                raise ValueError("an argument has no value")
            value, position = python_value(plain[0]), plain.end()
        pairs.append((key[1], value))
        following = _BETWEEN.match(text, position, stop)
        if following is None:
            break
        position = following.end()
        if following[1] == ")":
            return with_unique_keys(pairs), position
    raise ValueError("the call is not closed")
