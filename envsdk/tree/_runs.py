"""The runs of a tree: maximal stretches of tokens that follow one another and end before the next branch.

A token sees its run up to itself, and all of its ancestors' runs, which are whole: a run ends where a branch begins. So
attention over a tree is one causal attention for each run, and its cost follows the tree. This module knows nothing of
torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..images import PlacedImage


class TreeArrays(Protocol):
    """The arrays of a tree that runs, masks and positions depend on; see `TreeBatch`."""

    tokens: "NDArray[np.int32]"
    parent: "NDArray[np.int32]"
    position_ids: "NDArray[np.int32]"
    exit: "NDArray[np.int32]"
    media: "list[PlacedImage]"


class Sequences(NamedTuple):
    """Attention over a tree as sequences of variable length: one for each run, with its ancestors as keys.

    Attributes:
        keys: The index of each key in the tree, sequence after sequence: int64, shape (K,).
        query_bounds: Where each run begins in the tree, and its length at the end: int32, shape (R + 1,).
        key_bounds: Where each sequence begins in `keys`, and their length at the end: int32, shape (R + 1,).
        max_queries: The length of the longest run.
        max_keys: The length of the longest sequence.
    """

    keys: "NDArray[np.int64]"
    query_bounds: "NDArray[np.int32]"
    key_bounds: "NDArray[np.int32]"
    max_queries: int
    max_keys: int


@dataclass(frozen=True, slots=True)
class Runs:
    """The R runs of a tree, in its order.

    Attributes:
        sizes: The number of tokens of each run.
        parents: The index of the run that each run follows; -1 for a root.
    """

    sizes: list[int]
    parents: list[int]

    @classmethod
    def of(cls, tree: TreeArrays) -> "Runs":
        """Find the runs of a tree."""
        count = len(tree.parent)
        begins = tree.parent != np.arange(-1, count - 1)
        begins[0] = True
        branches = tree.parent[begins]
        begins[branches[branches >= 0] + 1] = True
        starts = np.flatnonzero(begins)
        run_of = np.cumsum(begins) - 1
        above = tree.parent[starts]
        parents = np.where(above < 0, -1, run_of[above])
        return cls(np.diff(np.append(starts, count)).tolist(), parents.tolist())

    @property
    def longest(self) -> int:
        """The number of tokens of the longest branch."""
        lengths: list[int] = []
        for parent, size in zip(self.parents, self.sizes, strict=True):
            lengths.append(size if parent < 0 else lengths[parent] + size)
        return max(lengths, default=0)

    def paths(self) -> Iterator[list[int]]:
        """Yield for each run the runs that it sees, from its root to itself."""
        path: list[int] = []
        for index, parent in enumerate(self.parents):
            while path and path[-1] != parent:  # the order is depth-first
                path.pop()
            path.append(index)
            yield path

    def sequences(self) -> Sequences:
        """Return what a kernel for sequences of variable length needs; it aligns causality at the end of both."""
        bounds = np.append(0, np.cumsum(self.sizes))
        tokens: list[NDArray[np.int64]] = [np.arange(start, stop) for start, stop in pairwise(bounds.tolist())]
        keys = [np.concatenate([tokens[run] for run in path]) for path in self.paths()]
        lengths = [len(each) for each in keys]
        key_bounds = np.append(0, np.cumsum(lengths)).astype(np.int32)
        return Sequences(
            np.concatenate(keys), bounds.astype(np.int32), key_bounds, max(self.sizes), max(lengths, default=0)
        )
