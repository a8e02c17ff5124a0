"""Cuts a reply at the control tokens of its family, whole or as it comes."""

import codecs
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
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
    """Whether there is a stop token."""
    overrun: str
    """The text after the first stop token."""


class Splitter:
    """Cuts one reply, of which any number of tokens comes at a time.

    Args:
        marks_in: Returns the number of each token among the marks, counted from 1, or 0 for other tokens.
        token_bytes: Returns the bytes of each token.
        marks: The control tokens of the family.
        stops: Those that end a reply.
    """

    def __init__(
        self,
        marks_in: "Callable[[NDArray[np.int32]], NDArray[np.uint8]]",
        token_bytes: "Callable[[NDArray[np.int32]], list[bytes]]",
        marks: Sequence[str],
        stops: Sequence[str],
    ) -> None:
        self._marks_in = marks_in
        self._token_bytes = token_bytes
        self._marks = marks
        self._stops = stops
        self._held = b""
        """The beginning of a character that is cut."""
        self._is_ended = False
        self._overrun: list[bytes] = []

    def feed(self, tokens: "NDArray[np.int32]") -> list[Segment]:
        """Return the next segments; a character that is cut is held back, and nothing comes after a stop token."""
        pieces = self._token_bytes(tokens)
        if self._is_ended:
            self._overrun += pieces
            return []
        segments: list[Segment] = []
        marks = self._marks_in(tokens)
        control, start = "", 0
        for position in marks.nonzero()[0].tolist():
            data = self._held + b"".join(pieces[start:position])
            self._held = b""
            segments.append(Segment(control, data.decode("utf-8", "replace")))
            control, start = self._marks[int(marks[position]) - 1], position + 1
            if control in self._stops:
                self._is_ended, self._overrun = True, pieces[start:]
                return segments
        segments.append(Segment(control, self._begun(self._held + b"".join(pieces[start:]))))
        return segments

    def end(self) -> SplitReply:
        """Return the rest of the reply, and how it ended."""
        rest = "" if self._is_ended else self._held.decode("utf-8", "replace")
        overrun = b"".join(self._overrun).decode("utf-8", errors="replace")
        return SplitReply([Segment("", rest)] if rest else [], self._is_ended, overrun)

    def _begun(self, data: bytes) -> str:
        """Return the text of bytes that may go on; a character that is cut is held back."""
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._held = data[used:]
        return text
