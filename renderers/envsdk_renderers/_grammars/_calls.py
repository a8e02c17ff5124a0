"""Read the calls of a reply by its grammar. An unreadable call has an error, and its text as its arguments."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

from envsdk._visible import brief, shorten
from envsdk.errors import RenderError
from envsdk.messages import Message, ToolCall, ToolSchema

from .._replies._argument_types import ArgumentTypes
from ._grammar import Field, Path
from ._patterns import CodedReply, Constant, Patterns, strip_end
from ._styles import (
    CONTROL,
    JSON,
    LONGEST_WORD,
    InvalidValue,
    Style,
    parse_value,
    read_python_call,
    read_value,
    skip_space,
)
from ._writing import CallWriter, write_reply

NOT_CLOSED = "the tool call was not closed"
_PYTHON_NAME = re.compile(r"\s*([^\W\d][\w.\-]*+)\s*(?=\()")
_MAX_REPORTED = 3
_MISSING = object()
_WORK = 32
"""The number of times that the text of a reply may be searched without a result."""


class ReadCall(NamedTuple):
    """A call that was read."""

    call: ToolCall
    last: int
    """The position after its last field."""
    end: int
    """The position after the call and the constant that follows it."""
    following: Constant | None
    """The constant that follows it; None if the call is broken or the reply ended in it."""
    is_ended: bool
    """True if the call ends as it was read, although it may be undecided which constant follows it."""
    is_open: bool = False
    """True if the reply ended inside the call."""


class _ReadField(NamedTuple):
    """A field that was read up to the constant after it."""

    text: str
    end: int
    position: int
    """The position after the constant."""
    following: Constant
    ends_call: bool
    """True if the call ends with this field, whichever constant follows that begins as this one."""


class Unreadable(ValueError):
    """A call cannot be read.

    Args:
        error: What is wrong with it.
        position: The position from which its end is searched.
        name: Its name, if that could be read.
        is_open: Whether the reply ended inside it.
    """

    def __init__(self, error: str, position: int, name: str = "", *, is_open: bool = False) -> None:
        super().__init__(error)
        self.position, self.name, self.is_open = position, name, is_open


@dataclass(eq=False, repr=False)
class CallReader:
    """Reads the calls of one reply.

    Args:
        patterns: The patterns of the grammar.
        source: The reply.
        tools: JSON schemas of the tools, which specify the types of values that are written without quotes.
    """

    _patterns: Patterns
    _source: CodedReply
    _tools: Sequence[ToolSchema]
    _searched: int = 0  # characters that were searched for calls that are broken

    @cached_property
    def _types(self) -> ArgumentTypes:
        """The types of the tools' arguments, which only calls with values without quotes need."""
        return ArgumentTypes(self._tools, parse_value, self._patterns.parse_exactly)

    def read(self, start: int, since: int, *, begins: bool = True) -> ReadCall:
        """Read the call whose first field begins at `start`; a broken call ends where a call is closed or opened.

        If `CodedReply.undecided` is set then, what follows the call depends on text that has not come yet, and so does
        the call unless it `is_ended`.

        Args:
            start: The position.
            since: Where the constant before it begins.
            begins: Whether the call begins as the template's calls do.
        """
        searched, source = self._searched, self._source
        try:
            if not begins:
                raise self._misformed("a tool call does not begin as one", start)
            first = self._patterns.grammar.call[0]
            read = {"object": self._read_object, "python": self._read_python}.get(first, self._read_parts)
            found = read(start)
            tags = self._patterns.call_tags
            closed = self._source.text.find(tags[1], found.last, found.end) if tags else -1
            coded = self._source.text[start : found.last].strip()
            if closed >= 0:
                coded = self._source.text[self._opened(start, since) : closed]
            text = self._patterns.code.plain(coded)
            try:
                written = CallWriter(self._patterns.grammar).text(found.call, is_between_tags=closed >= 0)
            except RenderError:  # it cannot be written otherwise
                written = None
            found = found._replace(
                call=(found.call if text == written else found.call.model_copy(update={"raw": text}))
            )
        except Unreadable as broken:
            found = self._broken(start, since, broken)
        if source.undecided is not None:
            self._searched = searched
        return found

    def _opened(self, start: int, since: int) -> int:
        """Return the position after the tag that opens the call whose first field begins at `start`, if it has one."""
        tags = self._patterns.call_tags
        at = self._source.text.rfind(tags[0], since, start) if tags else -1
        return at + len(tags[0]) if tags and at >= 0 else start

    def begins(self, start: int) -> bool:
        """Return whether there is a call at `start`, where nothing marks calls: other objects are answers in JSON."""
        if self._patterns.grammar.calls_are_marked or self._patterns.grammar.call != ("object",):
            return True
        try:
            value, _ = self._read_value(start, JSON)
        except InvalidValue:
            return True
        path = self._patterns.grammar.arguments_path
        has_arguments = path[-1:] == ("",) or _at(value, path, _MISSING) is not _MISSING
        return _at(value, self._patterns.grammar.name_path) is not None and has_arguments

    def _misformed(self, error: str, position: int, name: str = "", *, is_open: bool = False) -> Unreadable:
        """Return the error of a call without the template's form, with that form."""
        call = ToolCall(name="NAME", arguments={"KEY": "VALUE"}, id="ID")
        try:
            pieces = write_reply(self._patterns.grammar, Message(role="assistant", tool_calls=(call,)))
        except RenderError:
            pieces = []
        form = "".join(piece.text for piece in pieces).strip()
        return Unreadable(error + (f"; calls are written as {form!r}" if form else ""), position, name, is_open=is_open)

    def _broken(self, start: int, since: int, broken: Unreadable) -> ReadCall:
        found = self._source.search(self._patterns.broken_end, broken.position)
        end = found.start if found else len(self._source.text)
        text = self._patterns.code.plain(self._source.text[self._opened(start, since) : end])
        is_open = not found and any(map(CONTROL.search, self._patterns.closers))
        is_cut = not found and (broken.is_open or not text.strip())
        error = NOT_CLOSED if is_cut else str(broken)
        name = "" if CONTROL.search(broken.name) else broken.name
        call = ToolCall.model_construct(name=name, arguments=text, error=error, raw=text)
        is_closed = found is not None and found.alternative.kind == "closer"
        return ReadCall(call, end, found.end if found and is_closed else end, None, False, is_open)

    # An object.

    def _read_object(self, start: int) -> ReadCall:
        fields, end = self._read_mapping(start, "", JSON, "a tool call is not a JSON object")
        grammar = self._patterns.grammar
        name = _at(fields, grammar.name_path)
        if not isinstance(name, str) or not name:
            raise Unreadable("a tool call has no name", end)
        path = tuple(key or name for key in grammar.arguments_path)
        arguments = _at(fields, path, _MISSING)
        if arguments is _MISSING:
            layout, holder = "".join(grammar.layout), _at(fields, path[:-1])
            keys = cast("dict[str, Any]", holder) if isinstance(holder, dict) else ()
            other = next((key for key in keys if f'"{key}"' not in layout), None)
            if other is not None:  # which may hold the arguments
                raise self._misformed(f"a tool call has no {path[-1]!r}, but {brief(other, 40)}", end, name)
            arguments = {}
        if not isinstance(arguments, (dict, str)):
            raise Unreadable("a tool call's arguments are not a JSON object", end, name)
        call_id = None if grammar.id_path is None else _at(fields, grammar.id_path)
        call_id = call_id if isinstance(call_id, str) else None
        return self._close(end, "object", ToolCall.model_construct(name=name, arguments=arguments, id=call_id))

    def _read_mapping(self, start: int, name: str, style: Style, otherwise: str) -> tuple[dict[str, Any], int]:
        """Read the object that begins at `start`; `otherwise` is the error if it is another value."""
        self._refuse_work(start, name)
        try:
            value, end = self._read_value(start, style)
        except InvalidValue as error:
            text = self._source.text
            self._searched += error.end - start + len(text) // 64  # the decoder counts the lines of all text
            is_cut = error.end >= len(text.rstrip()) or not style.is_json
            what = "valid JSON" if style.is_json else "an object"
            raise Unreadable(f"a tool call is not {what}: {error}", start, name, is_open=is_cut) from None
        if not isinstance(value, dict):
            raise Unreadable(otherwise, end, name)
        return cast("dict[str, Any]", value), end

    def _read_value(self, start: int, style: Style) -> tuple[Any, int]:
        text = self._source.text
        try:
            value, end = read_value(text, start, style)
        except InvalidValue as error:
            if error.end + LONGEST_WORD > len(text):
                self._source.wait(start)
            raise
        if end == len(text) and text[end - 1] not in "}])":  # a number may go on
            self._source.wait(start)
        return value, end

    def _refuse_work(self, start: int, name: str) -> None:
        """Refuse to read on after many broken calls, each of which may have been searched to the end of the reply."""
        if self._searched > _WORK * self._source.length:
            self._source.wait(len(self._source.text))
            raise Unreadable("a tool call follows too many broken ones", start, name)

    # A call in Python's syntax.

    def _read_python(self, start: int) -> ReadCall:
        text = self._source.text
        named = _PYTHON_NAME.match(text, start)
        name = named[1] if named else ""
        self._refuse_work(start, name)
        control = CONTROL.search(text, start)
        stop = control.start() if control else len(text)
        is_whole = control is not None or self._source.is_whole
        try:
            name, arguments, end = read_python_call(
                text, start, stop, self._patterns.grammar.unescaped_quote, is_whole=is_whole
            )
        except InvalidValue as error:
            if error.end >= len(text):
                self._source.wait(start)
            self._searched += error.end - start
            raise Unreadable(f"a tool call is not a call in Python: {error}", start, name, is_open=True) from None
        return self._close(end, "python", ToolCall.model_construct(name=name, arguments=arguments))

    # A call of several fields.

    def _read_parts(self, start: int) -> ReadCall:
        grammar = self._patterns.grammar
        texts: dict[str, str] = {}
        position = start
        for index, field in enumerate(grammar.call):
            if field in ("arguments", "key"):
                break
            read = self._read_field(position, field, texts.get("name", ""))
            texts[field], position = read.text.strip(), read.position
            if field == grammar.last_fields[0] and "key" in grammar.call and read.following.target != "key":
                call = self._made(self._name(texts, start), texts, {})
                return ReadCall(call, read.end, position, read.following, read.ends_call)
            following = grammar.call[index + 1] if index + 1 < len(grammar.call) else "end"
            if read.following.target != following:
                error = f"a tool call has no {following} after its {field}"
                raise self._misformed(error, position, texts.get("name", ""))
        name = self._name(texts, start)
        if "key" in grammar.call:
            return self._read_pairs(position, name, texts)
        otherwise = "a tool call's arguments are not a JSON object"
        arguments, end = self._read_mapping(position, name or "?", self._patterns.style, otherwise)
        errors: list[str] = []
        if grammar.quoted is not None:
            typed = {
                k: self._types.value(name, k, v) if isinstance(v, str) else (v, None) for k, v in arguments.items()
            }
            arguments = {key: found for key, (found, _) in typed.items()}
            errors = [error for _, error in typed.values() if error is not None]
        return self._close(end, "arguments", self._made(name, texts, arguments, errors))

    def _read_field(self, start: int, field: Field, name: str) -> _ReadField:
        """Read a field up to the first constant that may follow it."""
        pattern, source = self._patterns.after[field], self._source
        is_decided = source.undecided is None
        found = source.search(pattern, start)
        begun = source.undecided
        if found is None or found.constant is None:
            where = found.start if found else start
            is_open = found is None and any(self._patterns.closers)
            raise self._misformed(f"a tool call has no end of its {field}", where, name, is_open=is_open)
        constant = found.constant
        text = strip_end(source.text[start : found.start], constant.lead)
        has_opener = self._patterns.opener.whole.search(text) is not None
        if field != "value" and (not text.strip() or "\n" in text.strip() or has_opener):
            raise self._misformed(f"a tool call has no {field}", start, name)
        position = source.skip(constant.tail, found.end, start)
        others = (other.constant for other in pattern.alternatives if other.constant is not None)
        longer = [other for other in others if other.core.startswith(constant.core)]
        ends_call = (
            is_decided
            and begun in (None, found.start)
            and field in self._patterns.grammar.last_fields
            and not found.alternative.is_last
            and all(
                other.lead == constant.lead and other.target not in self._patterns.grammar.call[1:] for other in longer
            )
        )
        return _ReadField(text, start + len(text), position, constant, ends_call)

    def _read_pairs(self, position: int, name: str, texts: dict[str, str]) -> ReadCall:
        arguments: dict[str, Any] = {}
        errors: list[str] = []
        source = self._source
        read: _ReadField | None = None
        while read is None or read.following.target == "key":
            found = source.search(self._patterns.after["key"], position)
            if found is None or found.constant is None:
                where = found.start if found else position
                raise self._misformed(f"{shorten(name, 80)}: a key has no value", where, name, is_open=found is None)
            constant = found.constant
            key = strip_end(source.text[position : found.start], constant.lead)
            if "\n" in key:
                raise self._misformed(f"{shorten(name, 80)}: a key has a line break", position, name)
            begun, position = position, source.skip(constant.tail, found.end, position)
            if constant.tail and position == found.end and source.text.startswith(constant.core, found.end):
                error = f"{shorten(name, 80)}: {constant.core * 2!r} follows the key {brief(key, 40)}"
                raise self._misformed(error, begun, name)
            read = self._read_field(position, "value", name)
            position = read.position
            is_twice = key in arguments
            arguments[key], error = self._typed(name, key, read.text, constant.types)
            if is_twice:
                error = f"{name}: the argument {brief(key, 40)} comes twice"
            errors += [error] if error else []
        return ReadCall(self._made(name, texts, arguments, errors), read.end, position, read.following, read.ends_call)

    def _typed(self, name: str, key: str, text: str, types: tuple[str, ...]) -> tuple[Any, str | None]:
        """Return the value that a text spells, and what is wrong with it."""
        opener, closer = self._patterns.wrapper
        is_wrapped = bool(opener) and text.startswith(opener)
        is_cut = is_wrapped and not text.endswith(closer)
        inner = text[len(opener) : len(text) - len(closer)] if is_wrapped and not is_cut else text
        may_be_text = "string" in types and not self._patterns.has_quoted_values
        value, error, problem = inner, None, ""
        if may_be_text and types != ("string",):
            value, error = self._types.value(name, key, inner)
        elif not may_be_text:
            try:
                value = parse_value(inner)
            except ValueError as why:
                problem = f"is {brief(inner, 40)}, which is not a value ({why})"
        swallowed = self._patterns.swallowed.search(text)
        if is_cut:
            problem = f"opens {opener!r} and does not close it"
        elif swallowed:
            problem = f"holds {brief(swallowed[0], 40)}, a tag of the call"
        return value, f"{shorten(name, 80)}: the argument {brief(key, 40)} {problem}" if problem else error

    # What all calls have.

    def _name(self, texts: dict[str, str], start: int) -> str:
        """Return the name of a call, which may be inside its id."""
        around = self._patterns.grammar.name_in_id
        if around is None:
            if "echo" in texts and texts["echo"] != texts["name"]:
                raise Unreadable(
                    f"a tool call has the names {brief(texts['name'], 100)} and {brief(texts['echo'], 100)}", start
                )
            return texts["name"]
        before, after = around
        given = texts["id"]
        name = given.removeprefix(before).rpartition(after)[0] if after else given.removeprefix(before)
        if not given.startswith(before) or not name:
            raise Unreadable(f"the id {brief(given)} of a tool call does not name a function", start)
        return name

    def _made(
        self, name: str, texts: dict[str, str], arguments: dict[str, Any], errors: Sequence[str] = ()
    ) -> ToolCall:
        more = [f"and {len(errors) - _MAX_REPORTED} more"] if len(errors) > _MAX_REPORTED else []
        error = "; ".join([*errors[:_MAX_REPORTED], *more]) or None
        call_id = None if self._patterns.grammar.first_id is not None else texts.get("id")
        return ToolCall.model_construct(name=name, arguments=arguments, id=call_id, error=error)

    def _close(self, end: int, field: Field, call: ToolCall) -> ReadCall:
        """Read the constant after a field that shows itself where it ends."""
        source, pattern = self._source, self._patterns.after[field]
        after = skip_space(source.text, end)
        is_read = source.undecided is None
        found = source.match(pattern, after)
        if found is not None and found.constant is not None:
            return ReadCall(call, end, source.skip(found.constant.tail, found.end, end), found.constant, is_read)
        if self._patterns.ends_itself:
            return ReadCall(call, end, end, None, is_read)
        if after == len(source.text) or pattern.unfinished.match(source.text, after):
            raise Unreadable(NOT_CLOSED, end, call.name, is_open=True)
        raise Unreadable("a tool call has text after its arguments", end, call.name)


def _at(value: Any, path: Path, missing: Any = None) -> Any:
    """Return what is at a path of keys; an empty key means the only key itself."""
    for key in path:
        if not isinstance(value, dict):
            return missing
        fields = cast("dict[str, Any]", value)
        if key == "":
            return next(iter(fields)) if len(fields) == 1 else missing
        if key not in fields:
            return missing
        value = fields[key]
    return value
