"""The comparison of a logged prompt with the tokens that its context held: how many stay, and why others do not."""

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...contexts._protocol import BreakReason

if TYPE_CHECKING:
    from numpy.typing import NDArray

_OPENING = 8  # tokens: the longest beginning of a think block that a generation prompt contains
_EMPTY_BLOCK = 4  # tokens: an empty think block in the place of the reasoning


class _ReplyRange(NamedTuple):
    start: int
    stop: int
    has_reasoning: bool


class HeldTokens:
    """The tokens that a context holds, and where replies are in them."""

    def __init__(self) -> None:
        self._tokens = array("i")
        self._replies: list[_ReplyRange] = []  # as far as they are held as they were sampled

    def __len__(self) -> int:
        return len(self._tokens)

    def shared(self, prompt: "NDArray[np.int32]") -> int:
        """Return the number of tokens that a prompt begins with, of those that are held."""
        return common_prefix(np.asarray(self._tokens), prompt)

    def branch(self, keep: int) -> "HeldTokens":
        """Return a copy of the first `keep` tokens."""
        other = HeldTokens()
        other._tokens = self._tokens[:keep]
        other._replies = list(self._replies)
        other.truncate(keep)
        return other

    def truncate(self, keep: int) -> None:
        """Keep the first `keep` tokens."""
        del self._tokens[keep:]
        del self._replies[bisect_left(self._replies, keep + 1, key=lambda reply: reply.stop) :]

    def append(
        self, observed: "NDArray[np.int32]", sampled: "NDArray[np.int32]", *, has_reasoning: bool = False
    ) -> None:
        """Add the rest of a prompt, and the reply to it."""
        self._tokens.extend(observed.tolist() + sampled.tolist())
        stop = len(self._tokens)
        self._replies.append(_ReplyRange(stop - len(sampled), stop, has_reasoning))

    def rewrite_reason(self, prompt: "NDArray[np.int32]", kept: int) -> tuple[BreakReason, str]:
        """Return the reason of a rewrite in which no message changed, and a detail for people.

        - `thinking_stripped`: the only difference is that the reasoning of earlier replies is gone.
        - `template`: the first difference is in what was observed, or in the token that ended a reply. So the server
          renders the same messages differently.
        - `undeclared`: the first difference is within a reply. The log does not specify the reason. Usually, the reply
          was decoded and tokenized again.

        Args:
            prompt: The prompt: int32, shape (n,).
            kept: The number of tokens that it shares with the held ones.
        """
        if self._is_stripped(prompt, kept):
            return "thinking_stripped", "the reasoning of earlier replies is not in the prompt"
        for reply in self._replies:
            if reply.start <= kept < reply.stop:
                if kept == reply.stop - 1:
                    return "template", "the end of the reply"
                return "undeclared", "the tokens of a reply in the prompt differ from the sampled ones"
        return "template", "the tokens of the same messages differ"

    def _is_stripped(self, prompt: "NDArray[np.int32]", kept: int) -> bool:
        """Return whether a prompt has the held tokens, except for reasoning at the beginning of replies."""
        tokens, at, new = np.asarray(self._tokens), kept, kept
        for reply in self._replies:
            if reply.stop <= at:
                continue
            same = common_prefix(tokens[at : reply.stop], prompt[new:])
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


def common_prefix(one: "NDArray[Any]", other: "NDArray[Any]") -> int:
    """Return the number of tokens in the common prefix of two sequences."""
    count = min(len(one), len(other))
    differs = one[:count] != other[:count]
    return int(np.argmax(differs)) if differs.any() else count


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
