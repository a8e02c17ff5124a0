"""The search for the chain that a prompt extends, or shares the longest prefix with, by hashes and by sort order.

A chain is a prompt and its reply, extended any number of times. This module knows nothing of trajectories.
"""

from bisect import bisect_left, bisect_right, insort
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

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
        self._lengths: list[int] = []  # the distinct lengths in bytes, sorted
        self._counts: dict[int, int] = {}  # the number of chains of each length

    def add(self, prompt: "NDArray[np.int32]", reply: "NDArray[np.int32]") -> ChainMatch:
        """Find the chain of a prompt, and append the reply to it. It takes O(len(prompt) * log(chains))."""
        data = prompt.astype(_DTYPE).tobytes()
        state, hashed, longest = blake2b(digest_size=16), 0, b""
        for length in self._possible_lengths(data):
            state.update(memoryview(data)[hashed:length])
            hashed, digest = length, state.digest()
            longest = digest if digest in self._chains else longest
        state.update(memoryview(data)[hashed:])
        match = self._extend(longest) if longest else self._begin(data)
        tokens = data + reply.astype(_DTYPE).tobytes()
        state.update(memoryview(tokens)[len(data) :])
        self._store(match.chain, tokens, state.digest())
        return match

    def _possible_lengths(self, data: bytes) -> list[int]:
        """Return the lengths, in bytes, of the chains that the prompt may begin with.

        Every chain that the prompt begins with sorts before the prompt. Of all that sort before it, the last one shares
        the longest prefix with it. So no such chain is longer than that prefix, and if the prompt begins with the last
        one, that is the longest chain.
        """
        at = bisect_right(self._sorted, (data, len(self._tokens)))
        if not at:
            return []
        tokens, _ = self._sorted[at - 1]
        shared = _common(tokens, data) * _DTYPE.itemsize
        return [shared] if shared == len(tokens) else self._lengths[: bisect_right(self._lengths, shared)]

    def _extend(self, digest: bytes) -> ChainMatch:
        """Remove the chain with this digest from the indexes, and return it as the match."""
        chain = self._chains[digest].pop()
        if not self._chains[digest]:
            del self._chains[digest]
        tokens = self._tokens[chain]
        del self._sorted[bisect_left(self._sorted, (tokens, chain))]
        self._counts[len(tokens)] -= 1
        if not self._counts[len(tokens)]:
            del self._lengths[bisect_left(self._lengths, len(tokens))]
        return ChainMatch(chain, False, chain, len(tokens) // _DTYPE.itemsize)

    def _begin(self, data: bytes) -> ChainMatch:
        """Begin a chain. One of the two neighbors in sort order shares the longest prefix with the prompt."""
        at = bisect_left(self._sorted, (data, -1))
        candidates = {chain for _, chain in self._sorted[max(0, at - 1) : at + 1]}
        candidates |= {len(self._tokens) - 1} - {-1}  # the latest chain wins if it shares as many tokens
        shared, nearest = max(((_common(self._tokens[chain], data), chain) for chain in candidates), default=(0, -1))
        self._tokens.append(b"")
        return ChainMatch(len(self._tokens) - 1, True, nearest if shared else None, shared)

    def _store(self, chain: int, tokens: bytes, digest: bytes) -> None:
        self._tokens[chain] = tokens
        self._chains.setdefault(digest, []).append(chain)
        insort(self._sorted, (tokens, chain))
        if not self._counts.get(len(tokens)):
            insort(self._lengths, len(tokens))
        self._counts[len(tokens)] = self._counts.get(len(tokens), 0) + 1


def _common(first: bytes, second: bytes) -> int:
    """Return the number of tokens in the common prefix of two sequences."""
    count = min(len(first), len(second)) // _DTYPE.itemsize
    differs = np.frombuffer(first, _DTYPE, count) != np.frombuffer(second, _DTYPE, count)
    return int(np.argmax(differs)) if differs.any() else count
