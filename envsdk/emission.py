"""The pieces that a conversation is written with, and the tokens that they give.

A renderer writes a message as a few pieces: *scaffold* (text of the family's own, in which control tokens are meant)
and *content* (somebody's text, in which nothing is). Text next to text is encoded as one, because byte-pair merges
cross that seam. Everything else about a rendering is read off the same pieces: where a message starts, who wrote which
token.
"""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .tokenizers import Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Piece(NamedTuple):
    """A control token, or a text that stands between two of them."""

    text: str
    control: int
    """The control token's id, or -1 for text."""
    message: int
    role: str
    is_sampled: bool
    is_content: bool


class Span(NamedTuple):
    """A run of tokens that are alike."""

    start: int
    stop: int
    message: int
    """The index of the message; -1 for what belongs to none (a list of tools without a system message)."""
    role: str
    is_sampled: bool
    """Whether a model would have sampled them."""
    is_content: bool
    """Whether they are somebody's text, and not the family's scaffold."""


class Encoder:
    """Encodes text and scaffold for one renderer, and remembers the scaffold, of which there is little.

    Args:
        tokenizer: The tokenizer.
        unsafe_content: Whether control tokens are matched in content, too, as chat templates do.
    """

    def __init__(self, tokenizer: Tokenizer, *, unsafe_content: bool = False) -> None:
        self.tokenizer = tokenizer
        self.unsafe_content = unsafe_content
        # A longer name wins over one that it starts with, as in the `tokenizers` library.
        names = sorted(tokenizer.control_tokens, key=len, reverse=True)
        self._control_token = re.compile("(" + "|".join(map(re.escape, names)) + ")")
        self._splits: dict[str, tuple[tuple[str, int], ...]] = {}
        self._encoded: dict[str, NDArray[np.int32]] = {}
        self._single = {i: np.array([i], dtype=np.int32) for i in tokenizer.control_tokens.values()}

    def split(self, scaffold: str) -> tuple[tuple[str, int], ...]:
        """Split scaffold at its control tokens: (text, -1) or (name, id)."""
        parts = self._splits.get(scaffold)
        if parts is None:
            parts = self._splits[scaffold] = tuple(self._find(scaffold))
        return parts

    def split_content(self, text: str) -> Sequence[tuple[str, int]]:
        """Content is one text; with `unsafe_content` it is split like scaffold."""
        return tuple(self._find(text)) if self.unsafe_content else ((text, -1),)

    def _find(self, text: str) -> Iterator[tuple[str, int]]:
        for index, part in enumerate(self._control_token.split(text)):
            if index % 2:
                yield part, self.tokenizer.token_id(part)
            elif part:
                yield part, -1

    def control(self, token: int) -> "NDArray[np.int32]":
        """A control token as an array."""
        return self._single[token]

    def encode(self, text: str, *, remember: bool) -> "NDArray[np.int32]":
        """Encode plain text; scaffold is worth remembering."""
        tokens = self._encoded.get(text) if remember else None
        if tokens is None:
            tokens = self.tokenizer.encode(text)
            if remember:
                self._encoded[text] = tokens
        return tokens


class Emission:
    """What was written so far. Nothing is encoded until `tokens` is asked for."""

    __slots__ = ("_encoder", "_message", "_pieces", "_role", "_starts", "is_sampled")

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._pieces: list[Piece] = []
        self._starts: list[int] = []
        self._message = -1
        self._role = "system"
        self.is_sampled = False
        """Whether what is written now is what a model would sample."""

    def begin(self, message: int, role: str) -> None:
        """Begin a message; what follows belongs to it."""
        self._starts.append(len(self._pieces))
        self.attribute(message, role)

    def attribute(self, message: int, role: str) -> None:
        """What follows belongs to that message, though none begins here."""
        self._message, self._role = message, role

    def scaffold(self, text: str) -> None:
        """Write the family's own text; names of control tokens in it become control tokens."""
        for part, control in self._encoder.split(text):
            self._pieces.append(Piece(part, control, self._message, self._role, self.is_sampled, False))

    def content(self, text: str) -> None:
        """Write somebody's text; it is never a control token."""
        if text:
            for part, control in self._encoder.split_content(text):
                self._pieces.append(Piece(part, control, self._message, self._role, self.is_sampled, True))

    def text(self) -> str:
        """What was written, as it will be encoded; control tokens by their names."""
        normalize = self._encoder.tokenizer.normalize
        return "".join(
            run[0].text if run[0].control >= 0 else normalize("".join(p.text for p in run)) for _, run in self._runs()
        )

    def tokens(self) -> "tuple[NDArray[np.int32], list[int]]":
        """Encode.

        Returns:
            The tokens, int32 of shape (n,), and for each message that was begun the index of its first token.
        """
        chunks: list[NDArray[np.int32]] = []
        token_of_piece: dict[int, int] = {}
        length = 0
        for first, run in self._runs():
            token_of_piece[first] = length
            chunk = self._encode(run)
            chunks.append(chunk)
            length += len(chunk)
        token_of_piece[len(self._pieces)] = length
        tokens = np.concatenate(chunks) if chunks else np.empty(0, dtype=np.int32)
        starts = [token_of_piece[p] if p in token_of_piece else self._start_inside(p) for p in self._starts]
        return tokens, starts

    def spans(self) -> list[Span]:
        """Who wrote which tokens; a token across a seam belongs to the later part."""
        spans: list[Span] = []
        for start, stop, piece in self._located():
            same = piece[2:]
            if spans and spans[-1][2:] == same and spans[-1].stop == start:
                spans[-1] = spans[-1]._replace(stop=stop)
            elif start < stop:
                spans.append(Span(start, stop, *same))
        return spans

    def _runs(self) -> Iterator[tuple[int, list[Piece]]]:
        """The pieces, text next to text together, each run with the index of its first piece."""
        run: list[Piece] = []
        first = 0
        for index, piece in enumerate(self._pieces):
            if piece.control < 0:
                if not run:
                    first = index
                run.append(piece)
                continue
            if run:
                yield first, run
                run = []
            yield index, [piece]
        if run:
            yield first, run

    def _encode(self, run: list[Piece]) -> "NDArray[np.int32]":
        piece = run[0]
        if piece.control >= 0:
            return self._encoder.control(piece.control)
        if len(run) == 1:
            return self._encoder.encode(piece.text, remember=not piece.is_content)
        return self._encoder.encode("".join([p.text for p in run]), remember=not any(p.is_content for p in run))

    def _located(self) -> Iterator[tuple[int, int, Piece]]:
        """Each piece with its first token and the one after its last."""
        at = 0
        for _, run in self._runs():
            if len(run) == 1:
                length = len(self._encode(run))
                yield at, at + length, run[0]
                at += length
                continue
            bounds = self._bounds(run)
            for start, stop, piece in zip(bounds[:-1], bounds[1:], run, strict=True):
                yield at + start, at + stop, piece
            at += bounds[-1]

    def _bounds(self, run: list[Piece]) -> list[int]:
        """Where the parts of one text begin, in tokens: a token belongs to the part of its last byte."""
        tokenizer = self._encoder.tokenizer
        text, seams = "", [0]
        for piece in run:
            text += piece.text
            seams.append(len(tokenizer.normalize(text).encode()))
        _, ends = tokenizer.encode_with_ends(text)
        # The first token that ends past a seam is the first of the part behind it.
        return [int(np.searchsorted(ends, seam, side="right")) for seam in seams[:-1]] + [len(ends)]

    def _start_inside(self, index: int) -> int:
        """The first token of a piece that stands inside a text."""
        for position, (start, _, _) in enumerate(self._located()):
            if position == index:
                return start
        raise IndexError(index)
