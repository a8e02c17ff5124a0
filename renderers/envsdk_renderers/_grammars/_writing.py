"""Writes a reply by its grammar."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, NamedTuple

from envsdk._visible import brief
from envsdk.errors import RenderError, TemplateUnsupported
from envsdk.messages import Message, ToolCall

from ._grammar import Field, Grammar, tags
from ._patterns import is_mark, parts_of
from ._styles import PYTHON, TextPiece, in_order, parse_value, read_python_call, write_value

_MAX_TRIED = 16


class WrittenField(NamedTuple):
    """A field with what is written for it."""

    field: Field
    pieces: list[TextPiece]
    before: str = ""
    """For a value: the constant between the key and it."""
    is_verbatim: bool = True
    """For a value: whether it is a string that is written as it is."""
    is_raw: bool = False
    """True if it is all that was sampled between the tags around a call."""


@dataclass(eq=False, repr=False)
class CallWriter:
    """Writes calls by one grammar.

    Args:
        grammar: The grammar.
    """

    _grammar: Grammar

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
        after = dict.fromkeys(e.constant for e in grammar.edges if e.source == "value" and e.constant.strip())
        endings = [text for text in after if not any(name in text for name in grammar.controls)]
        for key, value in self._by_name(call):
            values = grammar.values_for(value)
            is_verbatim = isinstance(value, str) and values.style.is_verbatim
            for constant in endings if is_verbatim else ():  # which a value may spell
                if re.search("".join(parts_of(constant.strip())), value):
                    raise RenderError(
                        f"the argument {brief(key)} of the call of {brief(call.name)} would be read as several: it "
                        f"spells {constant.strip()!r}, which ends an argument and is not a control token; take it out"
                    )
            before = values.before.strip()
            if before and before in key and not any(name in before for name in grammar.controls):
                raise RenderError(
                    f"the argument {brief(key)} of the call of {brief(call.name)} would be read as another one: "
                    f"its name spells {before!r}, which ends it and is not a control token; take it out"
                )
            fields.append(WrittenField("key", [TextPiece(key, False)]))
            pieces = write_value(value, values.style)
            opener, closer = grammar.wrapper
            if opener and is_verbatim and value.startswith(opener):
                pieces = [TextPiece(opener, True), *pieces, TextPiece(closer, True)]
            fields.append(WrittenField("value", pieces, values.before, is_verbatim))
        return fields

    def text(self, call: ToolCall, *, is_between_tags: bool = False) -> str:
        """Return the text of a call, from its first field to its last one; its id is its own.

        Args:
            call: The call.
            is_between_tags: Whether it is all the text between `Grammar.call_tags`.

        Raises:
            TemplateUnsupported: See `fields`.
            RenderError: See `fields`.
        """
        fields = self.fields(call)
        text = "".join(piece.text for piece in fields[0].pieces)
        for previous, item in pairwise(fields):
            text += self._between(previous, item) + "".join(piece.text for piece in item.pieces)
        if not is_between_tags:
            return text.strip()
        written, (opener, closer) = self._grammar.written, self._grammar.call_tags or ("", "")
        before = written.get(("start", fields[0].field), "").partition(opener)[2]
        return before + (text + written.get((fields[-1].field, "end"), "")).rpartition(closer)[0]

    def sampled_pieces(self, call: ToolCall) -> list[TextPiece]:
        """Return the sampled text of a call between its tags; a tag that only the text of a field spells is text.

        It is the whole text without tags if it does not consist of the fields that were read.

        Raises:
            TemplateUnsupported: See `fields`.
            RenderError: See `fields`.
        """
        raw, fields = call.raw or "", self.fields(call)
        values = [call.name, *(part for item in self._by_name(call) for part in item)]
        closer = self._grammar.call_tags[1] if self._grammar.call_tags else ""
        end = self._grammar.written.get((fields[-1].field, "end"), "").rpartition(closer)[0]
        constants = [*(self._between(item, following) for item, following in pairwise(fields)), end]
        pieces: list[TextPiece] = []
        position = 0
        for value, field, constant in zip(values, fields, constants, strict=True):
            marks = tags(constant)
            if field.is_verbatim:  # perhaps after whitespace
                begins = (position, len(raw) - len(raw[position:].lstrip()))
                ends = [at + len(value) for at in begins if raw.startswith(value, at)]
            elif marks:
                found = islice(re.finditer(re.escape(marks[0]), raw[position:]), _MAX_TRIED)
                ends = [at for at in (position + each.start() for each in found) if _spells(raw[position:at], value)]
            else:
                ends = [len(raw)]
            at = ends[0] if ends else -1
            for tag in marks:
                at = -1 if at < 0 else raw.find(tag, at)
                if at >= 0:
                    pieces += [TextPiece(raw[position:at], False), TextPiece(tag, True)]
                    position = at = at + len(tag)
            if at < 0:
                return [TextPiece(raw, False)]
        return [*pieces, TextPiece(raw[position:], False)]

    def _between(self, item: WrittenField, following: WrittenField) -> str:
        """Return the constant between two fields of a call."""
        if following.field == "value":
            return following.before
        constant = self._grammar.written.get((item.field, following.field))
        if constant is None:
            raise TemplateUnsupported(f"the template writes no {following.field} after a {item.field}")
        return constant

    def _field(self, field: Field, call: ToolCall, index: int) -> list[TextPiece]:
        grammar = self._grammar
        call_id = call.id or "" if grammar.first_id is None else str(index + grammar.first_id)
        match field:
            case "name" | "echo":
                return [TextPiece(call.name, False)]
            case "id":
                return [TextPiece(call_id, False)]
            case "arguments":
                return self._arguments(call)
            case "object":
                pieces: list[TextPiece] = []
                for number, part in enumerate(grammar.layout):
                    if number % 2 == 0:
                        pieces.append(TextPiece(part, True))
                    elif part == "arguments":
                        pieces += self._arguments(call)
                    else:  # in the quotes of the object
                        text = json.dumps(call.name if part == "name" else call_id, ensure_ascii=False)
                        pieces.append(TextPiece(text[1:-1], False))
                return pieces
            case _:
                return self._python_call(call)

    def _arguments(self, call: ToolCall) -> list[TextPiece]:
        """Write the arguments; a string is written as it is, unless the grammar quotes it."""
        if isinstance(call.arguments, str) and not self._grammar.quotes_text:
            return [TextPiece(call.arguments, False)]
        quoted, arguments = self._grammar.quoted, call.arguments
        if quoted is not None and isinstance(arguments, dict):
            arguments = {
                key: value if isinstance(value, str) else "".join(piece.text for piece in write_value(value, quoted))
                for key, value in arguments.items()
            }
        return write_value(arguments, self._grammar.style)

    def _python_call(self, call: ToolCall) -> list[TextPiece]:
        """Write a call in Python's syntax: as the template does, if that reads back, else as proper Python."""
        quote = self._grammar.unescaped_quote
        for is_proper in (False, True):
            pieces = [TextPiece(call.name + "(", False)]
            for number, (key, value) in enumerate(self._by_name(call)):
                pieces.append(TextPiece(f"{', ' if number else ''}{key}=", False))
                style = self._grammar.values_for(value).style
                pieces += write_value(value, PYTHON if is_proper and isinstance(value, str) else style)
            pieces.append(TextPiece(")", False))
            text = "".join(piece.text for piece in pieces)
            try:
                is_same = not quote or read_python_call(text, 0, len(text), quote)[1:] == (call.arguments, len(text))
            except ValueError:  # nothing else is read instead
                is_same = is_proper
            if is_same:
                return pieces
        raise RenderError(f"a call of {call.name!r} would be read as another one: strings of it spell what ends them")

    def _by_name(self, call: ToolCall) -> Iterable[tuple[str, Any]]:
        if isinstance(call.arguments, str):
            raise RenderError(
                f"the arguments of the call of {call.name!r} are a string, {brief(call.arguments)}; the format needs "
                "them by name, so give a dict"
            )
        return [(key, call.arguments[key]) for key in in_order(call.arguments, self._grammar.style.order)]


def _spells(text: str, value: Any) -> bool:
    with suppress(ValueError):
        return parse_value(text) == value
    return False


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
                pieces = writer.sampled_pieces(call)
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
