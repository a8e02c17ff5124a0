"""The events of one reply, which are sent while it is sampled, or after it.

The text of a reply only grows: reasoning comes before content, and what was sent stays true.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal, TypeAlias

from ...messages import ToolCall
from ...rendering.reading import CallEnded, ContentText, ReasoningText
from .._requests import ModelReply, ReplyPiece

Kind: TypeAlias = Literal["reasoning", "content"]
_PIECES = 8
_MIN_PIECE = 8


class ReplyStream(ABC):
    """Writes the events of one reply."""

    def __init__(self) -> None:
        self._open: Kind | None = None
        self._sent: dict[Kind, list[str]] = {"reasoning": [], "content": []}

    def feed(self, piece: ReplyPiece) -> Iterator[bytes]:
        """Yield the events of the next piece; the first one is a reply without a message.

        Args:
            piece: What was read of the reply.
        """
        match piece:
            case ModelReply():
                yield from self._start(piece)
            case ReasoningText(text):
                yield from self._text("reasoning", text)
            case ContentText(text):
                yield from self._text("content", text)
            case CallEnded(index, call):
                yield from self._call(index, call)

    def end(self, reply: ModelReply) -> Iterator[bytes]:
        """Yield the events of what was not sent yet, and of the end.

        Args:
            reply: The whole reply.

        Raises:
            RuntimeError: If it does not begin with what was sent.
        """
        texts: dict[Kind, str] = {"reasoning": reply.message.reasoning or "", "content": reply.message.content}
        for kind, text in texts.items():
            sent = "".join(self._sent[kind])
            if not text.startswith(sent):
                raise RuntimeError(f"the {kind} of a reply does not begin with what was sent of it")
            for piece in pieces(text[len(sent) :]):
                yield from self._text(kind, piece)
        if self._open is not None:
            yield from self._close(self._open, reply)
        yield from self._finish(reply)

    def _text(self, kind: Kind, text: str) -> Iterator[bytes]:
        if self._open != kind:
            if self._open is not None:
                yield from self._close(self._open, None)
            self._open = kind
            yield from self._begin(kind)
        self._sent[kind].append(text)
        yield from self._delta(kind, text)

    @abstractmethod
    def _start(self, begun: ModelReply) -> Iterator[bytes]:
        """Yield the events before a reply."""

    @abstractmethod
    def _begin(self, kind: Kind) -> Iterator[bytes]:
        """Yield the events before a text."""

    @abstractmethod
    def _delta(self, kind: Kind, text: str) -> Iterator[bytes]:
        """Yield the events of a part of a text."""

    @abstractmethod
    def _close(self, kind: Kind, reply: ModelReply | None) -> Iterator[bytes]:
        """Yield the events after a text; the reply is None if it goes on."""

    def _call(self, index: int, call: ToolCall) -> Iterator[bytes]:
        """Yield the events of a call, if the protocol takes them before the end of the reply."""
        yield from ()

    @abstractmethod
    def _finish(self, reply: ModelReply) -> Iterator[bytes]:
        """Yield the events of everything but the texts, and of the end."""


def pieces(text: str) -> list[str]:
    """Return a text in up to eight pieces, the deltas of a stream."""
    size = max(_MIN_PIECE, -(-len(text) // _PIECES))
    return [text[i : i + size] for i in range(0, len(text), size)]
