"""Find the fields of a probe call in a rendered reply, and the format in which it is written."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any, NamedTuple, cast

from envsdk.messages import ToolCall

from ._grammar import Field, Path
from ._styles import JSON, PYTHON, Style, end_of_brackets, python_expression, read_value, written_text

_DIGITS = re.compile("[0-9]+")
_DECODER = json.JSONDecoder()


class FieldSpan(NamedTuple):
    """A field in a rendered reply."""

    field: Field
    start: int
    end: int


@dataclass(frozen=True)
class CallForm:
    """The format of calls as far as one call shows it. The fields are those of `Grammar`."""

    call: tuple[Field, ...]
    layout: tuple[str, ...] = ()
    name_path: Path = ()
    arguments_path: Path = ()
    id_path: Path | None = None
    style: Style = JSON
    name_in_id: tuple[str, str] | None = None
    first_id: int | None = None
    counter: tuple[Field, str] | None = None
    """The field after which a counter is, and the constant between them."""


def find_form(text: str, call: ToolCall) -> CallForm | None:
    """Return how a call is written in a rendered reply; None if it is written in no way that can be measured."""
    if call.name not in text:
        return None
    return (
        _object_form(text, call)
        or (CallForm(("python",)) if _python_span(text, 0, call) else None)
        or _arguments_form(text, call)
        or _pairs_form(text, call)
    )


def spans_of(text: str, start: int, call: ToolCall, form: CallForm) -> list[FieldSpan] | None:
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


def with_counter(form: CallForm, text: str, calls: Sequence[ToolCall]) -> CallForm:
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
        return _object_with_counter(form, [text[spans[0].start : spans[0].end] for spans in (first, second)], calls)
    for (a, b), (c, d) in zip(pairwise(first), pairwise(second), strict=False):
        found = _counter(text[a.end : b.start], text[c.end : d.start])
        if found and a.field in form.call:
            at = form.call.index(a.field) + 1
            call = (*form.call[:at], cast("Field", "id"), *form.call[at:])
            return replace(form, call=call, first_id=found[1], counter=(a.field, found[0]))
    return form


def _object_with_counter(form: CallForm, texts: Sequence[str], calls: Sequence[ToolCall]) -> CallForm:
    forms = [_object_form(text, call) for text, call in zip(texts, calls, strict=False)]
    if forms[0] is None or forms[1] is None or len(forms[0].layout) != len(forms[1].layout):
        return form
    for at, (one, two) in enumerate(zip(forms[0].layout, forms[1].layout, strict=True)):
        found = _counter(one, two)
        if found:
            before, number = found
            after = one[len(before) + len(str(number)) :]
            return replace(
                form, layout=(*form.layout[:at], before, "id", after, *form.layout[at + 1 :]), first_id=number
            )
    return form


def _counter(first: str, second: str) -> tuple[str, int] | None:
    """Return the text before a number that is larger by one in the second text, and the first number."""
    for found in re.finditer(r"[0-9]+", first):
        number = int(found[0])
        if second == f"{first[: found.start()]}{number + 1}{first[found.end() :]}":
            return first[: found.start()], number
    return None


# Objects.


def _objects(text: str, start: int = 0) -> Iterator[tuple[int, int, Any]]:
    at = text.find("{", start)
    while at >= 0:
        try:
            value, end = _DECODER.raw_decode(text, at)
            yield at, end, value
        except (ValueError, RecursionError):
            pass
        at = text.find("{", at + 1)


def _object_form(text: str, call: ToolCall) -> CallForm | None:
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
        return CallForm(("object",), (*layout, text[position:end]), name_path, arguments_path, id_path, style)
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


def _arguments_form(text: str, call: ToolCall) -> CallForm | None:
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


def _reads(text: str, start: int, style: Style, wanted: Any) -> bool:
    try:
        return read_value(text, start, style)[0] == wanted
    except ValueError:
        return False


def _pairs_form(text: str, call: ToolCall) -> CallForm | None:
    arguments = cast("dict[str, Any]", call.arguments)
    at = [(text.find(key), text.find(value)) for key, value in arguments.items()]
    name = text.find(call.name)
    if name < 0 or any(key < 0 or value < key for key, value in at):
        return None
    first = min(key for key, _ in at)
    ordered = sorted(at) == at
    style = replace(JSON, order="given" if ordered else "sorted")
    form = _with_header(text[:first], call, "key", style)
    return None if form is None else replace(form, call=(*form.call, "value"))


def _with_header(before: str, call: ToolCall, following: Field, style: Style) -> CallForm | None:
    """Find the id and the name before the arguments."""
    call_id = call.id or ""
    if call_id and call_id in before and call.name in call_id and before.count(call.name) == 1:
        around = call_id.partition(call.name)
        return CallForm(("id", following), style=style, name_in_id=(around[0], around[2].rstrip("0123456789")))
    names = [("name", before.find(call.name))]
    rest = before.find(call.name, names[0][1] + len(call.name))
    found: list[tuple[Field, int]] = [("name", names[0][1])]
    if rest >= 0:
        found.append(("echo", rest))
    if call_id and call_id in before:
        found.append(("id", before.find(call_id)))
    found.sort(key=lambda item: item[1])
    return None if found[0][1] < 0 else CallForm((*(field for field, _ in found), following), style=style)


def _part_spans(text: str, start: int, call: ToolCall, form: CallForm) -> list[FieldSpan] | None:
    spans: list[FieldSpan] = []
    position = start
    for field in form.call:
        if field in ("key", "arguments"):
            break
        if field == "id" and form.counter is not None:
            at = position + len(form.counter[1])
            found = _DIGITS.match(text, at)
            wanted = found[0] if found and text.startswith(form.counter[1], position) else ""
        else:
            wanted = (call.id or "") if field == "id" else call.name
            at = text.find(wanted, position)
        if at < 0 or not wanted:
            return None
        spans.append(FieldSpan(field, at, at + len(wanted)))
        position = at + len(wanted)
    if "arguments" in form.call:
        at = text.find("{", position)
        while at >= 0:
            try:
                value, end = read_value(text, at, form.style)
            except ValueError:
                value, end = None, at
            if value == call.arguments:
                return [*spans, FieldSpan("arguments", at, end)]
            at = text.find("{", at + 1)
        return None
    return [*spans, *pairs] if (pairs := _pair_spans(text, position, call)) is not None else None


def _pair_spans(text: str, start: int, call: ToolCall) -> list[FieldSpan] | None:
    """Find the keys and the values that are strings; they may be in another order."""
    arguments = cast("dict[str, Any]", call.arguments)
    keys = sorted((text.find(key, start), key) for key in arguments)
    spans: list[FieldSpan] = []
    for at, key in keys:
        value = arguments[key]
        found = text.find(value, at) if isinstance(value, str) and at >= 0 else -1
        if found < 0:
            return None
        spans += [FieldSpan("key", at, at + len(key)), FieldSpan("value", found, found + len(value))]
    return spans


# How values are spelled.


def fit_style(text: str, value: Any) -> Style | None:
    """Return a style in which a value is written as this text; None if there is none."""
    return next((style for style in _styles() if written_text(value, style) == text), None)


def _styles() -> Iterator[Style]:
    for order, escapes, comma, colon, indent in product(
        ("given", "sorted", "folded"), ("json", "ascii"), (", ", ","), (": ", ":"), (0, 2, 4)
    ):
        if not indent or comma == ", ":
            yield Style(order=order, escapes=escapes, comma=comma, colon=colon, indent=indent)
    for order in ("given", "sorted", "folded"):
        yield replace(PYTHON, order=order)


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
