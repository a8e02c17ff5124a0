"""Read the calls of a reply by its grammar. An unreadable call has an error, and its text as its arguments."""

import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

from envsdk.errors import RenderError
from envsdk.messages import ToolCall, ToolSchema

from .._replies._argument_types import ArgumentTypes
from ._grammar import Field, Grammar, Path
from ._patterns import CodedReply, Constant, Patterns
from ._styles import CONTROL, CUT, JSON, UNTERMINATED, NotPython, parse_value, read_python_call, read_value, skip_space
from ._writing import CallWriter, write_form

NOT_CLOSED = "the tool call was not closed"
_PYTHON_NAME = re.compile(r"\s*([^\W\d][\w.\-]*+)\s*(?=\()")
_MAX_REPORTED = 3
_MISSING = object()
_WORK = 32
"""How often the text of a reply may be searched without a result."""


class ReadCall(NamedTuple):
    """A call that was read."""

    call: ToolCall
    end: int
    """The position after the call and the constant that follows it."""
    following: Constant | None
    """The constant that follows it; None if the call is broken or the reply ended in it."""
    is_open: bool = False
    """True if the reply ended inside the call."""
    last: int = 0
    """The position after its last field."""
    is_ended: bool = False
    """True if the call ends as it was read, although it may be undecided which constant follows it."""


class _CallFields(NamedTuple):
    """The fields of a call that was read."""

    call: ToolCall
    end: int
    """The position after its last field."""
    position: int
    """The position after the constant that follows."""
    following: Constant | None
    is_ended: bool
    """See `ReadCall`."""


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


class CallReader:
    """Reads the calls of one reply.

    Args:
        grammar: The grammar.
        patterns: Its patterns.
        source: The reply.
        tools: JSON schemas of the tools, which specify the types of values that are written without quotes.
    """

    def __init__(self, grammar: Grammar, patterns: Patterns, source: CodedReply, tools: Sequence[ToolSchema]) -> None:
        self._grammar = grammar
        self._source = source
        self._searched = 0  # characters that were searched for calls that are broken
        self._patterns = patterns
        self._tools = tools
        self._writer = CallWriter(grammar, is_checked=True)

    @cached_property
    def _types(self) -> ArgumentTypes:
        return ArgumentTypes(self._tools, parse_value, self._patterns.parse_exactly)

    def read(self, start: int, since: int) -> ReadCall:
        """Read the call whose first field begins at `start`; a broken call ends where a call is closed or opened.

        If `CodedReply.undecided` is set then, what follows the call depends on text that has not come yet, and so does
        the call unless it `is_ended`.

        Args:
            start: The position.
            since: Where the constant before it begins.
        """
        searched = self._searched
        try:
            first = self._grammar.call[0]
            read = {"object": self._read_object, "python": self._read_python}.get(first, self._read_parts)
            found = read(start)
            call = self._with_raw(found, start, since)
            read_call = ReadCall(call, found.position, found.following, last=found.end, is_ended=found.is_ended)
        except Unreadable as broken:
            read_call = self._broken(start, since, broken)
        if self._source.undecided is not None:
            self._searched = searched
        return read_call

    def _with_raw(self, found: _CallFields, start: int, since: int) -> ToolCall:
        """Return the call with its sampled text if the template would write another one."""
        tags, coded_tags = self._grammar.call_tags, self._patterns.call_tags
        closed = self._source.text.find(coded_tags[1], found.end, found.position) if coded_tags else -1
        coded = self._source.text[start : found.end].strip()
        if closed >= 0:
            coded = self._source.text[self._opened(start, since) : closed]
        call, text = found.call, self._patterns.code.plain(coded)
        try:
            written = self._writer.between_tags(call, tags) if tags and closed >= 0 else self._writer.text(call)
        except RenderError:  # it cannot be written otherwise
            written = None
        return call if text == written else call.model_copy(update={"raw": text})

    def _opened(self, start: int, since: int) -> int:
        """Return the position after the tag that opens the call whose first field begins at `start`, if it has one."""
        tags = self._patterns.call_tags
        at = self._source.text.rfind(tags[0], since, start) if tags else -1
        return at + len(tags[0]) if tags and at >= 0 else start

    def begins(self, start: int) -> bool:
        """Return whether there is a call at `start`, where nothing marks calls: other objects are answers in JSON."""
        if self._grammar.calls_are_marked or self._grammar.call != ("object",):
            return True
        try:
            value, _ = read_value(self._source.text, start, JSON, is_whole=self._source.is_whole)
        except ValueError as error:
            if str(error) == CUT:
                self._source.wait(start)
            return True
        path = self._grammar.arguments_path
        has_arguments = path[-1:] == ("",) or _at(value, path, _MISSING) is not _MISSING
        return _at(value, self._grammar.name_path) is not None and has_arguments

    def broken(self, start: int, since: int) -> ReadCall:
        """Return the call that was opened before `start`, but does not begin as the template's calls do; see `read`."""
        return self._broken(start, since, self._misformed("a tool call does not begin as one", start))

    def _misformed(self, error: str, position: int, name: str = "", *, is_open: bool = False) -> Unreadable:
        """Return the error of a call without the template's form, with that form."""
        form = write_form(self._grammar)
        return Unreadable(error + (f"; calls are written as {form!r}" if form else ""), position, name, is_open=is_open)

    def _broken(self, start: int, since: int, broken: Unreadable) -> ReadCall:
        found = self._source.search(self._patterns.broken_end, broken.position)
        end = found.start() if found else len(self._source.text)
        text = self._patterns.code.plain(self._source.text[self._opened(start, since) : end])
        is_open = self._patterns.has_control_closers and not found
        is_cut = not found and (broken.is_open or not text.strip())
        error = NOT_CLOSED if is_cut else str(broken)
        call = ToolCall.model_construct(
            name="" if CONTROL.search(broken.name) else broken.name, arguments=text, error=error, raw=text
        )
        is_closed = found is not None and (found.lastindex or 1) > self._patterns.opener_count
        return ReadCall(call, found.end() if found and is_closed else end, None, is_open, end)

    # An object.

    def _read_object(self, start: int) -> _CallFields:
        value, end = self._value(start, "")
        if not isinstance(value, dict):
            raise Unreadable("a tool call is not a JSON object", end)
        grammar = self._grammar
        fields = cast("dict[str, Any]", value)
        name = _at(fields, grammar.name_path)
        if not isinstance(name, str) or not name:
            raise Unreadable("a tool call has no name", end)
        path = grammar.arguments_path
        if "" in path:
            path = tuple(name if key == "" else key for key in path)
        arguments = _at(fields, path, _MISSING)
        if arguments is _MISSING:
            layout, holder = "".join(grammar.layout), _at(fields, path[:-1])
            keys = cast("dict[str, Any]", holder) if isinstance(holder, dict) else ()
            other = next((key for key in keys if f'"{key}"' not in layout), None)
            if other is not None:  # which may hold the arguments
                raise self._misformed(f"a tool call has no {path[-1]!r}, but {other!r:.40}", end, name)
            arguments = {}
        if not isinstance(arguments, (dict, str)):
            raise Unreadable("a tool call's arguments are not a JSON object", end, name)
        call_id = None if grammar.id_path is None else _at(fields, grammar.id_path)
        call = ToolCall.model_construct(
            name=name, arguments=arguments, id=call_id if isinstance(call_id, str) else None
        )
        return self._close(end, "object", call)

    def _value(self, start: int, name: str) -> tuple[Any, int]:
        """Read the JSON value, or the one in the template's notation, that begins at `start`."""
        style = JSON if self._grammar.call[0] == "object" else self._patterns.style
        self._refuse_work(start, name)
        try:
            value, end = read_value(self._source.text, start, style, is_whole=self._source.is_whole)
        except ValueError as error:
            if str(error) == CUT:
                self._source.wait(start)
            is_decoded = isinstance(error, json.JSONDecodeError)
            is_unterminated = is_decoded and error.msg.startswith(UNTERMINATED)
            is_cut = is_unterminated or start + error.pos >= self._source.last if is_decoded else not style.is_json
            rest = len(self._source.text) - start
            self._searched += error.pos if is_decoded and not is_unterminated else rest
            what = "JSON" if style.is_json else "an object"
            raise Unreadable(f"a tool call is not valid {what}: {error}", start, name, is_open=is_cut) from None
        return value, end

    def _refuse_work(self, start: int, name: str) -> None:
        """Refuse to read on after many broken calls, each of which may have been searched to the end of the reply."""
        if self._searched > _WORK * self._source.length:
            self._source.wait(len(self._source.text))
            raise Unreadable("a tool call follows too many broken ones", start, name)

    # A call in Python's syntax.

    def _read_python(self, start: int) -> _CallFields:
        named = _PYTHON_NAME.match(self._source.text, start)
        name = named[1] if named else ""
        self._refuse_work(start, name)
        control = CONTROL.search(self._source.text, start)
        stop = control.start() if control else len(self._source.text)
        is_whole = control is not None or self._source.is_whole
        try:
            name, arguments, end = read_python_call(
                self._source.text, start, stop, self._grammar.unescaped_quote, is_whole=is_whole
            )
        except NotPython as error:
            if str(error) == CUT:
                self._source.wait(start)
            self._searched += error.searched
            raise Unreadable(f"a tool call is not a call in Python: {error}", start, name, is_open=True) from None
        return self._close(end, "python", ToolCall.model_construct(name=name, arguments=arguments))

    # A call of several fields.

    def _read_parts(self, start: int) -> _CallFields:
        grammar = self._grammar
        texts: dict[str, str] = {}
        position = start
        for index, field in enumerate(grammar.call):
            name = texts.get("name", "")
            if field in ("arguments", "key"):
                break
            raw = self._raw(position, field, name)
            text, end, position, constant = raw.text, raw.end, raw.position, raw.following
            texts[field] = text.strip()
            following = grammar.call[index + 1] if index + 1 < len(grammar.call) else "end"
            if field == grammar.last_fields[0] and "key" in grammar.call and constant.target != "key":
                return _CallFields(self._made(texts, {}, start), raw.end, position, constant, raw.ends_call)
            if constant.target != following:
                error = f"a tool call has no {following} after its {field}"
                raise self._misformed(error, position, texts.get("name", ""))
        if "key" in grammar.call:
            return self._read_pairs(start, position, texts)
        name = self._name(texts, start)
        value, end = self._value(position, name or "?")
        if not isinstance(value, dict):
            raise Unreadable("a tool call's arguments are not a JSON object", end, name)
        arguments, errors = cast("dict[str, Any]", value), list[str]()
        if grammar.quoted is not None:
            typed = {
                k: self._types.value(name, k, v) if isinstance(v, str) else (v, None) for k, v in arguments.items()
            }
            arguments = {key: found for key, (found, _) in typed.items()}
            errors = [error for _, error in typed.values() if error is not None]
        return self._close(end, "arguments", self._made(texts, arguments, start, errors))

    def _raw(self, start: int, field: Field, name: str) -> "_RawField":
        """Read a field up to the first constant that may follow it."""
        pattern, constants = self._patterns.after_or_control[field]
        is_decided = self._source.undecided is None
        found = self._source.search(pattern, start)
        begun = self._source.undecided
        if found is None or found.lastindex == len(constants) + 1:
            where = found.start() if found else start
            is_open = found is None and any(self._patterns.closers)
            raise self._misformed(f"a tool call has no end of its {field}", where, name, is_open=is_open)
        index = (found.lastindex or 1) - 1
        constant = constants[index]
        text = constant.strip_before(self._source.text[start : found.start()])
        has_opener = self._patterns.opener.complete.search(text) is not None
        if field != "value" and (not text.strip() or "\n" in text.strip() or has_opener):
            raise self._misformed(f"a tool call has no {field}", start, name)
        position = self._source.skip(constant.tail, found.end(), start)
        longer = [other for other in constants if other.core.startswith(constant.core)]
        ends_call = (
            is_decided
            and begun in (None, found.start())
            and field in self._grammar.last_fields
            and not pattern.alternatives[index].is_last
            and all(other.lead == constant.lead and other.target not in self._grammar.call[1:] for other in longer)
        )
        return _RawField(text, start + len(text), position, constant, ends_call)

    def _read_pairs(self, start: int, position: int, texts: dict[str, str]) -> _CallFields:
        name, pairs = self._name(texts, start), list[tuple[str, str, Any]]()
        raw: _RawField | None = None
        while raw is None or raw.following.target == "key":
            key, position, kind = self._key(position, name)
            raw = self._raw(position, "value", name)
            position = raw.position
            pairs.append((key, raw.text, kind))
        arguments, errors = self._typed(name, pairs)
        call = self._made(texts, arguments, start, errors)
        return _CallFields(call, raw.end, position, raw.following, raw.ends_call)

    def _key(self, start: int, name: str) -> tuple[str, int, Any]:
        pattern, constants, kinds = self._patterns.before_values
        found = self._source.search(pattern, start)
        if found is None or found.lastindex == len(constants) + 1:
            where = found.start() if found else start
            raise self._misformed(f"{name:.80}: a key has no value", where, name, is_open=found is None)
        index = (found.lastindex or 1) - 1
        key = constants[index].strip_before(self._source.text[start : found.start()])
        if "\n" in key:
            raise self._misformed(f"{name:.80}: a key has a line break", start, name)
        core, tail, end = constants[index].core, constants[index].tail, found.end()
        position = self._source.skip(tail, end, start)
        if tail and position == end and self._source.text.startswith(core, end):
            raise self._misformed(f"{name:.80}: {core * 2!r} follows the key {key[:40]!r}", start, name)
        return key, position, kinds[index]

    def _typed(self, name: str, pairs: Sequence[tuple[str, str, Any]]) -> tuple[dict[str, Any], list[str]]:
        arguments: dict[str, Any] = {}
        errors: list[str] = []
        for key, text, types in pairs:
            is_twice = key in arguments
            opener, closer = self._patterns.wrapper
            is_wrapped = bool(opener) and text.startswith(opener)
            is_cut = is_wrapped and not text.endswith(closer)
            if is_wrapped and not is_cut:
                arguments[key], error = self._typed_value(name, key, text[len(opener) : len(text) - len(closer)], types)
            else:
                arguments[key], error = self._typed_value(name, key, text, types)
            found = self._patterns.swallowed(text)
            if is_cut:
                errors.append(f"{name:.80}: the argument {key[:40]!r} opens {opener!r} and does not close it")
            elif is_twice:
                errors.append(f"{name}: the argument {key[:40]!r} comes twice")
            elif found:
                errors.append(f"{name:.80}: the argument {key[:40]!r} holds {found[:40]!r}, a tag of the call")
            elif error is not None:
                errors.append(error)
        return arguments, errors

    def _typed_value(self, name: str, key: str, text: str, types: tuple[str, ...]) -> tuple[Any, str | None]:
        has_quotes = self._patterns.has_quoted_values
        if types == ("string",) and not has_quotes:
            return text, None
        if "string" in types and not has_quotes:
            return self._types.value(name, key, text)
        try:
            return parse_value(text), None
        except ValueError as error:
            return text, f"{name:.80}: the argument {key[:40]!r} is {text[:40]!r}, which is not a value ({error})"

    # What all calls have.

    def _name(self, texts: dict[str, str], start: int) -> str:
        """Return the name of a call, which may be inside its id."""
        around = self._grammar.name_in_id
        if around is None:
            if "echo" in texts and texts["echo"] != texts["name"]:
                raise Unreadable(f"a tool call has the names {texts['name']!r:.40} and {texts['echo']!r:.40}", start)
            return texts["name"]
        before, after = around
        given = texts["id"]
        name = given.removeprefix(before).rpartition(after)[0] if after else given.removeprefix(before)
        if not given.startswith(before) or not name:
            raise Unreadable(f"the id {given!r:.80} of a tool call does not name a function", start)
        return name

    def _made(
        self, texts: dict[str, str], arguments: dict[str, Any], start: int, errors: Sequence[str] = ()
    ) -> ToolCall:
        more = [f"and {len(errors) - _MAX_REPORTED} more"] if len(errors) > _MAX_REPORTED else []
        error = "; ".join([*errors[:_MAX_REPORTED], *more]) or None
        call_id = None if self._grammar.first_id is not None else texts.get("id")
        return ToolCall.model_construct(name=self._name(texts, start), arguments=arguments, id=call_id, error=error)

    def _close(self, end: int, field: Field, call: ToolCall) -> _CallFields:
        """Read the constant after a field that shows itself where it ends."""
        pattern, constants = self._patterns.after[field]
        after = skip_space(self._source.text, end)
        is_read = self._source.undecided is None
        found = self._source.match(pattern, after)
        constant = constants[(found.lastindex or 1) - 1] if found else None
        position = self._source.skip(constant.tail, found.end(), end) if found and constant else end
        if constant is not None:
            return _CallFields(call, end, position, constant, is_read)
        if self._patterns.ends_itself:
            return _CallFields(call, end, end, None, is_read)
        if after == len(self._source.text) or pattern.begun(self._source.text[after:]):
            raise Unreadable(NOT_CLOSED, end, call.name, is_open=True)
        raise Unreadable("a tool call has text after its arguments", end, call.name)


class _RawField(NamedTuple):
    """A field that was read up to the constant after it."""

    text: str
    end: int
    position: int
    """The position after the constant."""
    following: Constant
    ends_call: bool
    """True if the call ends with this field, whichever constant follows that begins as this one."""


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
