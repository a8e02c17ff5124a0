"""Reading a reply while it is sampled: what a renderer's reader reports, and the readers of all renderers.

Knows nothing about formats: a family gives a `Reading`, which reads a reply that is cut at its control tokens.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from ..messages import Message, ToolCall
from ._splitting import Segment, SplitReply, Splitter

__all__ = [
    "CallArguments",
    "CallBegun",
    "CallEnded",
    "ContentText",
    "Reading",
    "ReadingError",
    "ReasoningText",
    "ReplyEvent",
    "ReplyRead",
    "ReplyReader",
    "call_events",
]

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """More reasoning."""

    text: str
    """What was added to the reasoning."""


@dataclass(frozen=True, slots=True)
class ContentText:
    """More content."""

    text: str
    """What was added to the content."""


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call begins; the events of one call follow each other."""

    index: int
    """Which call of the reply it is, from 0."""
    name: str
    """The tool's name; empty if the call cannot be read."""
    id: str | None
    """The call's id, in model families that have call ids."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the text of a call's arguments: a JSON object, or the text that was sampled instead of one."""

    index: int
    """Which call of the reply it is, from 0."""
    text: str
    """What was added to the text."""


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call was read."""

    index: int
    """Which call of the reply it is, from 0."""
    call: ToolCall
    """The call, with its error if it cannot be read."""


@dataclass(frozen=True, slots=True)
class ReadingError:
    """Something is wrong with the reply."""

    error: str
    """What is wrong, as it will be in `Message.errors`."""


@dataclass(frozen=True, slots=True)
class ReplyRead:
    """The reply is over."""

    message: Message
    """What `Renderer.parse` returns for the same tokens."""


ReplyEvent: TypeAlias = ReasoningText | ContentText | CallBegun | CallArguments | CallEnded | ReadingError | ReplyRead


def call_events(index: int, call: ToolCall) -> list[ReplyEvent]:
    """Return the events of a call that was read."""
    given = call.arguments
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    arguments = [CallArguments(index, text)] if text else []
    return [CallBegun(index, call.name, call.id), *arguments, CallEnded(index, call)]


class ReplyReader(ABC):
    """Reads one reply while it is sampled; see `Renderer.reader`.

    What was reported stays true: the texts of the events, joined, are the message's reasoning, content and arguments.
    """

    @abstractmethod
    def feed(self, tokens: "int | Sequence[int] | NDArray[np.int32]") -> list[ReplyEvent]:
        """Return what the next tokens report.

        Args:
            tokens: One token, or several of shape (n,).

        Raises:
            RuntimeError: If the reply was ended.
        """

    @abstractmethod
    def end(self) -> list[ReplyEvent]:
        """Return the rest, after the last token; the last event is a `ReplyRead`.

        Raises:
            RuntimeError: If the reply was ended already.
        """


class Reading(Protocol):
    """A reply that is being read, cut at its control tokens."""

    def feed(self, segments: Iterable[Segment]) -> None:
        """Read more of the reply."""
        ...

    def end(self, segments: Iterable[Segment] = ()) -> None:
        """Read the last part of the reply."""
        ...

    def events(self) -> list[ReplyEvent]:
        """Return what was read since the last call."""
        ...

    @property
    def has_reasoning(self) -> bool:
        """Whether there is reasoning, also an empty one."""
        ...

    def message(self, sampled: SplitReply) -> Message:
        """Return the message after everything was read; `sampled` specifies how the reply ended."""
        ...


class StreamedReader(ReplyReader):
    """Reads a reply as it comes.

    Args:
        reading: Reads the text; it has read the beginning of the reply in the prompt.
        splitter: Cuts the tokens at the control tokens.
    """

    def __init__(self, reading: Reading, splitter: Splitter) -> None:
        self._reading = reading
        self._splitter = splitter
        self._errors: set[str] = set()
        self._is_over = False

    def feed(self, tokens: "int | Sequence[int] | NDArray[np.int32]") -> list[ReplyEvent]:
        """See `ReplyReader.feed`."""
        _refuse_more(self._is_over)
        self._reading.feed(self._splitter.feed(_array(tokens)))
        return self._reported()

    def end(self) -> list[ReplyEvent]:
        """See `ReplyReader.end`."""
        _refuse_more(self._is_over)
        self._is_over = True
        split = self._splitter.end()
        self._reading.end(split.segments)
        events, message = self._reported(), self._reading.message(split)
        new = [ReadingError(error) for error in message.errors if error not in self._errors]
        return [*events, *new, ReplyRead(message)]

    def _reported(self) -> list[ReplyEvent]:
        events = self._reading.events()
        self._errors.update(event.error for event in events if isinstance(event, ReadingError))
        return events


class WholeReader(ReplyReader):
    """Reads a reply at its end, for families that cannot read a part of one.

    Args:
        parse: Parses the tokens of a reply.
    """

    def __init__(self, parse: "Callable[[NDArray[np.int32]], Message]") -> None:
        self._parse = parse
        self._parts: list[NDArray[np.int32]] = []
        self._is_over = False

    def feed(self, tokens: "int | Sequence[int] | NDArray[np.int32]") -> list[ReplyEvent]:
        """See `ReplyReader.feed`."""
        _refuse_more(self._is_over)
        self._parts.append(_array(tokens))
        return []

    def end(self) -> list[ReplyEvent]:
        """See `ReplyReader.end`."""
        _refuse_more(self._is_over)
        self._is_over = True
        message = self._parse(np.concatenate([np.zeros(0, dtype=np.int32), *self._parts]))
        return message_events(message)


def message_events(message: Message) -> list[ReplyEvent]:
    """Return the events of a whole reply."""
    events: list[ReplyEvent] = [ReasoningText(message.reasoning)] if message.reasoning else []
    events += [ContentText(message.content)] if message.content else []
    for index, call in enumerate(message.tool_calls):
        events += call_events(index, call)
    return [*events, *map(ReadingError, message.errors), ReplyRead(message)]


def _array(tokens: "int | Sequence[int] | NDArray[np.int32]") -> "NDArray[np.int32]":
    return np.atleast_1d(np.asarray(tokens, dtype=np.int32))


def _refuse_more(is_over: bool) -> None:
    if is_over:
        raise RuntimeError("the reply was ended: make a new reader with renderer.reader()")
