"""Why a logged prompt does not extend what its context held, as far as the tokens show it."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .._arrays import GrowableArray
from ..contexts._protocol import BreakReason
from ..images import PlacedImage

if TYPE_CHECKING:
    from numpy.typing import NDArray

_OPENING = 8  # tokens: the longest beginning of a think block that a generation prompt contains
_EMPTY_BLOCK = 4  # tokens: an empty think block in the place of the reasoning


class _Sampled(NamedTuple):
    start: int
    stop: int
    has_reasoning: bool


class HeldTokens:
    """The tokens that a context holds, and where replies are in them."""

    def __init__(self) -> None:
        self._tokens = GrowableArray(np.int32)
        self.replies: list[_Sampled] = []
        """The replies, as far as they are held as they were sampled."""

    @property
    def tokens(self) -> "NDArray[np.int32]":
        """The tokens, without a copy: valid until the next change."""
        return self._tokens.view

    def truncate(self, keep: int) -> None:
        """Keep the first `keep` tokens."""
        self._tokens.truncate(keep)
        del self.replies[bisect_left(self.replies, keep + 1, key=lambda reply: reply.stop) :]

    def branch(self, keep: int) -> "HeldTokens":
        """Return a copy of the first `keep` tokens."""
        other = HeldTokens()
        other._tokens.append(self.tokens)
        other.replies = list(self.replies)
        other.truncate(keep)
        return other

    def append(
        self, observed: "NDArray[np.int32]", sampled: "NDArray[np.int32]", *, has_reasoning: bool = False
    ) -> None:
        """Add the rest of a prompt, and the reply to it."""
        self._tokens.append(observed)
        self._tokens.append(sampled)
        stop = len(self._tokens)
        self.replies.append(_Sampled(stop - len(sampled), stop, has_reasoning))


def with_image_numbers(
    prompt: "NDArray[np.int32]", media: Sequence[PlacedImage], numbers: dict[tuple[str, int], int]
) -> "NDArray[np.int32]":
    """Return a prompt in which the tokens of each distinct image are a negative number of its own.

    The placeholders of different images may be the same tokens.

    Args:
        prompt: The token ids: int32, shape (n,).
        media: The images in it.
        numbers: The numbers of the images by their hash and number of tokens. New ones are added.
    """
    if not media:
        return prompt
    keyed = prompt.copy()
    for image, start, stop in media:
        keyed[start:stop] = -1 - numbers.setdefault((image.sha256, stop - start), len(numbers))
    return keyed


def common(one: "NDArray[np.int32]", other: "NDArray[np.int32]") -> int:
    """Return how many tokens two sequences share at their beginning."""
    count = min(len(one), len(other))
    differs = one[:count] != other[:count]
    return int(np.argmax(differs)) if differs.any() else count


def rewrite_reason(held: HeldTokens, prompt: "NDArray[np.int32]", kept: int) -> tuple[BreakReason, str]:
    """Return the reason of a rewrite in which no message changed, and a detail for people.

    - `thinking_stripped`: the only difference is that the reasoning of earlier replies is gone.
    - `template`: the first difference is in what was observed, or in the token that ended a reply. So the server
      renders the same messages differently.
    - `undeclared`: the first difference is within a reply. The log does not say why: mostly the reply was decoded and
      tokenized again.

    Args:
        held: What the context held.
        prompt: The prompt: int32, shape (n,).
        kept: How many tokens they share.
    """
    if _is_stripped(held, prompt, kept):
        return "thinking_stripped", "the reasoning of earlier replies is not in the prompt"
    for reply in held.replies:
        if reply.start <= kept < reply.stop:
            if kept == reply.stop - 1:
                return "template", "the end of the reply"
            return "undeclared", "the prompt has other tokens for a reply than were sampled"
    return "template", "the same messages have other tokens"


def _is_stripped(held: HeldTokens, prompt: "NDArray[np.int32]", kept: int) -> bool:
    """Return whether a prompt has the held tokens, except for reasoning at the beginning of replies."""
    tokens, at, new = held.tokens, kept, kept
    for reply in held.replies:
        if reply.stop <= at:
            continue
        same = common(tokens[at : reply.stop], prompt[new:])
        at, new = at + same, new + same
        if at == reply.stop:
            continue
        if not reply.has_reasoning or at < reply.start - _OPENING:
            return False
        inserted = _EMPTY_BLOCK if at >= reply.start - 1 else 0
        end = _end_of_stripped(tokens[at : reply.stop], prompt[new:], inserted)
        if end is None:
            return False
        at, new = reply.stop, new + end
    return at == len(tokens)


def _end_of_stripped(reply: "NDArray[np.int32]", prompt: "NDArray[np.int32]", most: int) -> int | None:
    """Return where a reply without its beginning ends in a prompt; None if it is not there.

    At most `most` tokens, an empty think block, may be in the place of what is gone.
    """
    for inserted in range(min(most + 1, len(prompt))):
        for skipped in np.flatnonzero(reply[1:] == prompt[inserted]) + 1:
            rest = len(reply) - int(skipped)
            is_enough = rest > 1 or not inserted
            if is_enough and np.array_equal(reply[skipped:], prompt[inserted : inserted + rest]):
                return inserted + rest
    return None
