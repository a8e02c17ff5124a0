"""Writes a reply by its grammar."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain

from envsdk.errors import RenderError, TemplateUnsupported
from envsdk.messages import Message, ToolCall

from ._call_writing import CallWriter, WrittenField
from ._grammar import Field, Grammar
from ._patterns import is_mark
from ._sampled_calls import sampled_pieces
from ._styles import Piece


def write_reply(grammar: Grammar, message: Message) -> list[Piece]:
    """Return what is written for a message, from the opening of the reply to its end, without its stop token.

    Reasoning that the template does not write is dropped, as the template does.

    Raises:
        TemplateUnsupported: If the template does not write the text, the calls, or one of them next to the other.
        RenderError: If arguments cannot be written by name.
    """
    pieces: list[Piece] = []
    previous: Field = "start"
    is_after_raw = False
    for item in [*_fields(grammar, message), WrittenField("end", [])]:
        constant = grammar.written.get((previous, item.field))
        if item.field == "value":
            constant = item.before
        if constant is None:
            raise TemplateUnsupported(_missing(previous, item.field, message))
        if grammar.call_tags and (is_after_raw or item.is_raw):
            constant = _tag_of(constant, *grammar.call_tags, is_after_raw, item.is_raw)
        pieces += [Piece(constant, True), *item.pieces]
        previous, is_after_raw = (grammar.call[-1] if item.is_raw else item.field), item.is_raw
    return pieces


def _tag_of(constant: str, opener: str, closer: str, is_after_raw: bool, is_before_raw: bool) -> str:
    """Return a constant without what was sampled in the call before or after it."""
    start = constant.index(closer) if is_after_raw else 0
    return constant[start : constant.rindex(opener) + len(opener) if is_before_raw else len(constant)]


def write_after(grammar: Grammar, message: Message, prompted: str) -> list[Piece]:
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
    if not mark or not _begins(pieces, mark):
        return [Piece(first[_begun(prompted, first) :], True), *pieces[1:]]
    rest = first.removeprefix(prompted) if first.startswith(prompted) else first.lstrip().removeprefix(mark).lstrip()
    return [Piece(rest, True), *pieces[1:]]


def _begun(prompted: str, first: str) -> int:
    """Return how much of what is written first is how the prompt ends, such as the tag that closes an empty block."""
    if not prompted:
        return 0
    fitting = (end for end in range(len(first), 0, -1) if prompted.endswith(first[:end]))
    end = next(fitting, 0)
    return end if is_mark(first[:end].strip()) else 0


def _begins(pieces: list[Piece], mark: str) -> bool:
    return pieces[0].text.lstrip().startswith(mark)


def write_form(grammar: Grammar) -> str:
    """Return how a reply with a call is written, for errors; empty if that is not known."""
    call = ToolCall(name="NAME", arguments={"KEY": "VALUE"}, id="ID")
    try:
        pieces = write_reply(grammar, Message(role="assistant", tool_calls=(call,)))
    except RenderError:
        return ""
    return "".join(piece.text for piece in pieces).strip()


def _missing(source: Field, target: Field, message: Message) -> str:
    count = len(message.tool_calls)
    if "text" in (source, target) and count:
        return f"the text, or not all of {count} calls next to a text are rendered"
    if count:
        return f"not all of {count} calls are rendered: the template writes no {target} after a {source}"
    return f"the template writes no {target} after a {source}"


def _fields(grammar: Grammar, message: Message) -> Iterator[WrittenField]:
    writer = CallWriter(grammar)
    given = (_call_or_raw(writer, grammar, call, index) for index, call in enumerate(message.tool_calls))
    calls = [*chain.from_iterable(given)]
    may_be_empty = bool(calls) or ("start" if message.reasoning is None else "reasoning", "end") in grammar.written
    text = [WrittenField("text", [Piece(message.content, False)])] if message.content or not may_be_empty else []
    fields = [*calls, *text] if _text_is_last(grammar, calls, bool(text)) else [*text, *calls]
    first: Field = fields[0].field if fields else "end"
    if message.reasoning is not None and ("reasoning", first) in grammar.written:
        yield WrittenField("reasoning", [Piece(message.reasoning, False)])
    yield from fields


def _text_is_last(grammar: Grammar, calls: list[WrittenField], has_text: bool) -> bool:
    if not calls or not has_text:
        return False
    return (calls[-1].field, "text") in grammar.written and ("text", calls[0].field) not in grammar.written


def _call_or_raw(writer: CallWriter, grammar: Grammar, call: ToolCall, index: int) -> list[WrittenField]:
    """Return the fields of a call; what was sampled between its tags is one field."""
    if call.raw is None or not grammar.call_tags:
        return writer.fields(call, index)
    pieces = [Piece(call.raw, False)]
    if "key" in grammar.call and any(name in call.raw for name in grammar.controls):
        with suppress(RenderError):  # a call that could not be read is text
            pieces = sampled_pieces(call.raw, writer.sampled_fields(call, grammar.call_tags[1]))
    return [WrittenField(grammar.call[0], pieces, is_raw=True)]
