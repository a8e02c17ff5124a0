"""A prefix tree of tokens, which stores each shared token once.

This module knows nothing of trajectories and samples: a token is trained or it is not.
"""

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_TOKEN = -1
"""The "token" that the first token of a sequence follows."""


@dataclass(slots=True, eq=False)
class PrefixNode:
    """A run of consecutive tokens. Branches begin only after the last of them."""

    start: int
    stop: int
    """The node holds the tokens with the numbers from `start` to `stop - 1`."""
    depth: int
    """The number of tokens before the first one, in its branch."""
    is_trained: bool
    parent: "PrefixNode | None"
    children: "dict[int, list[PrefixNode]]" = field(default_factory=dict[int, "list[PrefixNode]"])
    """The nodes that follow, by their first token. Several nodes share a first token only if each is trained."""

    def __len__(self) -> int:
        return self.stop - self.start


class Layout(NamedTuple):
    """The tokens of a tree in depth-first order: arrays of shape (N,).

    Attributes:
        order: The number of the token at each index: int64. A token's number is the order in which it was added.
        position_ids: The number of tokens before each token in its branch: int32.
        parent: The index of the token before each token, -1 for a root: int32.
        exit: The first later index whose branch does not contain the token, N if there is none: int32.
    """

    order: "NDArray[np.int64]"
    position_ids: "NDArray[np.int32]"
    parent: "NDArray[np.int32]"
    exit: "NDArray[np.int32]"


class _Match(NamedTuple):
    """A path down the tree along which the tokens are equal to the tokens that are being added."""

    node: PrefixNode
    matched: int
    """The number of equal tokens up to the end of the path, which may be inside `node`."""
    previous: "_Match | None"


class PrefixTree:
    """Token sequences that are added piece by piece. A token is named by its number, which counts added tokens.

    A new piece is compared with the tree, and shares the tokens that are equal. A trained token is never merged with
    another trained token. So each token is trained at most once, and any number of sequences may have it in their past.
    """

    def __init__(self) -> None:
        self.tokens = array("i")
        self._root = PrefixNode(0, 0, 0, False, None)
        # All nodes in the order of their token numbers, and the number at which each starts.
        self._nodes: list[PrefixNode] = []
        self._starts: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, tokens: "NDArray[np.int32]", last: int, *, is_trained: bool) -> "NDArray[np.int64]":
        """Add tokens after the token `last`. If they can be merged in several ways, merge as many as possible.

        Args:
            tokens: Token ids, shape (n,).
            last: The number of the token that they follow, or `NO_TOKEN`.
            is_trained: Whether they are trained.

        Returns:
            The numbers of the tokens: int64, shape (n,).
        """
        parent = self._root if last == NO_TOKEN else self._nodes[bisect_right(self._starts, last) - 1]
        matched = 0
        self._cut(parent, last + 1 - parent.start)
        pieces: list[NDArray[np.int64]] = []
        for match in self._longest_match(parent, tokens, is_trained):
            parent = match.node
            self._cut(parent, match.matched - matched)
            parent.is_trained |= is_trained
            pieces.append(np.arange(parent.start, parent.stop))
            matched = match.matched
        if matched < len(tokens):
            start = len(self)
            self.tokens.frombytes(tokens[matched:].astype(np.int32).tobytes())
            new = PrefixNode(start, len(self), parent.depth + len(parent), is_trained, parent)
            parent.children.setdefault(int(tokens[matched]), []).append(new)
            self._nodes.append(new)
            self._starts.append(start)
            pieces.append(np.arange(start, new.stop))
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)

    def _cut(self, node: PrefixNode, count: int) -> None:
        """Cut a node after its first `count` tokens, if it has more."""
        if count == len(node):
            return
        middle = node.start + count
        rest = PrefixNode(middle, node.stop, node.depth + count, node.is_trained, node, node.children)
        for children in rest.children.values():
            for child in children:
                child.parent = rest
        node.stop, node.children = middle, {self.tokens[middle]: [rest]}
        place = bisect_right(self._starts, middle)
        self._nodes.insert(place, rest)
        self._starts.insert(place, middle)

    def _longest_match(self, parent: PrefixNode, tokens: "NDArray[np.int32]", is_trained: bool) -> list[_Match]:
        """Return the path below `parent` that matches the most tokens, from its first node to its last."""
        stored = np.asarray(self.tokens)
        longest = _Match(parent, 0, None)
        unexplored = [longest]
        while unexplored and longest.matched < len(tokens):
            match = unexplored.pop()
            for node in match.node.children.get(int(tokens[match.matched]), ()):
                if is_trained and node.is_trained:
                    continue
                given = tokens[match.matched : match.matched + len(node)]
                differs = stored[node.start : node.start + len(given)] != given
                matched = match.matched + (int(differs.argmax()) if differs.any() else len(given))
                longer = _Match(node, matched, match)
                if matched > longest.matched:
                    longest = longer
                if matched == match.matched + len(node) < len(tokens):
                    unexplored.append(longer)
        path: list[_Match] = []
        while longest.previous is not None:
            path.append(longest)
            longest = longest.previous
        return path[::-1]

    def layout(self) -> Layout:
        """Return the tokens in depth-first order, where sibling branches keep the order in which they were added.

        For one context, whose tokens are only appended and dropped, this is the order in which the tokens were added.
        """
        nodes: list[PrefixNode] = []
        unvisited = [self._root]
        while unvisited:
            nodes.append(unvisited.pop())
            children = [child for siblings in nodes[-1].children.values() for child in siblings]
            unvisited.extend(sorted(children, key=lambda child: -child.start))
        del nodes[0]  # the root, which has no tokens
        numbers: dict[PrefixNode | None, int] = {self._root: NO_TOKEN, **{node: i for i, node in enumerate(nodes)}}
        lengths = np.array([len(node) for node in nodes], dtype=np.int64)
        stops = np.cumsum(lengths)
        starts = stops - lengths
        parents = [numbers[node.parent] for node in nodes]
        exits = stops.tolist()
        for number in range(len(nodes) - 1, -1, -1):
            if parents[number] != NO_TOKEN:
                exits[parents[number]] = max(exits[parents[number]], exits[number])
        index = np.arange(len(self))
        parent = index - 1
        parent[starts] = np.append(stops, 0)[parents] - 1  # a root has no parent: -1
        shift = np.array([node.start for node in nodes], dtype=np.int64) - starts
        depth = np.array([node.depth for node in nodes], dtype=np.int64) - starts
        return Layout(
            order=index + np.repeat(shift, lengths),
            position_ids=(index + np.repeat(depth, lengths)).astype(np.int32),
            parent=parent.astype(np.int32),
            exit=np.repeat(np.array(exits, dtype=np.int32), lengths),
        )
