"""The search for the chain that a prompt extends, or shares the longest prefix with, by hashes and by sort order.

A chain is a prompt and its reply, extended any number of times. This module knows nothing of trajectories.
"""

from bisect import bisect_left, insort
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ._differences import common_prefix

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DTYPE = np.dtype(">i4")  # big-endian, so that sorting the bytes sorts the tokens


class ChainMatch(NamedTuple):
    """The chain that a prompt belongs to."""

    chain: int
    """The longest chain that the prompt begins with (the latest one of several), or a new chain."""
    is_new: bool
    nearest: int | None
    """The chain with the longest common prefix: `chain` itself if it is not new; None if no chain shares a token."""
    shared: int
    """The number of tokens that the prompt shares with `nearest`."""


class OpenPrompts:
    """The chains with all their tokens. A prompt is hashed once, and compared with its neighbors in sort order."""

    def __init__(self) -> None:
        self._tokens: list[bytes] = []  # the tokens of each chain, by its number
        self._sorted: list[tuple[bytes, int]] = []
        self._chains: dict[bytes, list[int]] = {}  # by the digest of their tokens

    def add(self, prompt: "NDArray[np.int32]", reply: "NDArray[np.int32]") -> ChainMatch:
        """Find the chain of a prompt, and append the reply to it."""
        data = prompt.astype(_DTYPE).tobytes()
        # The longest chain that the prompt begins with.
        state, hashed, longest = blake2b(digest_size=16), 0, b""
        for length in sorted({len(tokens) for tokens in self._tokens if len(tokens) <= len(data)}):
            state.update(memoryview(data)[hashed:length])
            hashed, digest = length, state.digest()
            longest = digest if self._chains.get(digest) else longest
        state.update(memoryview(data)[hashed:])
        if longest:
            chain = self._chains[longest].pop()
            match = ChainMatch(chain, False, chain, len(self._tokens[chain]) // _DTYPE.itemsize)
            del self._sorted[bisect_left(self._sorted, (self._tokens[chain], chain))]
        else:
            # One of the two neighbors in sort order shares the longest prefix; the latest chain, if it shares as much.
            at, chain = bisect_left(self._sorted, (data, -1)), len(self._tokens)
            candidates = {one for _, one in self._sorted[max(0, at - 1) : at + 1]} | set(range(chain)[-1:])
            shared, nearest = max(((_common(self._tokens[one], data), one) for one in candidates), default=(0, None))
            match = ChainMatch(chain, True, nearest if shared else None, shared)
            self._tokens.append(b"")
        tokens = data + reply.astype(_DTYPE).tobytes()
        state.update(memoryview(tokens)[len(data) :])
        self._tokens[match.chain] = tokens
        self._chains.setdefault(state.digest(), []).append(match.chain)
        insort(self._sorted, (tokens, match.chain))
        return match


def _common(first: bytes, second: bytes) -> int:
    """Return the number of tokens in the common prefix of two sequences."""
    return common_prefix(np.frombuffer(first, _DTYPE), np.frombuffer(second, _DTYPE))
