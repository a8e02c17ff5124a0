"""The paths of a tree: chains of runs, each of which goes on with the largest branch.

A path's tokens, put one after the other, are one ordinary sequence. What its first token follows is the beginning of
another path, and so on up to a root: at most log2(R) beginnings for R runs (a heavy-path decomposition: Sleator and
Tarjan, A Data Structure for Dynamic Trees, 1983). So attention over a tree is one causal attention for each path and
one without a mask for each beginning that it sees. Under `strip`, one path holds the conversation, and each reply with
its thinking is one that sees the beginning of the conversation. This module knows nothing of torch.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ._runs import Runs

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Prefix(NamedTuple):
    """The beginning of a path."""

    path: int
    """The index of the path."""
    length: int
    """The number of its tokens."""


@dataclass(frozen=True, slots=True)
class TreePath:
    """A path of a tree.

    Attributes:
        tokens: The indices of its tokens in the tree: a slice where they follow one another, otherwise int64, shape
            (L,).
        prefixes: What its tokens see of earlier paths. Together, these are all tokens before its first token.
    """

    tokens: "slice | NDArray[np.int64]"
    prefixes: list[Prefix]


def paths_of(runs: Runs) -> list[TreePath]:
    """Return the paths of a tree; each one sees earlier ones only."""
    stops = list(accumulate(runs.sizes))
    totals, goes_on = list(runs.sizes), [-1] * len(runs.sizes)  # the largest of the runs that follow each run, or -1
    for run in range(len(totals) - 1, -1, -1):  # the order is depth-first, so all that follow have been added up
        parent = runs.parents[run]
        if parent >= 0:
            totals[parent] += totals[run]
            if goes_on[parent] < 0 or totals[run] > totals[goes_on[parent]]:
                goes_on[parent] = run
    members: list[list[int]] = []  # the runs of each path
    prefixes: list[list[Prefix]] = []
    ends: list[Prefix] = []  # of each run: its path up to its last token
    for run, (parent, size) in enumerate(zip(runs.parents, runs.sizes, strict=True)):
        if parent >= 0 and goes_on[parent] == run:
            path, length = ends[parent]
        else:
            path, length = len(members), 0
            members.append([])
            prefixes.append([] if parent < 0 else [*prefixes[ends[parent].path], ends[parent]])
        members[path].append(run)
        ends.append(Prefix(path, length + size))
    paths: list[TreePath] = []
    for its_runs, sees in zip(members, prefixes, strict=True):
        start, stop = stops[its_runs[0]] - runs.sizes[its_runs[0]], stops[its_runs[-1]]
        tokens: slice | NDArray[np.int64] = slice(start, stop)
        if stop - start > sum(runs.sizes[run] for run in its_runs):
            tokens = np.concatenate([np.arange(stops[run] - runs.sizes[run], stops[run]) for run in its_runs])
        paths.append(TreePath(tokens, sees))
    return paths
