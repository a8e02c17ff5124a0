"""Proves a measured grammar: what it writes reads back, and is what the template writes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from envsdk._visible import brief
from envsdk.errors import RenderError
from envsdk.messages import Message, ToolSchema
from envsdk.rendering.reading import SplitReply

from ._grammar import Grammar
from ._measuring import Renderings, words_of
from ._probes import HARD_TEXT, KEYS, NESTED, TOOLS, call_of, reply
from ._reading import GrammarReader
from ._writing import write_reply

Status: TypeAlias = Literal["reads", "reads without types", "partly", "refused", "no calls"]
_ENDED = SplitReply([], True, "")
_TEXTS = ("Hello there.", "one\n\ntwo", "a < b > c & \"d\" 'e' {f} [g] \\h", "你好 é 😀", "12", '{"a": [1]}')
_STRINGS = ("plain", "", "12", "true", "null", '{"a": 1}', "one\ntwo", " padded ", "a < b & c > d", "你好 é", HARD_TEXT)
_VALUES: Mapping[str, Sequence[Any]] = {
    "number": (3, -1.5),
    "boolean": (True, False),
    "null": (None,),
    "array": ([], ["x", 1]),
    "object": (NESTED, {}),
}


@dataclass(frozen=True)
class ReadingVerdict:
    """The proved facts about reading replies of one template.

    Attributes:
        status: `reads`: replies read back as they were written. `reads without types`: they do with the tools' schemas,
            which supply the types of values. `partly`: usual replies read back, and others are refused or reported with
            an error. `refused`: usual replies do not read back. `no calls`: the template writes none that can be
            measured; what it writes reads back.
        detail: Why it is not `reads`.
        message: The smallest message that shows this.
        differences: What the template writes differently from the grammar, such as stripped text.
    """

    status: Status
    detail: str = ""
    message: Message | None = None
    differences: tuple[str, ...] = ()

    def __str__(self) -> str:
        why = f": {self.detail} ({self.message.to_openai()})" if self.message else ""
        return "; ".join([self.status + why, *self.differences])


def usual_replies(*, has_calls: bool) -> Iterator[Message]:
    """Yield the replies without which a template cannot be used."""
    for reasoning in (None, "I think."):
        yield reply("Hello there.", reasoning)
    if has_calls:
        call = call_of(0, {KEYS["string"]: "Paris"})
        yield reply(calls=(call,))
        yield reply(calls=(call_of(0, {KEYS["string"]: "Paris", KEYS["second"]: "x y"}),))
        yield reply(calls=(call_of(0, {KEYS["number"]: 3, KEYS["boolean"]: True}),))
        yield reply("", "I think.", (call,))


def other_replies(*, has_calls: bool) -> Iterator[Message]:
    """Yield replies of all shapes with values of all kinds."""
    for text in _TEXTS:
        yield reply(text)
        yield reply(text, "I think.")
        yield reply("So.", text)
    if not has_calls:
        return
    call, other = call_of(0, {KEYS["string"]: "Paris"}), call_of(1, {KEYS["string"]: "Rome"})
    for text, reasoning in (("", None), ("So.", None), ("", "I think."), ("So.", "I think.")):
        for calls in (
            (call_of(0, {}),),
            (call,),
            (call, other),
            (call_of(0, {}), other),
            (call, other, call_of(2, {})),
        ):
            yield reply(text, reasoning, calls)
    every: Mapping[str, Sequence[Any]] = {"string": _STRINGS, **_VALUES}
    for kind, values in every.items():
        for value in values:
            yield reply(calls=(call_of(0, {KEYS[kind]: value}),))
            yield reply(calls=(call_of(0, {KEYS[kind]: value, KEYS["second"]: "Turin"}), other))


def prove(grammar: Grammar, renderings: Renderings) -> ReadingVerdict:
    """Write and read back a battery of replies, and compare what is written with the template."""
    proof = _Proof(grammar, renderings, GrammarReader(grammar))
    has_calls = bool(grammar.call)
    for message in usual_replies(has_calls=has_calls):
        failure = proof.failure(message) or proof.misread(message)
        if failure and not (message.tool_calls and failure.is_unwritten and message.reasoning is not None):
            return ReadingVerdict("refused", failure.reason, message)
    found: _Failure | None = None
    where: Message | None = None
    differences: dict[str, None] = {}
    for message in other_replies(has_calls=has_calls):
        failure = proof.misread(message) or proof.failure(message)
        if failure is not None and failure.is_wrong:
            return ReadingVerdict("refused", failure.reason, message)
        if failure is not None and not failure.is_unwritten and found is None:
            found, where = failure, message
        difference = proof.difference(message)
        if difference:
            differences[difference] = None
    if found is not None:
        return ReadingVerdict("partly", found.reason, where, tuple(differences))
    if not has_calls:
        return ReadingVerdict("no calls", differences=tuple(differences))
    untyped = next((m for m in other_replies(has_calls=True) if proof.failure(m, ()) and not proof.failure(m)), None)
    status: Status = "reads without types" if untyped else "reads"
    detail = "the tools' schemas supply the types of values" if untyped else ""
    return ReadingVerdict(status, detail, untyped, tuple(differences))


class _Failure(NamedTuple):
    reason: str
    is_unwritten: bool = False
    """True if the reply cannot be written at all, so nothing was read."""
    is_wrong: bool = False
    """True if it was read as another message without an error."""


@dataclass(eq=False, repr=False)
class _Proof:
    _grammar: Grammar
    _renderings: Renderings
    _reader: GrammarReader

    def failure(self, message: Message, tools: Sequence[ToolSchema] = TOOLS) -> _Failure | None:
        """Return why a message does not read back; None if it does."""
        (message,) = self._renderings.addressed([message])
        try:
            pieces = write_reply(self._grammar, message)
        except RenderError as error:
            return _Failure(str(error).partition(". Try")[0], is_unwritten=True)
        code = self._reader.patterns.code
        coded = "".join(code.constant(piece.text) if piece.is_scaffold else piece.text for piece in pieces)
        read = self._reader.read(code.cut(coded), _ENDED, tools)
        is_thought = any(piece.text == message.reasoning for piece in pieces)
        wanted = message if is_thought else message.with_reasoning(None)
        if _facts(read, self._grammar) == _facts(wanted, self._grammar) and not read.errors:
            return None
        if read.errors:
            return _Failure(f"a reply reads back with an error: {read.errors[0]}")
        return _Failure(
            f"a reply reads back as another message: {brief(read.to_openai(), 200)}", is_wrong=tools is TOOLS
        )

    def misread(self, message: Message) -> _Failure | None:
        """Return how what the template writes for a message does not read back; None if it does.

        Whitespace around strings does not count, nor what the template drops, as some do with null.
        """
        (message,) = self._renderings.addressed([message])
        try:
            rendered = self._renderings.body(message, [*words_of(message)])
        except RenderError:
            return None
        if not has_all(rendered, message):
            return None
        code = self._reader.patterns.code
        read = self._reader.read(code.cut(code.constant(rendered)), _ENDED, TOOLS)
        if read.errors:
            return _Failure(
                f"the template writes {brief(rendered, 200)}, which reads back with an error: {read.errors[0]}"
            )
        if stripped(read) == stripped(message):
            return None
        try:
            is_wrong = bool(read.tool_calls or write_reply(self._grammar, message))
        except RenderError:  # nothing else is written for it
            is_wrong = False
        return _Failure(
            f"the template writes {brief(rendered, 200)}, which reads back as {brief(read.to_openai(), 200)}",
            is_wrong=is_wrong,
        )

    def difference(self, message: Message) -> str:
        """Return how the template writes a message differently; empty if it does not, or does not write it."""
        (message,) = self._renderings.addressed([message])
        try:
            written = "".join(piece.text for piece in write_reply(self._grammar, message))
            rendered = self._renderings.body(message, [*words_of(message)])
        except RenderError:
            return ""
        if written == rendered or (message.reasoning and message.reasoning not in rendered):
            return ""  # reasoning that only the generation prompt opens is in no rendering
        if written.split() == rendered.split() or "".join(written.split()) == "".join(rendered.split()):
            return "whitespace is stripped or added"
        start = next((i for i, (a, b) in enumerate(zip(written, rendered, strict=False)) if a != b), 0)
        return f"{written[start : start + 40]!r} is written as {rendered[start : start + 40]!r}"


def _facts(message: Message, grammar: Grammar) -> tuple[object, ...]:
    """Return what has to be the same; JSON distinguishes True from 1."""
    has_id = (grammar.id_path is not None or "id" in grammar.call) and grammar.first_id is None
    calls = [
        (call.name, json.dumps(call.arguments, sort_keys=True), call.id if has_id else None)
        for call in message.tool_calls
    ]
    return message.content, message.reasoning, calls


def has_all(rendered: str, message: Message) -> bool:
    """Return whether a rendering has all calls and strings of a message, in any coding of strings."""
    names = [call.name for call in message.tool_calls]
    words = [word.strip() for word in words_of(message)]
    forms = [(word, json.dumps(word)[1:-1], repr(word)[1:-1]) for word in words]
    is_named = all(rendered.count(name) >= names.count(name) for name in names)
    return is_named and all(any(form in rendered for form in spelled) for spelled in forms)


def stripped(message: Message) -> tuple[object, ...]:
    """Return the calls of a message, or its content if it has none, without whitespace around it and without nulls."""
    calls = [(call.name, json.dumps(_without_nulls(call.arguments), sort_keys=True)) for call in message.tool_calls]
    return (calls,) if calls else (message.content.strip(),)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {key.strip(): _without_nulls(item) for key, item in fields.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in cast("list[Any]", value)]
    return value.strip() if isinstance(value, str) else value
