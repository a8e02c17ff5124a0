"""Reads any reply by its grammar, in time linear in its length, whole or as it arrives."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from envsdk.messages import Message, ToolCall, ToolSchema
from envsdk.rendering.reading import (
    ContentText,
    Marks,
    ReadingError,
    ReasoningText,
    ReplyEvent,
    ReplyRead,
    ReplyReader,
    Segment,
    SplitReply,
    Splitter,
    call_events,
)
from envsdk.rendering.renderer import errors_at_end

from ._calls import CallReader
from ._grammar import CALL_FIELDS, Field, Grammar
from ._patterns import CodedReply, Constant, Found, Patterns, shared_start, strip_end
from ._styles import CONTROL

if TYPE_CHECKING:
    from numpy.typing import NDArray

_AFTER_CALL = "there is text after a tool call"
_SECTION_OPEN = "the section of tool calls was not closed"
_SHORT = 256
"""The length of undecided text that is read again whenever more comes; longer text has to grow by an eighth."""
_RATE = 32
"""The number of characters, for each of the reply, that may be read again early because a call may end."""
_patterns_of = lru_cache(maxsize=64)(Patterns)  # each environment has a renderer, and most of them the same grammar


class GrammarReader:
    """Reads replies with one grammar.

    Args:
        grammar: The grammar.
        strips_newlines: Whether newlines around reasoning belong to its block, and those before the content after it.
    """

    def __init__(self, grammar: Grammar, *, strips_newlines: bool = False) -> None:
        self.grammar = grammar
        self.strips_newlines = strips_newlines
        self.patterns = _patterns_of(grammar)

    def begin(self, tools: Sequence[ToolSchema]) -> "GrammarReading":
        """Begin to read a reply as it arrives.

        Args:
            tools: JSON schemas of the tools that the model has.
        """
        return GrammarReading(self.patterns, tools, strips_newlines=self.strips_newlines)

    def read(self, segments: Iterable[Segment], sampled: SplitReply, tools: Sequence[ToolSchema]) -> Message:
        """Read a reply; any reply is accepted, and `Message.errors` reports what is wrong with it.

        Args:
            segments: The beginning of the reply in the prompt, and what was sampled, cut at the control tokens.
            sampled: What was sampled, with how it ended.
            tools: JSON schemas of the tools that the model has.
        """
        reading = self.begin(tools)
        reading.end(segments)
        return reading.message(sampled)


class GrammarReading:
    """A reply that is being read: the position in it, and what was read so far.

    Text that has come is read as soon as no further text can change how it is read.

    Args:
        patterns: The patterns of the grammar.
        tools: JSON schemas of the tools that the model has.
        strips_newlines: See `GrammarReader`.
    """

    def __init__(self, patterns: Patterns, tools: Sequence[ToolSchema], *, strips_newlines: bool) -> None:
        self._patterns = patterns
        self._strips_newlines = strips_newlines
        self._source = CodedReply()
        self._state: Field | Literal["broken"] = "start"
        """The field that comes next; `broken` is a call that was opened but does not go on as one."""
        self._position: int = 0
        self._since: int = 0
        """Where the constant before the next call begins."""
        self._reasoning: list[str] | None = None
        self._content: list[str] = []
        self._calls: list[ToolCall] = []
        self._errors: dict[str, None] = {}
        self._open_block: Literal["reasoning", "tool_call"] | None = None
        self._is_apart = False
        """True if the next text is a separate line, because a block was between it and the text before."""
        self._is_in_text = False
        """True if the beginning of the current text was already added."""
        self._events: list[ReplyEvent | tuple[int, ToolCall]] = []
        """The events since `events` was called; a call with its index."""
        self._reported: int = 0
        """The number of parts of the content that were reported."""
        self._waiting = ""
        """The text that was not read yet."""
        self._is_call_reported = False
        """True if the current call was reported, although it is undecided what follows it."""
        self._read_early: int = 0
        """The number of characters that were read again because a call may end."""
        self._call_reader = CallReader(patterns, self._source, tools)

    def feed(self, segments: Iterable[Segment]) -> None:
        """Read more of the reply."""
        self._waiting += self._patterns.code.segments(segments)
        held = len(self._source.text)  # it is undecided
        if self._state == "end" or not self._waiting:
            return
        if len(self._waiting) * 8 < held - _SHORT:
            may_end_call = self._is_call_reported or self._patterns.call_end_mark.search(self._waiting)
            if not may_end_call or self._read_early + held > _RATE * self._source.length:
                return
            self._read_early += held
        self._source.grow(self._waiting)
        self._waiting = ""
        self._run()
        kept = min(self._since, self._position) if self._state in (*CALL_FIELDS, "broken") else self._position
        self._source.drop(kept)
        self._position, self._since = self._position - kept, max(0, self._since - kept)

    def end(self, segments: Iterable[Segment] = ()) -> None:
        """Read the last part of the reply."""
        self._source.grow(self._waiting + self._patterns.code.segments(segments), is_whole=True)
        self._run()

    def events(self) -> list[ReplyEvent]:
        """Return what was read since the last call."""
        self._report_content()
        found, self._events = self._events, []
        return [event for item in found for event in (call_events(*item) if isinstance(item, tuple) else (item,))]

    def message(self, sampled: SplitReply) -> Message:
        """Return the message after everything was read."""
        errors = [*self._errors, *errors_at_end(is_ended=sampled.is_ended, overrun=sampled.overrun)]
        return Message.model_construct(  # its fields are valid
            role="assistant",
            content=self._shown_content(0),
            reasoning=None if self._reasoning is None else "".join(self._reasoning),
            tool_calls=tuple(self._calls),
            errors=tuple(dict.fromkeys(errors)),
            open_block=self._open_block,
        )

    def _run(self) -> None:
        """Read everything that is decided."""
        source = self._source
        steps = {"start": self._start, "reasoning": self._read_reasoning, "text": self._read_text}
        while self._state != "end":
            source.undecided = None
            if self._state in CALL_FIELDS and not self._call_reader.begins(self._position):
                self._state = "text" if source.undecided is None else self._state
            following = steps.get(self._state, self._read_call)() if source.undecided is None else None
            if following is None:
                break
            self._state = following
        if source.undecided is None or self._state not in ("text", "reasoning"):
            return
        text = source.text[self._position : source.undecided]  # which is not the end of its field
        text = text.rstrip()  # whitespace after it may belong to the constant that follows
        if self._state == "reasoning":
            self._think(text)
        elif not self._is_in_text and self._is_dropped(text):
            return  # until it is not blank
        else:
            self._add(text, is_last=False)
        self._position += len(text)

    # Each step returns the field that comes next; None, and nothing is read, if that is undecided.

    def _start(self) -> Field | None:
        source, patterns = self._source, self._patterns
        coded = source.text
        first = len(coded) - len(coded.lstrip())
        found, constant, end = source.match(patterns.after["start"], first), None, first
        if found is not None and found.constant is not None and found.constant.target != "end":
            constant, end = found.constant, found.end
            is_marked = bool(constant.core.strip() or patterns.grammar.written.get(("start", "text"), "").strip())
            if constant.target in ("text", "reasoning") and not (is_marked or found.text):
                constant, end = None, first  # what is not marked is text
            elif constant.target != "reasoning" and found.text != constant.core:
                opened = patterns.reasoning_opener.match(found.text, 0)
                if opened and patterns.reasoning_closer.whole.search(found.text, opened.end):
                    # Other whitespace made it a constant: reasoning that is empty.
                    constant, end = opened.constant, first + opened.end
        is_spaced = constant is not None and (first > len(constant.lead) or len(constant.core) != end - first)
        if constant is not None and constant.target in CALL_FIELDS and patterns.finds_calls_in_text and is_spaced:
            found = source.match(patterns.text_opener, first)
            constant, end = (found.constant, found.end) if found else (None, first)
        after = source.skip(constant.tail, end, first) if constant else shared_start(coded, patterns.text_start)
        if source.undecided is not None:
            return None
        self._position = after
        if constant is None:
            return "text"
        self._since = first
        if constant.target == "reasoning":
            self._reasoning = []
        return constant.target

    # Reasoning.

    def _read_reasoning(self) -> Field | None:
        source, patterns = self._source, self._patterns
        found = source.search(patterns.after["reasoning"], self._position)
        if source.undecided is not None:
            return None
        if found is None or found.constant is None:
            self._think(source.text[self._position :])
            self._note("the think block was not closed")
            self._open_block = "reasoning"
            return "end"
        if found.constant.target in CALL_FIELDS and found.text != found.constant.core:  # between them is whitespace
            found = patterns.reasoning_closer.match(source.text, found.start) or found
        constant = cast("Constant", found.constant)
        after = source.skip(constant.tail, found.end, found.start)
        if source.undecided is not None:
            return None
        self._think(strip_end(source.text[self._position : found.start], constant.lead))
        self._position, self._since = after, found.start
        return constant.target

    def _think(self, coded: str) -> None:
        """Add reasoning; a control token in it is out of place and becomes its name."""
        for control in () if coded.isascii() else dict.fromkeys(CONTROL.findall(coded)):
            self._note(f"{self._patterns.code.plain(control)} is out of place")
        text = self._patterns.code.plain(coded)
        self._reasoning = self._reasoning or []
        if self._strips_newlines:  # the end of an unfinished part is never blank
            text = (text if any(self._reasoning) else text.lstrip("\n")).rstrip("\n")
        self._reasoning.append(text)
        if text:
            self._events.append(ReasoningText(text))

    # Text.

    def _read_text(self) -> "Field | Literal['broken'] | None":
        patterns, source, start = self._patterns, self._source, self._position
        found = source.search(patterns.in_text, start)
        if source.undecided is not None:
            return None
        if found is None:
            self._add(strip_end(source.text[start:], patterns.text_end))
            return "end"
        before, constant, kind = source.text[start : found.start], found.constant, found.alternative.kind
        after = found.end if constant is None else source.skip(constant.tail, found.end, found.start)
        opens = kind == "reasoning" and self._may_open(found)
        if source.undecided is not None:
            return None
        self._position, self._since = found.end, found.start
        if constant is not None and opens:
            self._add(before)
            if "".join(self._content).strip():
                self._note("there is text before the think block")
            else:
                self._content = []
            self._is_apart, self._reasoning, self._position = bool(self._content), [], after
            return "reasoning"
        match kind:
            case "constant" if constant is not None:
                self._add(strip_end(before, constant.lead))
                self._position = after if constant.target != "end" else found.end
                return constant.target
            case "opener":  # of a call, but it does not go on as one
                self._add(before)
                return "broken"
            case "closer" if self._reasoning is None and not self._calls and constant is not None:
                self._note("a think block was closed that was never opened: the text before it is reasoning")
                self._add(strip_end(before, constant.lead))
                text, self._content, self._position = "".join(self._content), [], after
                self._think(text)  # none of it was reported as content
            case "reasoning" if self._reasoning is None and not CONTROL.search(found.text):
                self._add(before + found.text)  # a word of the text
            case _:
                self._add(before + found.text)
                self._note(f"{patterns.code.plain(found.text)} is out of place")
        return "text"

    def _may_open(self, found: Found) -> bool:
        """Return whether reasoning opens; a tag that is text opens it only if it is closed later."""
        if self._reasoning is not None or self._calls:
            return False
        if CONTROL.search(found.text):
            return True
        closed = self._source.search(self._patterns.reasoning_closer, found.start + 1)
        if self._source.undecided is not None:
            self._source.undecided = found.start
        return closed is not None

    def _add(self, coded: str, *, is_last: bool = True) -> None:
        """Add text to the content, or a part of it that is not its last one."""
        if coded and not self._is_in_text and not self._is_dropped(coded):
            if self._calls and not self._patterns.writes_text_last:
                self._note(_AFTER_CALL)
                self._is_apart = self._is_apart or bool(self._content)
            self._content += ["\n"] * (self._is_apart and bool(self._content))
            self._is_apart, self._is_in_text = False, True
        if coded and self._is_in_text:
            self._content.append(self._patterns.code.plain(coded))
        self._is_in_text = self._is_in_text and not is_last

    def _is_dropped(self, coded: str) -> bool:
        """Return whether text is blank after a call, where the template writes none."""
        return bool(self._calls) and not coded.strip() and not self._patterns.writes_text_last

    def _report_content(self, *, is_settled: bool = False) -> None:
        """Report the content, unless it may still become reasoning or be dropped, or reasoning follows it."""
        if self._state == "reasoning":
            return  # reasoning is reported before content
        patterns = self._patterns
        is_settled = is_settled or self._state == "end" or self._reasoning is not None or bool(self._calls)
        if not is_settled and (patterns.reasoning_closer.alternatives or patterns.reasoning_opener.alternatives):
            return
        text = self._shown_content(self._reported)
        self._reported = len(self._content)
        if text:
            self._events.append(ContentText(text))

    def _shown_content(self, start: int) -> str:
        """Return the content from a part of it on."""
        text = "".join(self._content[start:])
        is_first = (
            self._strips_newlines and self._reasoning is not None and not "".join(self._content[:start]).strip("\n")
        )
        return text.lstrip("\n") if is_first else text

    # Calls.

    def _read_call(self) -> Field | None:
        read = self._call_reader.read(self._position, self._since, begins=self._state != "broken")
        is_decided = self._source.undecided is None
        if not self._is_call_reported and (is_decided or read.is_ended):
            self._report_content(is_settled=True)
            self._events.append((len(self._calls), read.call))
            self._is_call_reported = True
        if not is_decided:
            return None
        self._is_call_reported = False
        self._calls.append(read.call)
        if read.call.error:
            self._note(read.call.error)
        if read.is_open:
            self._open_block = "tool_call"
        self._position, self._since = read.end, read.last
        if read.following is not None and read.following.closes_one:
            self._note(_SECTION_OPEN)
        following = None if read.following is None else read.following.target
        return "text" if following in (None, "end") else following

    def _note(self, error: str) -> None:
        if error not in self._errors:
            self._errors[error] = None
            self._events.append(ReadingError(error))


class StreamedReader(ReplyReader):
    """Reads a reply as it arrives.

    Args:
        reading: The reply, of which nothing was read yet.
        marks: The control tokens at which the reply is cut.
        begun: The beginning of the reply in the prompt, shape (n,).
    """

    def __init__(self, reading: GrammarReading, marks: Marks, begun: "Sequence[int] | NDArray[np.int32]" = ()) -> None:
        if len(begun):
            reading.feed(marks.split(begun).segments)
        self._reading = reading
        self._splitter = Splitter(marks)
        self._errors: set[str] = set()

    def _feed(self, tokens: "NDArray[np.int32]") -> list[ReplyEvent]:
        self._reading.feed(self._splitter.feed(tokens))
        return self._reported()

    def _end(self) -> list[ReplyEvent]:
        split = self._splitter.end()
        self._reading.end(split.segments)
        events, message = self._reported(), self._reading.message(split)
        new = [ReadingError(error) for error in message.errors if error not in self._errors]
        return [*events, *new, ReplyRead(message)]

    def _reported(self) -> list[ReplyEvent]:
        events = self._reading.events()
        self._errors.update(event.error for event in events if isinstance(event, ReadingError))
        return events
