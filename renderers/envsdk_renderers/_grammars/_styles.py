"""Reads and writes values as a chat template spells them: as JSON, as Python, verbatim, or in its own notation.

Knows nothing about templates and tokens. A string that is read is `coded`: its control tokens are single characters.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from envsdk.errors import RenderError
from envsdk.messages import check_json, with_unique_keys

CONTROL = re.compile("[\ud800-\udfff]")
"""Matches a control token in a coded string."""
Escapes: TypeAlias = Literal["json", "ascii", "python", "none"]
Order: TypeAlias = Literal["given", "sorted", "folded"]
encode_json = json.JSONEncoder(ensure_ascii=False).encode
"""Writes a value as JSON, faster than `json.dumps` with an option, which makes an encoder each time."""
_DECODER = json.JSONDecoder(object_pairs_hook=with_unique_keys)
_WINDOW, _GROWTH = 1024, 16
_LONGEST_WORD = 16  # characters: `-Infinity`, or an escaped surrogate pair
UNTERMINATED = "Unterminated string"
"""The beginning of the decoder's error for a string without an end, which was searched up to the end of the text."""
CUT = "the text ends inside it"
"""The error of a value at the end of unfinished text, if more text may change what is read."""
_NUMBER_END = re.compile(r"[0-9.eE+\-]\Z")
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

    @cached_property
    def is_default(self) -> bool:
        """True if values are written as JSON's own encoder writes them."""
        return self == Style()


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
    return written_value(value, style)


def written_text(value: Any, style: Style) -> str:
    """Return the text that `write_value` writes."""
    return "".join(piece.text for piece in write_value(value, style))


def written_value(value: Any, style: Style) -> list[TextPiece]:
    """Write a value that is known to be one of JSON; see `write_value`."""
    if style.is_default and isinstance(value, (dict, list)):
        return [TextPiece(encode_json(value), False)]
    if isinstance(value, str) and style.is_verbatim:
        return [TextPiece(value, False)]
    return list(_written(value, style, 0))


def _written(value: Any, style: Style, depth: int) -> Iterator[TextPiece]:
    match value:
        case dict() | list() if style.is_default:  # by JSON's own encoder, which is fast
            yield TextPiece(encode_json(value), False)
        case str():
            yield from _string(value, style, style.quotes)
        case None | bool():
            yield TextPiece(style.words[2] if value is None else style.words[0 if value else 1], False)
        case int() | float():
            yield TextPiece(json.dumps(value), False)
        case dict():
            yield from _container(_items(cast("dict[str, Any]", value), style, depth), "{}", style, depth)
        case _:
            items = (list(_written(item, style, depth + 1)) for item in cast("list[Any]", value))
            yield from _container(items, "[]", style, depth)


def _items(value: dict[str, Any], style: Style, depth: int) -> Iterator[list[TextPiece]]:
    for key in in_order(value, style.order):
        yield [
            *_string(key, style, style.key_quotes),
            TextPiece(style.colon, True),
            *_written(value[key], style, depth + 1),
        ]


def _container(items: Iterator[list[TextPiece]], brackets: str, style: Style, depth: int) -> Iterator[TextPiece]:
    line = "\n" + " " * style.indent * depth if style.indent else ""
    inner = line + " " * style.indent
    yield TextPiece(brackets[0], False)
    is_first = True
    for item in items:
        yield TextPiece(("" if is_first else style.comma.rstrip() if style.indent else style.comma) + inner, True)
        yield from item
        is_first = False
    yield TextPiece(("" if is_first else line) + brackets[1], False)


def _string(text: str, style: Style, quotes: tuple[str, str]) -> Iterator[TextPiece]:
    if style.escapes == "python":
        yield TextPiece(repr(text), False)
        return
    yield TextPiece(quotes[0], True)
    is_escaped = style.escapes in ("json", "ascii")
    yield TextPiece(json.dumps(text, ensure_ascii=style.escapes == "ascii")[1:-1] if is_escaped else text, False)
    yield TextPiece(quotes[1], True)


def in_order(value: dict[str, Any], order: Order) -> list[str]:
    """Return the keys of an object in the order in which they are written."""
    if order == "given":
        return [*value]
    return sorted(value) if order == "sorted" else sorted(value, key=str.lower)


# Reading.


def read_value(coded: str, start: int, style: Style, *, is_whole: bool = True) -> tuple[Any, int]:
    """Read the value that begins at `start`, after whitespace.

    Args:
        coded: The text.
        start: The position.
        style: How the value is spelled.
        is_whole: Whether the text does not go on.

    Returns:
        The value and the position after it.

    Raises:
        ValueError: If there is none, it is nested too deeply, or a key comes twice; the error is `CUT` if that depends
            on how the text goes on.
    """
    start = skip_space(coded, start)
    if style.is_json:
        try:
            value, end = _decoded(coded, start, is_whole=is_whole)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
    else:
        try:
            end = end_of_brackets(coded, start) if style.escapes == "python" else -1
            value, end = (None, end) if end >= 0 else _read_notation(coded, start, style)
        except ValueError as error:
            if not is_whole:
                raise ValueError(CUT) from None
            if isinstance(error, _Misspelled):
                raise ValueError(f"{error} at position {error.position - start}") from None
            raise
        value = python_value(coded[start:end]) if style.escapes == "python" else value
    if not is_whole and end == len(coded) and coded[end - 1] not in "}])":
        raise ValueError(CUT)
    if not style.is_json:
        _refuse_controls(coded, start, end, style)
    try:
        check_json(value)
    except ValueError:
        _refuse_controls(coded, start, end, style)  # which is in a string, so that it is no text
        raise
    return value, end


def _refuse_controls(coded: str, start: int, end: int, style: Style) -> None:
    quotes = "".join((*style.quotes, *style.key_quotes))
    if any(found[0] not in quotes for found in CONTROL.finditer(coded, start, end)):
        raise ValueError("a control token is inside it")


def _decoded(coded: str, start: int, *, is_whole: bool) -> tuple[Any, int]:
    """Read the JSON value that begins at `start`.

    An error of Python's decoder counts the lines of all text before it. So the value is read in a window, which grows
    until the value ends in it, or an error is not that of its end.
    """
    size = _WINDOW
    while True:
        window, is_rest = coded[start : start + size], start + size >= len(coded)
        try:
            value, end = _DECODER.raw_decode(window)
            if is_rest or end < len(window):  # else a number may go on
                return value, start + end
        except json.JSONDecodeError as error:
            is_at_end = error.msg.startswith(UNTERMINATED) or error.pos + _LONGEST_WORD > len(window)
            if is_rest and is_at_end and not is_whole:
                raise ValueError(CUT) from None
            if is_rest or not is_at_end:
                raise
        except ValueError:  # a key comes twice, or an integer is too long
            if is_rest and not is_whole and _NUMBER_END.search(window):
                raise ValueError(CUT) from None
            raise
        size *= _GROWTH


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


def end_of_brackets(text: str, start: int, stop: int | None = None) -> int:
    """Return the position after the bracket that closes the first one before `stop`, in Python's syntax.

    Raises:
        ValueError: If it is not closed.
    """
    depth = 0
    for found in _BRACKETS.finditer(text, start, len(text) if stop is None else stop):
        mark = found[1]
        if mark is None:
            continue
        if mark in "'\"":
            raise ValueError("a string is not closed")
        depth += 1 if mark in "([{" else -1
        if depth <= 0:
            return found.end()
    raise ValueError("a bracket is not closed")


def python_value(text: str) -> Any:
    """Return the value of a Python literal, in which JSON's words are allowed; nothing is evaluated.

    Raises:
        ValueError: If it is not a literal.
    """
    return literal(python_expression(text))


def python_expression(text: str) -> ast.expr:
    """Return the syntax tree of an expression.

    Raises:
        ValueError: If it is not an expression.
    """
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"it is not Python: {getattr(error, 'msg', None) or error}") from None


def literal(node: ast.expr, depth: int = 0) -> Any:
    """Return the value of a syntax tree of a literal.

    Raises:
        ValueError: If it is not a literal of a JSON value, or nested too deeply.
    """
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
            return [literal(item, depth + 1) for item in items]
        case ast.Dict(keys=keys, values=values):
            return with_unique_keys(
                [(_key(key, depth), literal(value, depth + 1)) for key, value in zip(keys, values, strict=True)]
            )
        case _:
            raise ValueError(f"{ast.unparse(node)[:40]!r} is not a literal")


def _key(node: ast.expr | None, depth: int) -> str:
    key = None if node is None else literal(node, depth + 1)
    if not isinstance(key, str):
        raise ValueError(f"the key {key!r:.40} is not a string")
    return key


class _Misspelled(ValueError):
    """There is something else at a position than what is expected there."""

    def __init__(self, error: str, position: int) -> None:
        super().__init__(error)
        self.position = position


# A separate notation: objects and lists in the usual brackets, with measured quotes.


def _read_notation(coded: str, start: int, style: Style) -> tuple[Any, int]:
    """Read a value iteratively, in time linear in its length."""
    stack: list[tuple[dict[str, Any] | list[Any], str]] = []
    position = start
    comma, colon = style.comma.strip(), style.colon.strip()
    while True:
        value, position, is_open = _next_value(coded, position, style)
        if is_open:
            stack.append((value, ""))
            if len(stack) > _MAX_DEPTH:
                raise ValueError("it is nested too deeply")
            closed = skip_space(coded, position)
            if coded[closed : closed + 1] != _closer(value):
                stack[-1], position = _with_key(stack[-1], coded, position, style, colon)
                continue
            value, position = stack.pop()[0], closed + 1
        while stack:
            container, key = stack[-1]
            _put(container, key, value)
            position = skip_space(coded, position)
            if coded.startswith(_closer(container), position):
                value, position = stack.pop()[0], position + 1
                continue
            if not coded.startswith(comma, position):
                raise _Misspelled(f"expected {comma!r} or {_closer(container)!r}", position)
            stack[-1], position = _with_key(stack[-1], coded, position + len(comma), style, colon)
            break
        else:
            return value, position


def _next_value(coded: str, start: int, style: Style) -> tuple[Any, int, bool]:
    """Read a scalar or the opening bracket of a container; return whether it is the latter."""
    start = skip_space(coded, start)
    if coded[start : start + 1] in ("{", "["):
        return {} if coded[start] == "{" else [], start + 1, True
    if coded.startswith(style.quotes[0], start) and style.quotes[0]:
        text, end = _quoted(coded, start, style.quotes)
        return text, end, False
    word = _SCALAR.match(coded, start)
    if word is None:
        raise _Misspelled("there is no value", start)
    if word[0] in _WORDS:
        return _WORDS[word[0]], word.end(), False
    if not _NUMBER.fullmatch(word[0]):
        raise ValueError(f"{word[0]!r:.40} is not a value")
    return json.loads(word[0]), word.end(), False


def _quoted(coded: str, start: int, quotes: tuple[str, str]) -> tuple[str, int]:
    begin = start + len(quotes[0])
    end = coded.find(quotes[1], begin)
    if end < 0:
        raise ValueError("a string is not closed")
    return coded[begin:end], end + len(quotes[1])


def _with_key(
    entry: tuple[dict[str, Any] | list[Any], str], coded: str, start: int, style: Style, colon: str
) -> tuple[tuple[dict[str, Any] | list[Any], str], int]:
    """Read the key of an object's next item; a list has none."""
    container, _ = entry
    if isinstance(container, list):
        return entry, start
    start = skip_space(coded, start)
    if style.key_quotes[0]:
        if not coded.startswith(style.key_quotes[0], start):
            raise _Misspelled("there is no key", start)
        key, end = _quoted(coded, start, style.key_quotes)
    else:
        found = _SCALAR.match(coded, start)
        key = found[0].partition(colon)[0] if found else ""
        end = start + len(key)
    end = skip_space(coded, end)
    if not key or not coded.startswith(colon, end):
        raise _Misspelled("there is no key", start)
    if key in container:
        raise ValueError("a key comes twice")
    return (container, key), end + len(colon)


def _closer(container: dict[str, Any] | list[Any]) -> str:
    return "}" if isinstance(container, dict) else "]"


def _put(container: dict[str, Any] | list[Any], key: str, value: Any) -> None:
    if isinstance(container, dict):
        container[key] = value
    else:
        container.append(value)


_NAME = re.compile(r"\s*([^\W\d][\w.\-]*+)\s*\(")
_KEY = re.compile(r"\s*([^\W\d]\w*+)\s*=\s*")
_PLAIN = re.compile(r"[^\s,()\[\]{}'\"]++")
_BETWEEN = re.compile(r"\s*(,|\))")


class NotPython(ValueError):
    """The text is not a call in Python.

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
            try:
                arguments, end = _unescaped(text, named.end(), stop, quote)
            except ValueError:
                arguments, end = None, stop
    if arguments is None:
        raise NotPython(error, (stop if quote else end) - start)
    try:
        check_json(arguments)
    except ValueError as found:
        raise NotPython(found, end - start) from found
    return named[1], arguments, end


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
