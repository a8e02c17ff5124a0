"""Find the fields of a probe call in a rendered reply, and the format in which it is written."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, NamedTuple, cast

from envsdk.messages import ToolCall

from ._grammar import Field, Grammar, Path
from ._styles import JSON, PYTHON, Escapes, Order, Style, end_of_brackets, python_expression, read_value, written_text

_DIGITS = re.compile("[0-9]+")
_DECODER = json.JSONDecoder()


class FieldSpan(NamedTuple):
    """A field in a rendered reply."""

    field: Field
    start: int
    end: int


def find_form(text: str, call: ToolCall) -> Grammar | None:
    """Return how a call is written in a rendered reply, as a grammar of that call only.

    Returns:
        The grammar, without edges; None if it is written in no way that can be measured.
    """
    if call.name not in text:
        return None
    found = _object_form(text, call)
    if found is not None:
        return found
    if _python_span(text, 0, call):
        return Grammar((), ("python",))
    found = _arguments_form(text, call)
    if found is not None:
        return found
    arguments = cast("dict[str, Any]", call.arguments)
    at = [(text.find(key), text.find(value)) for key, value in arguments.items()]
    if any(key < 0 or value < key for key, value in at):
        return None
    style = replace(JSON, order="given" if sorted(at) == at else "sorted")
    found = _with_header(text[: min(key for key, _ in at)], call, "key", style)
    return None if found is None else replace(found, call=(*found.call, "value"))


def spans_of(text: str, start: int, call: ToolCall, form: Grammar) -> list[FieldSpan] | None:
    """Return the fields of a call that is written after `start`; None if it is not written there."""
    match form.call[0]:
        case "object":
            for at, end, value in _objects(text, start):
                if _path(value, call.name) == form.name_path and _path(value, call.arguments) is not None:
                    return [FieldSpan("object", at, end)]
            return None
        case "python":
            return _python_span(text, start, call)
        case _:
            return _part_spans(text, start, call, form)


def with_counter(form: Grammar, text: str, calls: Sequence[ToolCall]) -> Grammar:
    """Return the form with a counter as the id, if two rendered calls show one.

    Args:
        form: How a call is written.
        text: A rendered reply with two calls.
        calls: These calls, the first two of a reply.
    """
    first = spans_of(text, 0, calls[0], form)
    second = spans_of(text, first[-1].end, calls[1], form) if first else None
    if not first or not second or "id" in form.call or form.id_path is not None:
        return form
    if form.call[0] == "object":
        one, two = (
            _object_form(text[spans[0].start : spans[0].end], calls[n]) for n, spans in ((0, first), (1, second))
        )
        if one is None or two is None or len(one.layout) != len(two.layout):
            return form
        for at, texts in enumerate(zip(one.layout, two.layout, strict=True)):
            found = _counter(*texts)
            if found:
                before, number, after = found
                layout = (*form.layout[:at], before, "id", after, *form.layout[at + 1 :])
                return replace(form, layout=layout, first_id=number)
        return form
    for (a, b), (c, d) in zip(pairwise(first), pairwise(second), strict=False):
        found = _counter(text[a.end : b.start], text[c.end : d.start])
        if found and a.field in form.call:
            at = form.call.index(a.field) + 1
            call: tuple[Field, ...] = (*form.call[:at], "id", *form.call[at:])
            return replace(form, call=call, first_id=found[1])
    return form


def _counter(first: str, second: str) -> tuple[str, int, str] | None:
    """Return the text before a number that is larger by one in the second text, the first number, and the rest."""
    for found in _DIGITS.finditer(first):
        before, number, after = first[: found.start()], int(found[0]), first[found.end() :]
        if second == f"{before}{number + 1}{after}":
            return before, number, after
    return None


def _objects(text: str, start: int = 0) -> Iterator[tuple[int, int, Any]]:
    at = text.find("{", start)
    while at >= 0:
        try:
            value, end = _DECODER.raw_decode(text, at)
            yield at, end, value
        except (ValueError, RecursionError):
            pass
        at = text.find("{", at + 1)


def _object_form(text: str, call: ToolCall) -> Grammar | None:
    for start, end, value in _objects(text):
        name_path, arguments_path = _path(value, call.name), _path(value, call.arguments)
        if name_path is None or arguments_path is None:
            continue
        if name_path[-1] == "":
            arguments_path = tuple("" if key == call.name else key for key in arguments_path)
        id_path = _path(value, call.id)
        fields: list[tuple[str, int, int]] = [_quoted(text, start, call.name, "name")]
        found = ((a, b) for a, b, value in _objects(text, start) if value == call.arguments and b <= end)
        at = next(found, None)
        if at is None:
            return None
        fields.append(("arguments", at[0], at[1]))
        if id_path is not None:
            fields.append(_quoted(text, start, call.id or "", "id"))
        layout, position = list[str](), start
        for field, first, last in sorted(fields, key=lambda item: item[1]):
            layout += [text[position:first], field]
            position = last
        style = fit_style(text[at[0] : at[1]], call.arguments)
        if style is None:
            return None
        return Grammar(
            (),
            ("object",),
            layout=(*layout, text[position:end]),
            name_path=name_path,
            arguments_path=arguments_path,
            id_path=id_path,
            style=style,
        )
    return None


def _quoted(text: str, start: int, value: str, field: str) -> tuple[str, int, int]:
    at = text.index(f'"{value}"', start) + 1
    return field, at, at + len(value)


def _path(value: Any, wanted: Any) -> Path | None:
    """Return the keys that lead to a value; an empty key at the end means that it is itself a key."""
    if value == wanted and type(value) is type(wanted):
        return ()
    if not isinstance(value, dict):
        return None
    for key, item in cast("dict[str, Any]", value).items():
        if key == wanted:
            return ("",)
        found = _path(item, wanted)
        if found is not None:
            return (key, *found)
    return None


# Calls in Python's syntax.


def _python_span(text: str, start: int, call: ToolCall) -> list[FieldSpan] | None:
    at = text.find(f"{call.name}(", start)
    if at < 0:
        return None
    try:
        end = end_of_brackets(text, at + len(call.name), len(text))
        python_expression(text[at:end])
    except ValueError:
        return None
    return [FieldSpan("python", at, end)]


# Calls of several fields.


def _arguments_form(text: str, call: ToolCall) -> Grammar | None:
    """Find the arguments of a call as one value: JSON, Python, or a notation whose quotes are measured."""
    first = text.index(call.name)
    for start, end, value in _objects(text, first):
        if value == call.arguments:
            style = fit_style(text[start:end], value)
            return None if style is None else _with_header(text[:start], call, "arguments", style)
    start = text.find("{", first)
    while start >= 0:
        for style in (PYTHON, _notation(text[start:], cast("dict[str, Any]", call.arguments))):
            if style is not None and _reads(text, start, style, call.arguments):
                return _with_header(text[:start], call, "arguments", style)
        start = text.find("{", start + 1)
    return None


def _reads(text: str, start: int, style: Style, wanted: Any) -> int | None:
    """Return the position after a value that begins at `start`; None if it is not there."""
    try:
        value, end = read_value(text, start, style)
    except ValueError:
        return None
    return end if value == wanted else None


def _with_header(before: str, call: ToolCall, following: Field, style: Style) -> Grammar | None:
    """Find the id and the name before the arguments."""
    call_id = call.id or ""
    if call_id and call_id in before and call.name in call_id and before.count(call.name) == 1:
        around = call_id.partition(call.name)
        name_in_id = around[0], around[2].rstrip("0123456789")
        return Grammar((), ("id", following), style=style, name_in_id=name_in_id)
    name = before.find(call.name)
    at: dict[Field, int] = {"name": name, "echo": before.find(call.name, name + len(call.name))}
    at["id"] = before.find(call_id) if call_id else -1
    fields: list[Field] = sorted((field for field in at if at[field] >= 0), key=at.__getitem__)
    return None if name < 0 else Grammar((), (*fields, following), style=style)


def _part_spans(text: str, start: int, call: ToolCall, form: Grammar) -> list[FieldSpan] | None:
    spans: list[FieldSpan] = []
    position = start
    for field in form.call:
        if field in ("key", "arguments"):
            break
        wanted = (call.id or "") if field == "id" else call.name
        if field == "id" and form.first_id is not None:  # a counter
            found = _DIGITS.search(text, position)
            wanted = found[0] if found else ""
        at = text.find(wanted, position)
        if at < 0 or not wanted:
            return None
        position = at + len(wanted)
        spans.append(FieldSpan(field, at, position))
    if "arguments" in form.call:
        at = text.find("{", position)
        while at >= 0:
            end = _reads(text, at, form.style, call.arguments)
            if end is not None:
                return [*spans, FieldSpan("arguments", at, end)]
            at = text.find("{", at + 1)
        return None
    arguments = cast("dict[str, Any]", call.arguments)
    for at, key in sorted((text.find(key, position), key) for key in arguments):  # perhaps in another order
        value = arguments[key]
        begin = text.find(value, at) if isinstance(value, str) and at >= 0 else -1
        if begin < 0:
            return None
        spans += [FieldSpan("key", at, at + len(key)), FieldSpan("value", begin, begin + len(value))]
    return spans


# How values are spelled.


def fit_style(text: str, value: Any) -> Style | None:
    """Return a style in which a value is written as this text; None if there is none."""
    orders: tuple[Order, ...] = ("given", "sorted", "folded")
    escapes: tuple[Escapes, ...] = ("json", "ascii")
    styles = [
        Style(order=order, escapes=escape, comma=comma, colon=colon, indent=indent)
        for order, escape, comma, colon, indent in product(orders, escapes, (", ", ","), (": ", ":"), (0, 2, 4))
        if not indent or comma == ", "
    ]
    styles += [replace(PYTHON, order=order) for order in orders]
    return next((style for style in styles if written_text(value, style) == text), None)


def _notation(text: str, arguments: Mapping[str, Any]) -> Style | None:
    """Measure the quotes and separators of `{key: value, key: value}` whose values are strings."""
    (key, value), (second, _) = sorted(
        ((k, str(v)) for k, v in list(arguments.items())[:2]), key=lambda item: text.find(item[0])
    )
    at, after = text.find(key), text.find(value)
    end = text.find(second)
    if not text.startswith("{") or not 0 < at < after < end:
        return None
    key_quote = text[1:at]
    between = text[after + len(value) : end]
    colon_and_quote = text[at + len(key) + len(key_quote) : after]
    quote, found, _ = between.removesuffix(key_quote).rpartition(",")
    if not found or not colon_and_quote.endswith(quote) or not quote:
        return None
    colon = colon_and_quote.removesuffix(quote)
    is_first = next(iter(arguments)) == key
    return Style(
        quotes=(quote, quote),
        key_quotes=(key_quote, key_quote),
        escapes="none",
        comma=",",
        colon=colon,
        order="given" if is_first else "folded",
    )
