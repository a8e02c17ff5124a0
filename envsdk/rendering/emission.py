"""The pieces that a conversation is written with, and the tokens that they become.

A renderer writes a message as a few pieces: *scaffold* (the family's own text, in which names of control tokens are
control tokens) and *content* (text of a message, in which they never are). Adjacent text is encoded as one string,
because byte-pair merges cross the seam between two pieces. Everything else about a rendering is derived from the same
pieces: where each message starts, and which tokens are scaffold, content or sampled.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from ..errors import RenderError
from ..images import Image
from .tokenizers import Tokenizer

__all__ = ["Attribution", "Emission", "Encoder", "Piece", "Span"]

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._vision import Vision


_TEXT = -1
_Value = TypeVar("_Value")

MAX_REMEMBERED = 1024
"""How many scaffold texts an encoder caches. A family has a few dozen, but some of them contain ids and names."""


class Piece(NamedTuple):
    """A control token, or a text between two of them."""

    text: str
    """The text, or the name of the control token."""
    control: int
    """The control token's id; -1 for text. The placeholders of an image are one piece."""
    is_content: bool
    """Whether the text is content, in which control tokens do not count."""
    tokens: "NDArray[np.int32] | None" = None
    """Its tokens, shape (n,); None for text that is not encoded yet."""


class Attribution(NamedTuple):
    """The message that the pieces from `piece` on belong to."""

    piece: int
    """The index of the first piece."""
    message: int
    """The index of the message; -1 for none."""
    role: str
    """The role of its author."""
    is_sampled: bool
    """Whether a model would have sampled the pieces."""


_BEFORE_MESSAGES = Attribution(0, -1, "system", False)


class Span(NamedTuple):
    """A run of tokens with the same attribution."""

    start: int
    """The position of the first token."""
    stop: int
    """The position after the last token."""
    message: int
    """The index of the message; -1 for tokens that belong to none (a list of tools without a system message)."""
    role: str
    """The role of its author."""
    is_sampled: bool
    """Whether a model would have sampled them."""
    is_content: bool
    """Whether they are the text of a message, and not the family's scaffold."""


class Encoder:
    """Encodes text and scaffold for one renderer, and caches recent scaffold.

    Args:
        tokenizer: The tokenizer.
        unsafe_content: Whether control tokens are also matched in content, as chat templates do.
        vision: What images are written with; None for a renderer that refuses them.
    """

    def __init__(self, tokenizer: Tokenizer, *, unsafe_content: bool = False, vision: "Vision | None" = None) -> None:
        self.tokenizer = tokenizer
        self.vision = vision
        self.unsafe_content = unsafe_content
        # A longer name wins over one that it starts with, as in the `tokenizers` library.
        names = sorted(tokenizer.control_tokens, key=len, reverse=True)
        self._control_token = re.compile("(" + ("|".join(map(re.escape, names)) or "(?!)") + ")")
        self.scaffolds: dict[str, tuple[Piece, ...]] = {}
        """The recent scaffold, cut at its control tokens."""
        self.encoded: dict[str, NDArray[np.int32]] = {}
        """The tokens of the recent texts of scaffold between two control tokens."""
        self._images: dict[str, tuple[Piece, ...]] = {}
        self._image_texts: dict[str, tuple[Piece, ...]] = {}
        self._control_names = {token: name for name, token in tokenizer.control_tokens.items()}
        self._single = {token: np.array([token], dtype=np.int32) for token in self._control_names}

    def scaffold(self, text: str) -> tuple[Piece, ...]:
        """Cut scaffold at its control tokens."""
        pieces = self.scaffolds.get(text)
        if pieces is None:
            pieces = _remember(self.scaffolds, text, tuple(self._cut(text, is_content=False)))
        return pieces

    def content(self, text: str) -> tuple[Piece, ...]:
        """Return content as one piece of text; with `unsafe_content`, cut it like scaffold."""
        return tuple(self._cut(text, is_content=True)) if self.unsafe_content else (Piece(text, _TEXT, True),)

    def controls_in(self, text: str) -> list[str]:
        """Return the names of control tokens in a text, each once."""
        return [*dict.fromkeys(match[0] for match in self._control_token.finditer(text))]

    def image(self, image: Image) -> tuple[Piece, ...]:
        """Return what is written for an image in place of the token that a chat template writes."""
        pieces = self._images.get(image.sha256)
        if pieces is None:
            if self.vision is None:
                raise RenderError(f"{image!r} cannot be written: the renderer has no processor of images")
            pieces = _remember(self._images, image.sha256, self._of_image(self.vision.process(image).text))
        return pieces

    def _of_image(self, text: str) -> tuple[Piece, ...]:
        """Cut what is written for an image, the same for images of the same size; equal placeholders are one piece."""
        pieces = self._image_texts.get(text)
        if pieces is None:
            cut = groupby(self._cut(text, is_content=False), key=_control_of)
            pieces = _remember(self._image_texts, text, tuple(_repeated([*run]) for _, run in cut))
        return pieces

    def _cut(self, text: str, *, is_content: bool) -> Iterator[Piece]:
        for index, part in enumerate(self._control_token.split(text)):
            if index % 2:
                token = self.tokenizer.token_id(part)
                yield Piece(part, token, is_content, self._single[token])
            elif part:
                yield Piece(part, _TEXT, is_content)

    def is_control(self, token: int) -> bool:
        """Return whether an id is that of a control token."""
        return token in self._control_names

    def control(self, token: int) -> Piece:
        """Return a control token as a piece."""
        return Piece(self._control_names[token], token, False, self._single[token])

    def text(self, pieces: Sequence[Piece]) -> "NDArray[np.int32]":
        """Encode adjacent texts as one string; only scaffold is cached."""
        text, _, is_content, _ = pieces[0]
        if len(pieces) > 1:
            for other, _, is_other_content, _ in pieces[1:]:
                text += other
                is_content = is_content or is_other_content
        if is_content:
            return self.tokenizer.encode(text)
        tokens = self.encoded.get(text)
        return _remember(self.encoded, text, self.tokenizer.encode(text)) if tokens is None else tokens


def _control_of(piece: Piece) -> int:
    return piece.control


def _repeated(run: Sequence[Piece]) -> Piece:
    """Return equal pieces as one."""
    first = run[0]
    if first.tokens is None or len(run) == 1:
        return first
    return first._replace(text=first.text * len(run), tokens=np.repeat(first.tokens, len(run)))


def _remember(memory: dict[str, _Value], text: str, value: _Value) -> _Value:
    """Cache a value. A full cache is cleared, which threads that share the encoder may do at any time."""
    if len(memory) >= MAX_REMEMBERED:
        memory.clear()
    memory[text] = value
    return value


class Emission:
    """The pieces written so far. Nothing is encoded until `tokens` is called."""

    __slots__ = ("_attributions", "_encoder", "_message", "_pending", "_pieces", "_starts")

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._pieces: list[Piece] = []
        self._starts: list[int] = []
        self._attributions: list[Attribution] = [_BEFORE_MESSAGES]
        self._message = -1
        self._pending: list[Image] = []  # the images of the message that are not written yet, the next one last

    def begin(self, message: int, role: str, images: Sequence[Image] = ()) -> None:
        """Begin a message: the following pieces belong to it.

        Its scaffold has one token for each of its images, as chat templates write it; the placeholders replace it.

        Raises:
            RenderError: If the message before had more images than its scaffold has such tokens.
        """
        if self._pending:
            self._refuse_pending()
        self._message, self._pending = message, [*reversed(images)] if images else []
        self._starts.append(len(self._pieces))
        self.attribute(message, role)

    def attribute(self, message: int, role: str, *, is_sampled: bool = False) -> None:
        """Attribute the following pieces to a message without beginning one; a model would have sampled them or not."""
        self._attributions.append(Attribution(len(self._pieces), message, role, is_sampled))

    def cut(self) -> None:
        """Encode the following text apart from the text before it."""
        self._pieces.append(Piece("", _TEXT, False, np.empty(0, dtype=np.int32)))

    def scaffold(self, text: str) -> None:
        """Write the family's own text; names of control tokens in it become control tokens."""
        pieces = self._encoder.scaffolds.get(text) or self._encoder.scaffold(text)
        if self._encoder.vision is None:
            self._pieces.extend(pieces)
        else:
            for piece in pieces:
                self._pieces.extend(self._with_image(piece, self._encoder.vision))

    def _with_image(self, piece: Piece, vision: "Vision") -> Sequence[Piece]:
        """Return a piece of scaffold, or what is written for the next image in place of the template's token for it."""
        if piece.control < 0 or piece.text != vision.placeholder:
            return (piece,)
        if not self._pending:
            raise RenderError(f"message {self._message} is written with more images than it has")
        return self._encoder.image(self._pending.pop())

    def _refuse_pending(self) -> None:
        raise RenderError(
            f"message {self._message} has {len(self._pending)} images that the model family does not write there: "
            f"a message of this role, or after this one, cannot have images"
        )

    def content(self, text: str) -> None:
        """Write the text of a message; it never becomes a control token."""
        if text:
            self._pieces.extend(self._encoder.content(text))

    def encoded(self, tokens: "NDArray[np.int32]", *, content_after: int | None) -> None:
        """Write tokens that another library encoded; text after the control token `content_after` is content."""
        encoder, start, is_content = self._encoder, 0, False
        controls = [position for position, token in enumerate(tokens.tolist()) if encoder.is_control(token)]
        for position in (*controls, len(tokens)):
            if position > start:
                text = tokens[start:position]
                self._pieces.append(Piece(encoder.tokenizer.decode(text), _TEXT, is_content, text))
            if position < len(tokens):
                token = int(tokens[position])
                self._pieces.append(encoder.control(token))
                is_content = token == content_after
            start = position + 1

    def cut_at(self, mark: str) -> None:
        """Drop everything from the last `mark` in a content on."""
        index = max(i for i, piece in enumerate(self._pieces) if piece.is_content and mark in piece.text)
        piece = self._pieces[index]
        self._pieces[index:] = [Piece(piece.text[: piece.text.rindex(mark)], _TEXT, True)]

    def text(self) -> str:
        """Return the text as it will be encoded, with control tokens by their names."""
        normalize = self._encoder.tokenizer.normalize
        return "".join(
            normalize("".join([p.text for p in run])) if run[0].tokens is None else run[0].text
            for _, run in self._runs()
        )

    def tokens(self) -> "tuple[NDArray[np.int32], list[int]]":
        """Encode all pieces.

        Returns:
            The tokens, int32 of shape (n,), and the index of the first token of each message that was begun.

        Raises:
            RenderError: If images of the last message are not written.
        """
        if self._pending:
            self._refuse_pending()
        chunks: list[NDArray[np.int32]] = []
        token_of_piece: dict[int, int] = {}
        length = 0
        encode, encoded = self._encoder.text, self._encoder.encoded
        for first, run in self._runs():
            token_of_piece[first] = length
            text, _, is_content, chunk = run[0]
            if chunk is None and len(run) == 1 and not is_content:
                chunk = encoded.get(text)
            if chunk is None:
                chunk = encode(run)
            chunks.append(chunk)
            length += chunk.size
        token_of_piece[len(self._pieces)] = length
        tokens = np.concatenate(chunks) if chunks else np.empty(0, dtype=np.int32)
        starts = [token_of_piece[p] if p in token_of_piece else self._start_inside(p) for p in self._starts]
        return tokens, starts

    def spans(self) -> list[Span]:
        """Return the runs of tokens with their attribution; a token across a seam belongs to the later piece."""
        spans: list[Span] = []
        attributions = [*self._attributions, Attribution(len(self._pieces), -1, "", False)]
        following = 1
        for index, (start, stop, piece) in enumerate(self._located()):
            while attributions[following].piece <= index:
                following += 1
            _, message, role, is_sampled = attributions[following - 1]
            span = Span(start, stop, message, role, is_sampled, piece.is_content)
            if spans and spans[-1][2:] == span[2:]:
                spans[-1] = spans[-1]._replace(stop=stop)
            elif start < stop:
                spans.append(span)
        return spans

    def _runs(self) -> list[tuple[int, Sequence[Piece]]]:
        """Return the runs of pieces that are encoded together, with the index of the first piece of each.

        Adjacent texts that are not encoded yet are one run; every other piece is a run of its own.
        """
        pieces, start = self._pieces, 0
        runs: list[tuple[int, Sequence[Piece]]] = []
        for index, piece in enumerate(pieces):
            if piece[3] is not None:
                if start < index:
                    runs.append((start, pieces[start:index]))
                runs.append((index, (piece,)))
                start = index + 1
        if start < len(pieces):
            runs.append((start, pieces[start:]))
        return runs

    def _located(self) -> Iterator[tuple[int, int, Piece]]:
        """Yield each piece with the index of its first token and the index after its last one."""
        at = 0
        for _, run in self._runs():
            encoded = run[0].tokens
            bounds = self._bounds(run) if encoded is None else [0, len(encoded)]
            for start, stop, piece in zip(bounds[:-1], bounds[1:], run, strict=True):
                yield at + start, at + stop, piece
            at += bounds[-1]

    def _bounds(self, run: Sequence[Piece]) -> list[int]:
        """Return where the pieces of one text begin, in tokens: a token belongs to the piece of its last byte."""
        tokenizer = self._encoder.tokenizer
        text, seams = "", [0]
        for piece in run:
            text += piece.text
            seams.append(len(tokenizer.normalize(text).encode()))
        _, ends = tokenizer.encode_with_ends(text)
        # The first token that ends past a seam is the first token of the piece after it.
        return [int(np.searchsorted(ends, seam, side="right")) for seam in seams[:-1]] + [len(ends)]

    def _start_inside(self, index: int) -> int:
        """Return the first token of a piece inside a run of texts."""
        return next(start for position, (start, _, _) in enumerate(self._located()) if position == index)
