"""Which of several open chains of prompts a prompt extends, and which it shares most with: by hashes, and by order.

Knows nothing of trajectories: a chain is a prompt with its answer that was extended any number of times.
"""

from bisect import bisect_left, bisect_right, insort
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DTYPE = np.dtype(">i4")  # big-endian, so that the order of the bytes is that of the tokens


class Place(NamedTuple):
    """Where a prompt belongs."""

    chain: int
    """The chain that it goes on with: the longest that it begins with, of equal ones the latest; or a new one."""
    is_new: bool
    nearest: int | None
    """For a new one, the chain that it has most tokens in common with; None if it has none in common with any."""
    shared: int
    """How many tokens it has in common with that one, or how many the chain had that it goes on with."""


class OpenPrompts:
    """The chains, by what they end with now. A prompt is hashed once, and compared with its neighbours in order."""

    def __init__(self) -> None:
        self._ends: list[bytes] = []  # the tokens of each chain, by its number
        self._in_order: list[tuple[bytes, int]] = []
        self._chains: dict[bytes, list[int]] = {}  # by the digest of their tokens
        self._lengths: list[int] = []  # in bytes: the different ones, in order
        self._counts: dict[int, int] = {}  # how many chains have each length

    def add(self, prompt: "NDArray[np.int32]", answer: "NDArray[np.int32]") -> Place:
        """Find where a prompt belongs, and put its answer behind it. O(its tokens), for each halving of the chains."""
        data = prompt.astype(_DTYPE).tobytes()
        state, hashed, longest = blake2b(digest_size=16), 0, b""
        for length in self._possible(data):
            state.update(memoryview(data)[hashed:length])
            hashed, digest = length, state.digest()
            longest = digest if digest in self._chains else longest
        state.update(memoryview(data)[hashed:])
        place = self._extend(longest) if longest else self._begin(data)
        end = data + answer.astype(_DTYPE).tobytes()
        state.update(memoryview(end)[len(data) :])
        self._put(place.chain, end, state.digest())
        return place

    def _possible(self, data: bytes) -> list[int]:
        """The lengths, in bytes, of the chains that the prompt may begin with.

        In order, the last one before the prompt has most in common with it of all before it, and every chain that the
        prompt begins with is before it: so none is longer than that, and if it begins with that one, it is the longest.
        """
        at = bisect_right(self._in_order, (data, len(self._ends)))
        if not at:
            return []
        end, _ = self._in_order[at - 1]
        shared = _common(end, data) * _DTYPE.itemsize
        return [shared] if shared == len(end) else self._lengths[: bisect_right(self._lengths, shared)]

    def _extend(self, digest: bytes) -> Place:
        """Take a chain out: its tokens are the start of the prompt."""
        chain = self._chains[digest].pop()
        if not self._chains[digest]:
            del self._chains[digest]
        end = self._ends[chain]
        del self._in_order[bisect_left(self._in_order, (end, chain))]
        self._counts[len(end)] -= 1
        if not self._counts[len(end)]:
            del self._lengths[bisect_left(self._lengths, len(end))]
        return Place(chain, False, chain, len(end) // _DTYPE.itemsize)

    def _begin(self, data: bytes) -> Place:
        """Begin a chain. Of all in order, one of the two that a prompt stands between has most in common with it."""
        at = bisect_left(self._in_order, (data, -1))
        candidates = {chain for _, chain in self._in_order[max(0, at - 1) : at + 1]}
        candidates |= {len(self._ends) - 1} - {-1}  # the latest, if it has as much in common
        shared, nearest = max(((_common(self._ends[chain], data), chain) for chain in candidates), default=(0, -1))
        self._ends.append(b"")
        return Place(len(self._ends) - 1, True, nearest if shared else None, shared)

    def _put(self, chain: int, end: bytes, digest: bytes) -> None:
        self._ends[chain] = end
        self._chains.setdefault(digest, []).append(chain)
        insort(self._in_order, (end, chain))
        if not self._counts.get(len(end)):
            insort(self._lengths, len(end))
        self._counts[len(end)] = self._counts.get(len(end), 0) + 1


def _common(first: bytes, second: bytes) -> int:
    """How many tokens two sequences have in common at their start."""
    count = min(len(first), len(second)) // _DTYPE.itemsize
    differs = np.frombuffer(first, _DTYPE, count) != np.frombuffer(second, _DTYPE, count)
    return int(np.argmax(differs)) if differs.any() else count
