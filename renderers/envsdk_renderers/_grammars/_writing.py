"""Writes a reply by its grammar."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

from envsdk.errors import RenderError, TemplateUnsupported
from envsdk.messages import Message, ToolCall

from ._grammar import Field, Grammar, Values, tags
from ._patterns import is_mark, pattern_of
from ._styles import (
    PYTHON,
    Style,
    TextPiece,
    encode_json,
    in_order,
    parse_value,
    read_python_call,
    write_value,
    written_value,
)

_MAX_TRIED = 16


class SampledField(NamedTuple):
    """A field of a call, and what follows it."""

    value: Any
    """Its value; a string if it is written verbatim."""
    is_verbatim: bool
    constant: str
    """The constant after it."""


def sampled_pieces(raw: str, fields: Sequence[SampledField]) -> list[TextPiece]:
    """Return what is written for a sampled call; a tag that only the text of a field spells is text.

    Args:
        raw: The text between the tags around the call.
        fields: What was read in it.

    Returns:
        The whole text without tags if it does not consist of these fields.
    """
    pieces: list[TextPiece] = []
    position = 0
    for field in fields:
        end = _end_of(raw, position, field)
        if end is None:
            return [TextPiece(raw, False)]
        for tag in tags(field.constant):
            at = raw.find(tag, end)
            if at < 0:
                return [TextPiece(raw, False)]
            pieces += [TextPiece(raw[position:at], False), TextPiece(tag, True)]
            position = end = at + len(tag)
    return [*pieces, TextPiece(raw[position:], False)]


def _end_of(raw: str, position: int, field: SampledField) -> int | None:
    """Return where a field ends that begins at a position, perhaps after whitespace; None if it is not there."""
    if field.is_verbatim:
        begins = (position, len(raw) - len(raw[position:].lstrip()))
        return next((at + len(field.value) for at in begins if raw.startswith(field.value, at)), None)
    tag, at = next(iter(tags(field.constant)), ""), position - 1
    for _ in range(_MAX_TRIED):
        at = raw.find(tag, at + 1)
        if at < 0 or not tag:
            return None if tag else len(raw)
        with suppress(ValueError):
            if parse_value(raw[position:at]) == field.value:
                return at
    return None


class WrittenField(NamedTuple):
    """A field with what is written for it."""

    field: Field
    pieces: list[TextPiece]
    before: str = ""
    """For a value: the constant between the key and it."""
    is_verbatim: bool = False
    """For a value: whether it is a string that is written as it is."""
    is_raw: bool = False
    """True if it is all that was sampled between the tags around a call."""


class CallWriter:
    """Writes calls by one grammar.

    Args:
        grammar: The grammar.
        is_checked: Whether the arguments of all calls are known to be values of JSON.
    """

    def __init__(self, grammar: Grammar, *, is_checked: bool = False) -> None:
        self._grammar = grammar
        self._write_value = written_value if is_checked else write_value

    def fields(self, call: ToolCall, index: int = 0) -> list[WrittenField]:
        """Return the fields of a call, which is the one at an index of its reply.

        Raises:
            TemplateUnsupported: If the template does not write it.
            RenderError: If arguments cannot be written by name.
        """
        grammar = self._grammar
        if not grammar.call:
            raise TemplateUnsupported("the reply is not rendered: tool calls are not supported")
        if "key" not in grammar.call:
            return [WrittenField(field, self._field(field, call, index)) for field in grammar.call]
        fields = [WrittenField(field, self._field(field, call, index)) for field in grammar.call[:-2]]
        for key, value in self._by_name(call):
            values = self._values_of(value)
            is_verbatim = isinstance(value, str) and values.style.is_verbatim
            for constant in grammar.text_after_values if is_verbatim else ():
                if constant.strip()[0] in value and re.search(pattern_of(constant), value):
                    raise RenderError(
                        f"the argument {key!r:.80} of the call of {call.name!r:.80} would be read as several: it "
                        f"spells {constant.strip()!r}, which ends an argument and is not a control token; take it out"
                    )
            before = values.before.strip()
            if before and before in key and not any(name in before for name in grammar.controls):
                raise RenderError(
                    f"the argument {key!r:.80} of the call of {call.name!r:.80} would be read as another one: its name "
                    f"spells {before!r}, which ends it and is not a control token; take it out"
                )
            fields.append(WrittenField("key", [TextPiece(key, False)]))
            pieces = self._write_value(value, values.style)
            opener, closer = grammar.wrapper
            if opener and is_verbatim and value.startswith(opener):
                pieces = [TextPiece(opener, True), *pieces, TextPiece(closer, True)]
            fields.append(WrittenField("value", pieces, values.before, is_verbatim))
        return fields

    def text(self, call: ToolCall) -> str:
        """Return the text of a call, from its first field to its last one; its id is its own.

        Raises:
            TemplateUnsupported: See `fields`.
            RenderError: See `fields`.
        """
        return self._text(call).strip()

    def between_tags(self, call: ToolCall, around: tuple[str, str]) -> str:
        """Return the text of a call between the tags around it, which are `Grammar.call_tags`.

        Raises:
            TemplateUnsupported: See `fields`.
            RenderError: See `fields`.
        """
        written, first, (last, *others) = self._grammar.written, self._grammar.call[0], self._grammar.last_fields
        if others and call.arguments:
            last = others[0]  # else it is the one before the pairs
        before = written.get(("start", first), "").partition(around[0])[2]
        text = self._text(call) + written.get((last, "end"), "")
        return before + text.rpartition(around[1])[0]

    def sampled_fields(self, call: ToolCall, closer: str) -> list[SampledField]:
        """Return the fields of a call with the constants after them, without the tag that closes the call.

        Raises:
            TemplateUnsupported: See `fields`.
            RenderError: See `fields`.
        """
        fields = self.fields(call)
        values = [call.name, *(part for item in self._by_name(call) for part in item)]
        end = self._grammar.written.get((fields[-1].field, "end"), "").rpartition(closer)[0]
        constants = [*(self._between(item, following) for item, following in pairwise(fields)), end]
        return [
            SampledField(value, item.field != "value" or item.is_verbatim, constant)
            for value, item, constant in zip(values, fields, constants, strict=True)
        ]

    def _text(self, call: ToolCall) -> str:
        """Return the text of a call, from its first field to its last one, with the whitespace around it."""
        parts: list[str] = []
        previous: WrittenField | None = None
        for item in self.fields(call):
            if previous is not None:
                parts.append(self._between(previous, item))
            parts += [piece.text for piece in item.pieces]
            previous = item
        return "".join(parts)

    def _between(self, item: WrittenField, following: WrittenField) -> str:
        """Return the constant between two fields of a call."""
        if following.field == "value":
            return following.before
        constant = self._grammar.written.get((item.field, following.field))
        if constant is None:
            raise TemplateUnsupported(f"the template writes no {following.field} after a {item.field}")
        return constant

    def _field(self, field: Field, call: ToolCall, index: int) -> list[TextPiece]:
        match field:
            case "name" | "echo":
                return [TextPiece(call.name, False)]
            case "id":
                return [TextPiece(self._id(call, index), False)]
            case "arguments":
                return self._arguments(call)
            case "object":
                pieces: list[TextPiece] = []
                for part in self._grammar.object_parts:
                    if isinstance(part, TextPiece):
                        pieces.append(part)
                    elif part == "arguments":
                        pieces += self._arguments(call)
                    else:  # in the quotes of the object
                        text = call.name if part == "name" else self._id(call, index)
                        pieces.append(TextPiece(encode_json(text)[1:-1], False))
                return pieces
            case _:
                return self._python_call(call)

    def _id(self, call: ToolCall, index: int) -> str:
        first = self._grammar.first_id
        return call.id or "" if first is None else str(index + first)

    def _arguments(self, call: ToolCall) -> list[TextPiece]:
        """Write the arguments; a string is written as it is, unless the grammar quotes it."""
        if isinstance(call.arguments, str) and not self._grammar.quotes_text:
            return [TextPiece(call.arguments, False)]
        quoted, arguments = self._grammar.quoted, call.arguments
        if quoted is not None and isinstance(arguments, dict):
            arguments = {
                key: value
                if isinstance(value, str)
                else "".join([piece.text for piece in self._write_value(value, quoted)])
                for key, value in arguments.items()
            }
        return self._write_value(arguments, self._grammar.style)

    # A call in Python's syntax.

    def _python_call(self, call: ToolCall) -> list[TextPiece]:
        """Write a call in Python's syntax: as the template does, if that reads back, else as proper Python."""
        pieces = self._keyword_call(call, {})
        quote = self._grammar.unescaped_quote
        if quote:
            text = "".join(piece.text for piece in pieces)
            try:
                _, arguments, end = read_python_call(text, 0, len(text), quote)
            except ValueError:
                arguments, end = None, 0
            if arguments != call.arguments or end != len(text):
                return self._keyword_call(call, {"string": PYTHON})
        return pieces

    def _keyword_call(self, call: ToolCall, styles: Mapping[str, Style]) -> list[TextPiece]:
        pieces = [TextPiece(call.name + "(", False)]
        for number, (key, value) in enumerate(self._by_name(call)):
            pieces.append(TextPiece(f"{', ' if number else ''}{key}=", False))
            style = styles.get(type_of(value))
            pieces += self._write_value(value, style or self._values_of(value).style)
        return [*pieces, TextPiece(")", False)]

    # Arguments by name.

    def _by_name(self, call: ToolCall) -> Iterable[tuple[str, Any]]:
        if isinstance(call.arguments, str):
            raise RenderError(
                f"the arguments of the call of {call.name!r} are a text, {call.arguments!r:.80}; the format needs them "
                "by name, so give a dict"
            )
        order = self._grammar.style.order
        if order == "given":
            return call.arguments.items()
        return [(key, call.arguments[key]) for key in in_order(call.arguments, order)]

    def _values_of(self, value: Any) -> Values:
        """Return how a value is written."""
        kind = type_of(value)
        values = self._grammar.values_by_type.get(kind)
        if values is None:
            raise TemplateUnsupported(f"a value of the type {kind} is not rendered")
        return values


def type_of(value: Any) -> str:
    """Return the JSON type of a value, as schemas name it; an integer is a `number`."""
    if isinstance(value, str):
        return "string"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    return "array" if isinstance(value, list) else "object"


def write_reply(grammar: Grammar, message: Message) -> list[TextPiece]:
    """Return what is written for a message, from the opening of the reply to its end, without its stop token.

    Reasoning that the template does not write is dropped, as the template does.

    Raises:
        TemplateUnsupported: If the template does not write the text, the calls, or one of them next to the other.
        RenderError: If arguments cannot be written by name.
    """
    pieces: list[TextPiece] = []
    previous: Field = "start"
    is_after_raw = False
    for item in [*_fields(grammar, message), WrittenField("end", [])]:
        constant = grammar.written.get((previous, item.field))
        if item.field == "value":
            constant = item.before
        if constant is None:
            count, missing = len(message.tool_calls), f"the template writes no {item.field} after a {previous}"
            if "text" in (previous, item.field) and count:
                missing = f"the text, or not all of {count} calls next to it are rendered"
            elif count:
                missing = f"not all of {count} calls are rendered: {missing}"
            raise TemplateUnsupported(missing)
        if grammar.call_tags and (is_after_raw or item.is_raw):  # what was sampled has the rest of the constant
            opener, closer = grammar.call_tags
            start = constant.index(closer) if is_after_raw else 0
            constant = constant[start : constant.rindex(opener) + len(opener) if item.is_raw else len(constant)]
        pieces += [TextPiece(constant, True), *item.pieces]
        previous, is_after_raw = (grammar.call[-1] if item.is_raw else item.field), item.is_raw
    return pieces


def write_after(grammar: Grammar, message: Message, prompted: str) -> list[TextPiece]:
    """Return what is written for a message after a generation prompt that begins the reply.

    Args:
        grammar: The grammar.
        message: The message.
        prompted: The part of the generation prompt after the opening of a reply, such as a tag that opens reasoning. If
            it opens reasoning and the message has none, the reply begins with the end of an empty block.

    Raises:
        TemplateUnsupported: See `write_reply`.
        RenderError: See `write_reply`.
    """
    opener, mark = grammar.written.get(("start", "reasoning"), ""), prompted.strip()
    pieces = write_reply(grammar, message)
    if mark and message.reasoning is None and opener.strip() == mark and not pieces[0].text.startswith(prompted):
        pieces = write_reply(grammar, message.with_reasoning(""))
    first = pieces[0].text
    if not mark or not first.lstrip().startswith(mark):
        # The prompt may end with what is written first, such as the tag that closes an empty block.
        fitting = (end for end in range(len(first), 0, -1) if prompted and prompted.endswith(first[:end]))
        begun = next(fitting, 0)
        return [TextPiece(first[begun if is_mark(first[:begun].strip()) else 0 :], True), *pieces[1:]]
    rest = first.removeprefix(prompted) if first.startswith(prompted) else first.lstrip().removeprefix(mark).lstrip()
    return [TextPiece(rest, True), *pieces[1:]]


def write_form(grammar: Grammar) -> str:
    """Return how a reply with a call is written, for errors; empty if that is not known."""
    call = ToolCall(name="NAME", arguments={"KEY": "VALUE"}, id="ID")
    try:
        pieces = write_reply(grammar, Message(role="assistant", tool_calls=(call,)))
    except RenderError:
        return ""
    return "".join(piece.text for piece in pieces).strip()


def _fields(grammar: Grammar, message: Message) -> Iterator[WrittenField]:
    writer = CallWriter(grammar)
    calls: list[WrittenField] = []
    for index, call in enumerate(message.tool_calls):
        if call.raw is None or not grammar.call_tags:
            calls += writer.fields(call, index)
            continue
        pieces = [TextPiece(call.raw, False)]  # what was sampled between its tags is one field
        if "key" in grammar.call and any(name in call.raw for name in grammar.controls):
            with suppress(RenderError):  # a call that could not be read is text
                pieces = sampled_pieces(call.raw, writer.sampled_fields(call, grammar.call_tags[1]))
        calls.append(WrittenField(grammar.call[0], pieces, is_raw=True))
    may_be_empty = bool(calls) or ("start" if message.reasoning is None else "reasoning", "end") in grammar.written
    text = [WrittenField("text", [TextPiece(message.content, False)])] if message.content or not may_be_empty else []
    written, has_both = grammar.written, bool(calls and text)
    is_last = has_both and (calls[-1].field, "text") in written and ("text", calls[0].field) not in written
    fields = [*calls, *text] if is_last else [*text, *calls]
    first: Field = fields[0].field if fields else "end"
    if message.reasoning is not None and ("reasoning", first) in grammar.written:
        yield WrittenField("reasoning", [TextPiece(message.reasoning, False)])
    yield from fields
