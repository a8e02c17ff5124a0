"""The pieces that a conversation is written with, and the tokens that they give.

A renderer writes a message as a few pieces: *scaffold* (text of the family's own, in which control tokens are meant)
and *content* (somebody's text, in which nothing is). Text next to text is encoded as one, because byte-pair merges
cross that seam. Everything else about a rendering is read off the same pieces: where a message starts, who wrote which
token.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from .tokenizers import Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray


_TEXT, _ENCODED = -1, -2
_Value = TypeVar("_Value")

MAX_REMEMBERED = 1024
"""How many texts of scaffold an encoder remembers. A family has a few dozen, but some of them hold ids and names."""


class Piece(NamedTuple):
    """A control token, or a text that stands between two of them."""

    text: str
    control: int
    """The control token's id, -1 for text, -2 for text that is encoded already."""
    is_content: bool
    tokens: "NDArray[np.int32] | None" = None
    """What it is encoded as, if it is already."""


class Mark(NamedTuple):
    """From which piece on what is written belongs to whom."""

    piece: int
    message: int
    role: str
    is_sampled: bool


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
    """Encodes text and scaffold for one renderer, and remembers the scaffold that it met last.

    Args:
        tokenizer: The tokenizer.
        unsafe_content: Whether control tokens are matched in content, too, as chat templates do.
    """

    def __init__(self, tokenizer: Tokenizer, *, unsafe_content: bool = False) -> None:
        self.tokenizer = tokenizer
        self.unsafe_content = unsafe_content
        # A longer name wins over one that it starts with, as in the `tokenizers` library.
        names = sorted(tokenizer.control_tokens, key=len, reverse=True)
        self._control_token = re.compile("(" + ("|".join(map(re.escape, names)) or "(?!)") + ")")
        self._scaffolds: dict[str, tuple[Piece, ...]] = {}
        self._encoded: dict[str, NDArray[np.int32]] = {}
        self.control_names = {token: name for name, token in tokenizer.control_tokens.items()}
        self._single = {i: np.array([i], dtype=np.int32) for i in tokenizer.control_tokens.values()}

    def scaffold(self, text: str) -> tuple[Piece, ...]:
        """Scaffold cut at its control tokens."""
        pieces = self._scaffolds.get(text)
        if pieces is None:
            pieces = _remember(self._scaffolds, text, tuple(self._cut(text, is_content=False)))
        return pieces

    def content(self, text: str) -> tuple[Piece, ...]:
        """Content, which is one text; with `unsafe_content` it is cut like scaffold."""
        return tuple(self._cut(text, is_content=True)) if self.unsafe_content else (Piece(text, _TEXT, True),)

    def _cut(self, text: str, *, is_content: bool) -> Iterator[Piece]:
        for index, part in enumerate(self._control_token.split(text)):
            if index % 2:
                yield Piece(part, self.tokenizer.token_id(part), is_content)
            elif part:
                yield Piece(part, _TEXT, is_content)

    def control(self, token: int) -> "NDArray[np.int32]":
        """A control token as an array."""
        return self._single[token]

    def encode(self, text: str, *, remember: bool) -> "NDArray[np.int32]":
        """Encode plain text; scaffold is worth remembering."""
        tokens = self._encoded.get(text) if remember else None
        if tokens is None:
            tokens = self.tokenizer.encode(text)
            if remember:
                _remember(self._encoded, text, tokens)
        return tokens


def _remember(memory: dict[str, _Value], text: str, value: _Value) -> _Value:
    """Remember a value; of too many, none stays, which threads that share the encoder may do at any time."""
    if len(memory) >= MAX_REMEMBERED:
        memory.clear()
    memory[text] = value
    return value


class Emission:
    """What was written so far. Nothing is encoded until `tokens` is asked for."""

    __slots__ = ("_encoder", "_marks", "_pieces", "_starts")

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._pieces: list[Piece] = []
        self._starts: list[int] = []
        self._marks: list[Mark] = [Mark(0, -1, "system", False)]

    def begin(self, message: int, role: str) -> None:
        """Begin a message; what follows belongs to it."""
        self._starts.append(len(self._pieces))
        self.attribute(message, role)

    def attribute(self, message: int, role: str, *, is_sampled: bool = False) -> None:
        """What follows belongs to that message, though none begins here; a model would have sampled it, or not."""
        self._marks.append(Mark(len(self._pieces), message, role, is_sampled))

    def cut(self) -> None:
        """What follows is encoded apart from what was written, though it is text next to text."""
        self._pieces.append(Piece("", _ENCODED, False, np.empty(0, dtype=np.int32)))

    def scaffold(self, text: str) -> None:
        """Write the family's own text; names of control tokens in it become control tokens."""
        self._pieces.extend(self._encoder.scaffold(text))

    def content(self, text: str) -> None:
        """Write somebody's text; it is never a control token."""
        if text:
            self._pieces.extend(self._encoder.content(text))

    def encoded(self, tokens: "NDArray[np.int32]", *, content_behind: int | None) -> None:
        """Write what another library encoded; text after the control token `content_behind` is content."""
        encoder, start, is_content = self._encoder, 0, False
        names = encoder.control_names
        controls = [position for position, token in enumerate(tokens.tolist()) if token in names]
        for position in (*controls, len(tokens)):
            if position > start:
                text = tokens[start:position]
                self._pieces.append(Piece(encoder.tokenizer.decode(text), _ENCODED, is_content, text))
            if position < len(tokens):
                token = int(tokens[position])
                self._pieces.append(Piece(names[token], token, False))
                is_content = token == content_behind
            start = position + 1

    def cut_at(self, mark: str) -> None:
        """Forget what was written from the last `mark` in a content on."""
        index = max(i for i, piece in enumerate(self._pieces) if piece.is_content and mark in piece.text)
        piece = self._pieces[index]
        self._pieces[index:] = [Piece(piece.text[: piece.text.rindex(mark)], _TEXT, True)]

    def text(self) -> str:
        """What was written, as it will be encoded; control tokens by their names."""
        normalize = self._encoder.tokenizer.normalize
        return "".join(
            normalize("".join([p.text for p in run])) if run[0].control == _TEXT else run[0].text
            for run in self._runs()
        )

    def tokens(self) -> "tuple[NDArray[np.int32], list[int]]":
        """Encode.

        Returns:
            The tokens, int32 of shape (n,), and for each message that was begun the index of its first token.
        """
        encoder = self._encoder
        chunks: list[NDArray[np.int32]] = []
        token_of_piece: dict[int, int] = {}
        run: list[str] = []
        is_scaffold, length, index = True, 0, -1
        for index, (text, control, is_content, encoded) in enumerate(self._pieces):  # the loop of `_runs`, for speed
            if control == _TEXT:
                if not run:
                    token_of_piece[index] = length
                run.append(text)
                is_scaffold = is_scaffold and not is_content
                continue
            if run:
                chunks.append(encoder.encode("".join(run), remember=is_scaffold))
                length += len(chunks[-1])
                run, is_scaffold = [], True
            token_of_piece[index] = length
            chunks.append(encoder.control(control) if encoded is None else encoded)
            length += len(chunks[-1])
        if run:
            chunks.append(encoder.encode("".join(run), remember=is_scaffold))
            length += len(chunks[-1])
        token_of_piece[index + 1] = length
        tokens = np.concatenate(chunks) if chunks else np.empty(0, dtype=np.int32)
        starts = [token_of_piece[p] if p in token_of_piece else self._start_inside(p) for p in self._starts]
        return tokens, starts

    def spans(self) -> list[Span]:
        """Who wrote which tokens; a token across a seam belongs to the later part."""
        spans: list[Span] = []
        marks = [*self._marks, Mark(len(self._pieces), -1, "", False)]
        following = 1
        for index, (start, stop, piece) in enumerate(self._located()):
            while marks[following].piece <= index:
                following += 1
            _, message, role, is_sampled = marks[following - 1]
            span = Span(start, stop, message, role, is_sampled, piece.is_content)
            if spans and spans[-1][2:] == span[2:]:
                spans[-1] = spans[-1]._replace(stop=stop)
            elif start < stop:
                spans.append(span)
        return spans

    def _runs(self) -> Iterator[list[Piece]]:
        """The pieces, text next to text together."""
        run: list[Piece] = []
        for piece in self._pieces:
            if piece.control == _TEXT:
                run.append(piece)
                continue
            if run:
                yield run
                run = []
            yield [piece]
        if run:
            yield run

    def _located(self) -> Iterator[tuple[int, int, Piece]]:
        """Each piece with its first token and the one after its last."""
        at = 0
        for run in self._runs():
            bounds = (
                self._bounds(run)
                if run[0].control == _TEXT
                else [0, 1 if run[0].tokens is None else len(run[0].tokens)]
            )
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
        return next(start for position, (start, _, _) in enumerate(self._located()) if position == index)
