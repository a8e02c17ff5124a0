"""Streams a reply to a program while it is sampled, up to where the rest of the reply cannot change it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..messages import ToolCall
from ..rendering.reading import CallEnded, ContentText, ReasoningText, ReplyEvent, ReplyReader
from ._requests import ReplyPiece


@dataclass(eq=False, repr=False)
class LiveReply:
    """A reply that is being sampled.

    Args:
        reader: Reads its tokens.
        on_piece: Sends a piece to the program.
        stops: The program's stop strings; the content ends before the first one.
        call_id: Returns the id of a call, by its index among those that can be read; None if calls are text: they are
            sent at the end, with what follows them.
    """

    reader: ReplyReader
    _on_piece: Callable[[ReplyPiece], None]
    _stops: Sequence[str]
    _call_id: Callable[[int], str] | None
    _held: str = ""
    _is_stopped: bool = False
    _calls: int = 0

    def give(self, events: Iterable[ReplyEvent]) -> None:
        """Send the program what was read, without text that may belong to a stop string.

        The text of a call that cannot be read is content, at the end of the reply.
        """
        for event in events:
            if isinstance(event, ReasoningText):
                self._on_piece(event)
            elif isinstance(event, CallEnded) and self._call_id is None:
                self._is_stopped = True
            elif isinstance(event, CallEnded) and event.call.name and self._call_id is not None:
                call = ToolCall(name=event.call.name, arguments=event.call.arguments, id=self._call_id(self._calls))
                self._on_piece(CallEnded(self._calls, call))
                self._calls += 1
            elif isinstance(event, ContentText) and not self._is_stopped:
                text = self._held + event.text
                found: list[int] = [at for stop in self._stops if (at := text.find(stop)) >= 0]
                self._is_stopped = bool(found)
                held_length = max(map(len, self._stops), default=1) - 1
                end = min([*found, max(0, len(text) - held_length)])
                self._held = text[end:]
                if end:
                    self._on_piece(ContentText(text[:end]))
