"""A prompt as data: the messages that a model sees, and their tokens. `Renderer.rewrite` rewrites it."""

import copy
import operator
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..images import PlacedImage
from ..messages import Message, ToolSchema
from .emission import Emission, Span

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._vision import Vision


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


class WrittenPrompt:
    """The messages that a model sees, and their tokens."""

    def __init__(self) -> None:
        self.tools: Sequence[ToolSchema] = ()
        self.tokens = array("i")
        self.messages: list[Message] = []
        self.starts: list[int] = []
        """The position of each message's first token."""
        self.bodies: list[int] = []
        """The position where the sampled part of each message begins; -1 if the model did not write it."""
        self.end = 0
        """The position after the last message, where the generation prompt begins."""
        self.body = 0
        """The position after the generation prompt, where the next reply begins, or its prefill."""
        self.prefill: str | Message | None = None
        """The beginning of the next reply, on which the generation prompt depends."""
        self._placed: list[PlacedImage] = []
        """The images of the first `_n_placed` messages, in order."""
        self._n_placed = 0

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
