"""Reading a reply: cutting it at the control tokens of its family, and the events that a reader reports.

This module knows nothing about formats: a family implements a `ReplyReader`.
"""

import codecs
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from .._arguments import explain_arguments
from ..messages import Message, ToolCall
from .tokenizers import Tokenizer

__all__ = [
    "CallArguments",
    "CallBegun",
    "CallEnded",
    "ContentText",
    "ReadingError",
    "ReasoningText",
    "ReplyEvent",
    "ReplyRead",
    "ReplyReader",
    "call_events",
]

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Segment(NamedTuple):
    """A part of a reply: a control token (empty at the start of the reply or of a part of it) and the text after it."""

    control: str
    """The name of the control token, or an empty string."""
    text: str
    """The text after it, up to the next control token."""


class SplitReply(NamedTuple):
    """A reply cut at the control tokens of its family."""

    segments: list[Segment]
    """The parts, in order, without the stop token."""
    is_ended: bool
    """True if there is a stop token."""
    overrun: str
    """The text after the first stop token."""


class Marks:
    """The control tokens at which the replies of a family are cut.

    Args:
        tokenizer: The tokenizer.
        names: The names of the control tokens.
        stops: The names of the tokens that end a reply.
    """

    def __init__(self, tokenizer: Tokenizer, names: Sequence[str], stops: Sequence[str]) -> None:
        self.token_bytes, self.names, self.stops = tokenizer.token_bytes, names, stops
        self._number_of_token = np.zeros(max(tokenizer.vocab_size, 1), dtype=np.uint8)
        for number, name in enumerate(names, start=1):
            self._number_of_token[tokenizer.token_id(name)] = number

    def places(self, tokens: "Sequence[int] | NDArray[np.int32]") -> list[tuple[int, str]]:
        """Return the positions of these control tokens in tokens of shape (n,), each with its name."""
        numbers = self._number_of_token.take(np.asarray(tokens, dtype=np.int32), mode="clip")
        return [(position, self.names[int(numbers[position]) - 1]) for position in numbers.nonzero()[0].tolist()]

    def split(self, tokens: "Sequence[int] | NDArray[np.int32]") -> SplitReply:
        """Cut a whole reply, up to its first stop token."""
        splitter = Splitter(self)
        segments = splitter.feed(np.asarray(tokens, dtype=np.int32))
        rest = splitter.end()
        if rest.segments:  # a character that is cut
            segments[-1] = Segment(segments[-1].control, segments[-1].text + rest.segments[0].text)
        return SplitReply(segments, rest.is_ended, rest.overrun)


@dataclass(eq=False, repr=False)
class Splitter:
    """Cuts one reply into segments, given any number of tokens at a time.

    Args:
        marks: The control tokens at which it is cut.
    """

    _marks: Marks
    _held: bytes = b""
    """The bytes of a character that is not complete yet."""
    _is_ended: bool = False
    _overrun: list[bytes] = field(default_factory=list[bytes])

    def feed(self, tokens: "NDArray[np.int32]") -> list[Segment]:
        """Return the next segments. An incomplete character is held back; nothing is returned after a stop token."""
        pieces = self._marks.token_bytes(tokens)
        if self._is_ended:
            self._overrun += pieces
            return []
        segments: list[Segment] = []
        control, start = "", 0
        for position, name in self._marks.places(tokens):
            data = self._held + b"".join(pieces[start:position])
            self._held = b""
            segments.append(Segment(control, data.decode("utf-8", "replace")))
            control, start = name, position + 1
            if control in self._marks.stops:
                self._is_ended, self._overrun = True, pieces[start:]
                return segments
        data = self._held + b"".join(pieces[start:])
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._held = data[used:]
        segments.append(Segment(control, text))
        return segments

    def end(self) -> SplitReply:
        """Return the rest of the reply, and how it ended."""
        rest = "" if self._is_ended else self._held.decode("utf-8", "replace")
        overrun = b"".join(self._overrun).decode("utf-8", errors="replace")
        return SplitReply([Segment("", rest)] if rest else [], self._is_ended, overrun)


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """More reasoning."""

    text: str
    """The text that was added to the reasoning."""


@dataclass(frozen=True, slots=True)
class ContentText:
    """More content."""

    text: str
    """The text that was added to the content."""


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call begins; the events of one call follow each other."""

    index: int
    """The index of the call in the reply."""
    name: str
    """The tool's name; empty if the call cannot be read."""
    id: str | None
    """The call's id, in model families that have call ids."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the text of a call's arguments: a JSON object, or the text that was sampled instead of one."""

    index: int
    """The index of the call in the reply."""
    text: str
    """The text that was added to it."""


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call was read."""

    index: int
    """The index of the call in the reply."""
    call: ToolCall
    """The call, with its error if it cannot be read."""


@dataclass(frozen=True, slots=True)
class ReadingError:
    """Something is wrong with the reply."""

    error: str
    """The error, as it will be in `Message.errors`."""


@dataclass(frozen=True, slots=True)
class ReplyRead:
    """The reply is over."""

    message: Message
    """The message that `Renderer.parse` returns for the same tokens."""


ReplyEvent: TypeAlias = ReasoningText | ContentText | CallBegun | CallArguments | CallEnded | ReadingError | ReplyRead


def call_events(index: int, call: ToolCall) -> list[ReplyEvent]:
    """Return the events of a call that was read."""
    given = call.arguments
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    arguments = [CallArguments(index, text)] if text else []
    return [CallBegun(index, call.name, call.id), *arguments, CallEnded(index, call)]


_OVER = "the reply was ended: make a new reader with renderer.reader()"


class ReplyReader(ABC):
    """Reads one reply while it is sampled; see `Renderer.reader`.

    Events are never revised: their texts, concatenated, are the message's reasoning, content and arguments.
    """

    _is_over = False

    def feed(self, tokens: "int | Sequence[int] | NDArray[np.int32]") -> list[ReplyEvent]:
        """Return the events of the next tokens.

        Args:
            tokens: One token, or several of shape (n,).

        Raises:
            RuntimeError: If `end` was called already.
        """
        if self._is_over:
            raise RuntimeError(_OVER)
        return self._feed(np.atleast_1d(np.asarray(tokens, dtype=np.int32)))

    def end(self) -> list[ReplyEvent]:
        """Return the remaining events after the last token. The last event is a `ReplyRead`.

        Raises:
            RuntimeError: If `end` was called already.
        """
        if self._is_over:
            raise RuntimeError(_OVER)
        self._is_over = True
        return self._end()

    @abstractmethod
    def _feed(self, tokens: "NDArray[np.int32]") -> list[ReplyEvent]: ...

    @abstractmethod
    def _end(self) -> list[ReplyEvent]: ...


@dataclass(eq=False, repr=False)
class WholeReader(ReplyReader):
    """Reads a reply at its end, for families that cannot read partial replies.

    Args:
        parse: Parses the tokens of a reply.
    """

    _parse: "Callable[[NDArray[np.int32]], Message]"
    _parts: "list[NDArray[np.int32]]" = field(default_factory=list["NDArray[np.int32]"])

    def _feed(self, tokens: "NDArray[np.int32]") -> list[ReplyEvent]:
        self._parts.append(tokens)
        return []

    def _end(self) -> list[ReplyEvent]:
        message = self._parse(np.concatenate([np.zeros(0, dtype=np.int32), *self._parts]))
        events: list[ReplyEvent] = [ReasoningText(message.reasoning)] if message.reasoning else []
        events += [ContentText(message.content)] if message.content else []
        for index, call in enumerate(message.tool_calls):
            events += call_events(index, call)
        return [*events, *map(ReadingError, message.errors), ReplyRead(message)]


explain_arguments(globals())
