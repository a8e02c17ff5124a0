"""The pieces in which a renderer writes a conversation, their conversion to tokens, and the prompts made of these.

A renderer writes a message as a few pieces: *scaffold* (the family's own text, in which names of control tokens become
control tokens) and *content* (text of a message, in which they never do). Adjacent text is encoded as one string,
because byte-pair merges cross the seam between two pieces. Everything else about a rendering is derived from the same
pieces: where each message starts, and which tokens are scaffold, content or sampled.
"""

import copy
import operator
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .._arguments import explain_arguments
from ..errors import RenderError
from ..images import Image, PlacedImage
from ..messages import Message, ToolSchema
from .tokenizers import Tokenizer

__all__ = ["Attribution", "Emission", "EmittedPiece", "Encoder", "Span"]

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._vision import Vision


_TEXT = -1


class EmittedPiece(NamedTuple):
    """A control token, or the text between two of them."""

    text: str
    """The text, or the name of the control token."""
    control: int
    """The control token's id; -1 for text. The placeholders of an image are one piece."""
    is_content: bool
    """True if the text is content, in which names of control tokens are plain text."""
    tokens: "NDArray[np.int32] | None" = None
    """Its tokens, shape (n,); None for text that is not encoded yet."""


class Attribution(NamedTuple):
    """The attribution of the pieces from `piece` on to a message."""

    piece: int
    """The index of the first piece."""
    message: int
    """The index of the message; -1 for none."""
    role: str
    """The role of its author."""
    is_sampled: bool
    """True if a model would have sampled the pieces."""


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
    """True if a model would have sampled the tokens."""
    is_content: bool
    """True if the tokens are the text of a message, False if they are the family's scaffold."""


class Encoder:
    """Cuts text at control tokens for one renderer.

    Args:
        tokenizer: The tokenizer.
        unsafe_content: Whether control tokens are also matched in content, as chat templates do.
        vision: The processor of images; None for a renderer that refuses images.
    """

    def __init__(self, tokenizer: Tokenizer, *, unsafe_content: bool = False, vision: "Vision | None" = None) -> None:
        self.tokenizer = tokenizer
        self.vision = vision
        self.unsafe_content = unsafe_content
        # A longer name wins over one that it starts with, as in the `tokenizers` library.
        names = sorted(tokenizer.control_tokens, key=len, reverse=True)
        self._control_token = re.compile("(" + ("|".join(map(re.escape, names)) or "(?!)") + ")")
        self.control_names = {token: name for name, token in tokenizer.control_tokens.items()}
        """The names of the control tokens, by id."""
        self.scaffold: Callable[[str], list[EmittedPiece]] = lru_cache(maxsize=1024)(self.cut)
        """The same as `cut`; the results are cached, since a vocabulary may have 1,000 control tokens."""

    def cut(self, text: str, *, is_content: bool = False) -> list[EmittedPiece]:
        """Cut scaffold at its control tokens. Content is one piece of text, except with `unsafe_content`."""
        if is_content and not self.unsafe_content:
            return [EmittedPiece(text, _TEXT, True)]
        pieces: list[EmittedPiece] = []
        for index, part in enumerate(self._control_token.split(text)):
            if index % 2:
                token = self.tokenizer.token_id(part)
                pieces.append(EmittedPiece(part, token, is_content, np.array([token], dtype=np.int32)))
            elif part:
                pieces.append(EmittedPiece(part, _TEXT, is_content))
        return pieces


@dataclass(eq=False, repr=False, slots=True)
class Emission:
    """The pieces written so far. Nothing is encoded until `tokens` is called."""

    _encoder: Encoder
    _pieces: list[EmittedPiece] = field(default_factory=list[EmittedPiece])
    _starts: list[int] = field(default_factory=list[int])
    _attributions: list[Attribution] = field(default_factory=lambda: [Attribution(0, -1, "system", False)])
    _message: int = -1
    _pending: list[Image] = field(default_factory=list[Image])
    """The images of the message that are not written yet, the next one last."""

    def begin(self, message: int, role: str, images: Sequence[Image] = ()) -> None:
        """Begin a message: the following pieces belong to it.

        Its scaffold has one token for each image, as chat templates write it, which the image's placeholders replace.

        Raises:
            RenderError: If the previous message has more images than its scaffold has tokens for them.
        """
        self._refuse_pending()
        self._message, self._pending = message, [*reversed(images)]
        self._starts.append(len(self._pieces))
        self.attribute(message, role)

    def attribute(self, message: int, role: str, *, is_sampled: bool = False) -> None:
        """Attribute the following pieces to a message without beginning a new one."""
        self._attributions.append(Attribution(len(self._pieces), message, role, is_sampled))

    def cut(self) -> None:
        """Encode the following text separately from the text before it."""
        self._pieces.append(EmittedPiece("", _TEXT, False, np.empty(0, dtype=np.int32)))

    def scaffold(self, text: str) -> None:
        """Write the family's own text. Names of control tokens in it become control tokens."""
        pieces, vision = self._encoder.scaffold(text), self._encoder.vision
        if vision is None:
            self._pieces += pieces
            return
        for piece in pieces:
            if piece.control < 0 or piece.text != vision.placeholder:
                self._pieces.append(piece)
                continue
            if not self._pending:
                raise RenderError(f"message {self._message} is written with more images than it has")
            placeholders = self._encoder.cut(vision.process(self._pending.pop()).text)
            for _, run in groupby(placeholders, key=lambda placeholder: placeholder.control):
                first, *equal = run  # equal placeholders are one piece
                count = 1 + len(equal)
                tokens = None if first.tokens is None else np.repeat(first.tokens, count)
                self._pieces.append(first._replace(text=first.text * count, tokens=tokens))

    def _refuse_pending(self) -> None:
        if self._pending:
            raise RenderError(
                f"message {self._message} has {len(self._pending)} images that the model family does not write there: "
                f"a message of this role, or after this one, cannot have images"
            )

    def content(self, text: str) -> None:
        """Write the text of a message. Names of control tokens in it stay text."""
        if text:
            self._pieces += self._encoder.cut(text, is_content=True)

    def encoded(self, tokens: "NDArray[np.int32]", *, content_after: int | None) -> None:
        """Write tokens that another library encoded; text after the control token `content_after` is content."""
        encoder, start, is_content = self._encoder, 0, False
        controls = [position for position, token in enumerate(tokens.tolist()) if token in encoder.control_names]
        for position in (*controls, len(tokens)):
            if position > start:
                text = tokens[start:position]
                self._pieces.append(EmittedPiece(encoder.tokenizer.decode(text), _TEXT, is_content, text))
            if position < len(tokens):
                token = int(tokens[position])
                name = encoder.control_names[token]
                self._pieces.append(EmittedPiece(name, token, False, tokens[position : position + 1]))
                is_content = token == content_after
            start = position + 1

    def cut_at(self, mark: str) -> None:
        """Drop everything from the last `mark` in content on."""
        index = max(i for i, piece in enumerate(self._pieces) if piece.is_content and mark in piece.text)
        piece = self._pieces[index]
        self._pieces[index:] = [EmittedPiece(piece.text[: piece.text.rindex(mark)], _TEXT, True)]

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
            RenderError: If an image of the last message was not written.
        """
        self._refuse_pending()
        chunks: list[NDArray[np.int32]] = [np.empty(0, dtype=np.int32)]
        token_of_piece: dict[int, int] = {}
        length = 0
        for first, run in self._runs():
            token_of_piece[first] = length
            chunk = run[0].tokens
            if chunk is None:
                chunk = self._encoder.tokenizer.encode("".join([piece.text for piece in run]))
            chunks.append(chunk)
            length += chunk.size
        token_of_piece[len(self._pieces)] = length
        if not token_of_piece.keys() >= {*self._starts}:  # a message begins within a run of text
            token_of_piece |= {index: start for index, (start, _) in enumerate(self._places())}
        return np.concatenate(chunks), [token_of_piece[piece] for piece in self._starts]

    def spans(self) -> list[Span]:
        """Return the runs of tokens with their attribution. A token that crosses a seam belongs to the later piece."""
        spans: list[Span] = []
        attributions = [*self._attributions, Attribution(len(self._pieces), -1, "", False)]
        following = 1
        for index, (start, stop) in enumerate(self._places()):
            while attributions[following].piece <= index:
                following += 1
            _, message, role, is_sampled = attributions[following - 1]
            span = Span(start, stop, message, role, is_sampled, self._pieces[index].is_content)
            if spans and spans[-1][2:] == span[2:]:
                spans[-1] = spans[-1]._replace(stop=stop)
            elif start < stop:
                spans.append(span)
        return spans

    def _runs(self) -> list[tuple[int, list[EmittedPiece]]]:
        """Return the runs of pieces that are encoded together, with the index of the first piece of each.

        Adjacent pieces of text that are not encoded yet are one run; every other piece is a separate run.
        """
        runs: list[tuple[int, list[EmittedPiece]]] = []
        for index, piece in enumerate(self._pieces):
            if runs and runs[-1][1][0].tokens is None and piece.tokens is None:
                runs[-1][1].append(piece)
            else:
                runs.append((index, [piece]))
        return runs

    def _places(self) -> Iterator[tuple[int, int]]:
        """Yield the index of each piece's first token, and the index after its last one.

        If several pieces were encoded as one string, a token belongs to the piece that contains its last byte.
        """
        tokenizer, at = self._encoder.tokenizer, 0
        for _, run in self._runs():
            bounds = [0]
            if run[0].tokens is not None:
                bounds.append(len(run[0].tokens))
            else:
                text = "".join([piece.text for piece in run])
                _, ends = tokenizer.encode_with_ends(text)
                for seam in accumulate(len(piece.text) for piece in run[:-1]):
                    byte = len(tokenizer.normalize(text[:seam]).encode())
                    # The first token that ends past a seam is the first token of the piece after it.
                    bounds.append(int(np.searchsorted(ends, byte, side="right")))
                bounds.append(len(ends))
            yield from ((at + start, at + stop) for start, stop in pairwise(bounds))
            at += bounds[-1]


class EmittedDelta(NamedTuple):
    """The tokens that were emitted after a reply."""

    reply: int
    """The index of the reply among the messages. The delta holds the messages between it and the next reply."""
    tokens: "NDArray[np.int32]"
    """The tokens from the end of the reply to the end of the generation prompt, shape (n,)."""
    generation_prompt: bool
    """True if the delta ends with a generation prompt."""


class Rendered:
    """A rendered conversation, or what follows a reply.

    Attributes:
        tokens: The token ids: int32, shape (n,).
        starts: The index of each message's first token; with a generation prompt, also the index of its first token.
        begun: The tokens of a prefill, which follow the generation prompt: int32, shape (m,).
        dropped: How many tokens at the end of the reply do not stay; see `Renderer.extension`.
        closed_reply: Whether the reply had to be closed, because its turn did not end.
        rewriting: An example of earlier text that the chat template rewrites here but that the prompt keeps; empty if
            there is no such text.
    """

    __slots__ = ("_emission", "begun", "closed_reply", "dropped", "rewriting", "starts", "tokens")

    def __init__(self, emission: Emission, begun: "NDArray[np.int32] | None" = None) -> None:
        self._emission = emission
        self.tokens, self.starts = emission.tokens()
        self.begun = np.empty(0, dtype=np.int32) if begun is None else begun
        self.dropped, self.closed_reply, self.rewriting = 0, False, ""

    @property
    def spans(self) -> list[Span]:
        """Runs of tokens with their message, role, and whether they are sampled and content (computed on request)."""
        return self._emission.spans()


@dataclass(eq=False, repr=False)
class WrittenPrompt:
    """A prompt as data: the messages that a model sees, and their tokens. `Renderer.rewrite` rewrites it."""

    tools: Sequence[ToolSchema] = ()
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    messages: list[Message] = field(default_factory=list[Message])
    starts: list[int] = field(default_factory=list[int])
    """The position of each message's first token."""
    bodies: list[int] = field(default_factory=list[int])
    """The position where the sampled part of each message begins; -1 if the model did not write it."""
    end: int = 0
    """The position after the last message, where the generation prompt begins."""
    body: int = 0
    """The position after the generation prompt, where the next reply begins, or its prefill."""
    prefill: str | Message | None = None
    """The beginning of the next reply, on which the generation prompt depends."""
    _placed: list[PlacedImage] = field(default_factory=list[PlacedImage])
    """The images of the first `_n_placed` messages, in order."""
    _n_placed: int = 0

    def copy(self) -> "WrittenPrompt":
        """Return an independent copy."""
        other = copy.copy(self)
        other.tokens, other.messages = self.tokens[:], list(self.messages)
        other.starts, other.bodies = list(self.starts), list(self.bodies)
        other._placed = list(self._placed)
        return other

    def append(self, rendered: Rendered, messages: Sequence[Message], prefill: str | Message | None = None) -> None:
        """Append rendered messages; the generation prompt, if there is one, begins at the last start."""
        before = len(self.tokens)
        self.tokens.extend(rendered.tokens.tolist())
        for message, start in zip(messages, rendered.starts, strict=False):
            self.add(message, before + start)
        self.body = len(self.tokens)
        self.end = before + rendered.starts[len(messages)] if len(rendered.starts) > len(messages) else self.body
        self.prefill = prefill
        self.tokens.extend(rendered.begun.tolist())

    def add(self, message: Message, start: int, body: int = -1) -> None:
        """Add a message whose tokens begin at `start`, and whose sampled part begins at `body`."""
        self.messages.append(message)
        self.starts.append(start)
        self.bodies.append(body)

    def forget(self, first: int) -> None:
        """Drop the messages from `first` on; their tokens stay until they are truncated."""
        if first < len(self.starts):
            del self._placed[bisect_left(self._placed, self.starts[first], key=operator.attrgetter("start")) :]
        self._n_placed = min(self._n_placed, first)
        del self.messages[first:], self.starts[first:], self.bodies[first:]

    def count(self, index: int) -> int:
        """Return the number of tokens of message `index`."""
        following = self.starts[index + 1] if index + 1 < len(self.starts) else self.end
        return following - self.starts[index]

    def emitted(self) -> list[EmittedDelta]:
        """Return those deltas after sampled replies that are still in the prompt."""
        replies = [index for index, message in enumerate(self.messages) if message.role == "assistant"]
        deltas: list[EmittedDelta] = []
        for reply, following in pairwise([*replies, len(self.messages)]):
            is_last = following == len(self.messages)
            stop = self.body if is_last else self.bodies[following]
            if following > reply + 1 and self.bodies[reply] >= 0 and stop >= 0:
                tokens = np.asarray(self.tokens[self.starts[reply + 1] : stop])
                deltas.append(EmittedDelta(reply, tokens, not is_last or self.body > self.end))
        return deltas

    def placed_images(self, vision: "Vision", keep: int = 0) -> list[PlacedImage]:
        """Return the images whose tokens end after the first `keep` tokens, with their positions in the prompt.

        Only the tokens of messages that were added since the last call are read.
        """
        for index in range(self._n_placed, len(self.messages)):
            if images := self.messages[index].images:
                start = self.starts[index]
                places = vision.places(np.asarray(self.tokens[start : start + self.count(index)]), images)
                self._placed += [placed.moved(start) for placed in places]
        self._n_placed = len(self.messages)
        return self._placed[bisect_right(self._placed, keep, key=operator.attrgetter("stop")) :]


def is_same_answer(old: Message, message: Message) -> bool:
    """Return whether two replies are the same apart from their reasoning."""
    return old.content == message.content and old.tool_calls == message.tool_calls


explain_arguments(globals())
