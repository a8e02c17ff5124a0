"""A tree of tokens: sequences from a root on, each shared token held once.

Knows nothing of trajectories and samples: a token is only trained or not.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..contexts.arrays import GrowableArray

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_TOKEN = -1
"""Stands for the token before the first one of a sequence."""
_GLANCE = 64  # how many tokens are compared first, as most sequences that differ do so early


@dataclass(slots=True, eq=False)
class Node:
    """Tokens that follow each other; branches begin only behind the last of them."""

    start: int
    stop: int
    """The tokens are those from `start` to `stop`, in the order in which they were put in."""
    depth: int
    """How many tokens come before the first of them."""
    is_trained: bool
    above: "Node | None"
    below: "dict[int, list[Node]]" = field(default_factory=dict[int, "list[Node]"])
    """What follows, by its first token: several nodes only if each of them is trained."""

    def __len__(self) -> int:
        return self.stop - self.start


class Layout(NamedTuple):
    """The tokens of a tree in depth-first order: arrays of shape (N,)."""

    order: "NDArray[np.int64]"
    """The number of the token at each place, in the order in which they were put in."""
    position_ids: "NDArray[np.int32]"
    """How many tokens come before it in its branch."""
    parent: "NDArray[np.int32]"
    """The place of the token before it; -1 at a root."""
    exit: "NDArray[np.int32]"
    """The first later place whose branch does not hold it; N if there is none."""


class _Way(NamedTuple):
    """A way down the tree, along tokens that are equal."""

    node: Node
    reached: int
    """How many tokens were equal up to the end of the way, which may be inside the node."""
    before: "_Way | None"


class PrefixTree:
    """Sequences of tokens, put in piece by piece; a token is called by the number at which it was put in.

    What is trained is never merged with something else that is trained. So every token is trained at most once, while
    any number of sequences may have it as their past.

    Args:
        merges: Whether pieces are compared with what is there, and merged as far as they are equal. Otherwise each
            piece is new, and what is shared is only what it is put behind.
    """

    def __init__(self, *, merges: bool) -> None:
        self.tokens = GrowableArray(np.int32)
        self._merges = merges
        self._root = Node(0, 0, 0, False, None)
        # All nodes in the order of their tokens, and where they start.
        self._nodes: list[Node] = []
        self._starts: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def length(self, last: int) -> int:
        """How many tokens the branch has that ends with the token `last`."""
        node = self._node_of(last)
        return node.depth + last + 1 - node.start

    def ancestor(self, last: int, length: int) -> int:
        """The token with which the first `length` tokens of the branch end that `last` is the end of."""
        node = self._node_of(last)
        while node.depth >= length and node.above is not None:
            node = node.above
        return node.start + length - node.depth - 1

    def add(self, tokens: "NDArray[np.int32]", last: int, *, is_trained: bool) -> "NDArray[np.int64]":
        """Put tokens behind the token `last`. Of several ways to merge them, the one is taken that merges most.

        Args:
            tokens: Shape (n,).
            last: The token that they follow, or `NO_TOKEN`.
            is_trained: Whether they are trained.

        Returns:
            What they are called, shape (n,).
        """
        above, reached = self._node_of(last), 0
        self._cut(above, last + 1 - above.start)
        pieces: list[NDArray[np.int64]] = []
        for way in self._longest_way(above, tokens, is_trained) if self._merges else ():
            above = way.node
            self._cut(above, way.reached - reached)
            above.is_trained |= is_trained
            pieces.append(np.arange(above.start, above.stop))
            reached = way.reached
        if reached < len(tokens):
            new = self._add_node(tokens[reached:], above, is_trained)
            pieces.append(np.arange(new.start, new.stop))
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)

    def _node_of(self, token: int) -> Node:
        return self._root if token == NO_TOKEN else self._nodes[bisect_right(self._starts, token) - 1]

    def _add_node(self, tokens: "NDArray[np.int32]", above: Node, is_trained: bool) -> Node:
        start = len(self)
        self.tokens.append(tokens)
        node = Node(start, len(self), above.depth + len(above), is_trained, above)
        above.below.setdefault(int(tokens[0]), []).append(node)
        self._nodes.append(node)
        self._starts.append(start)
        return node

    def _cut(self, node: Node, count: int) -> None:
        """Cut a node behind its first `count` tokens, if it has more."""
        if count == len(node):
            return
        middle = node.start + count
        rest = Node(middle, node.stop, node.depth + count, node.is_trained, node, node.below)
        for following in rest.below.values():
            for below in following:
                below.above = rest
        node.stop, node.below = middle, {int(self.tokens.view[middle]): [rest]}
        place = bisect_right(self._starts, middle)
        self._nodes.insert(place, rest)
        self._starts.insert(place, middle)

    def _longest_way(self, above: Node, tokens: "NDArray[np.int32]", is_trained: bool) -> list[_Way]:
        """The way along most of the tokens, from the first node to the last."""
        held = self.tokens.view
        longest = _Way(above, 0, None)
        open_ways = [longest]
        while open_ways and longest.reached < len(tokens):
            way = open_ways.pop()
            for node in way.node.below.get(int(tokens[way.reached]), ()):
                if is_trained and node.is_trained:
                    continue
                reached = way.reached + _common(held[node.start : node.stop], tokens[way.reached :])
                longer = _Way(node, reached, way)
                if reached > longest.reached:
                    longest = longer
                if reached == way.reached + len(node) < len(tokens):
                    open_ways.append(longer)
        ways: list[_Way] = []
        while longest.before is not None:
            ways.append(longest)
            longest = longest.before
        return ways[::-1]

    def layout(self) -> Layout:
        """Put the tokens in depth-first order: of the branches behind a token, those first that were put in first.

        For one context, whose tokens are only appended and dropped, that is the order in which they were put in.
        """
        nodes = list(self._in_order())
        numbers: dict[Node | None, int] = {self._root: NO_TOKEN, **{node: i for i, node in enumerate(nodes)}}
        lengths = np.array([len(node) for node in nodes], dtype=np.int64)
        stops = np.cumsum(lengths)
        places = stops - lengths
        above = [numbers[node.above] for node in nodes]
        exits = stops.tolist()
        for number in range(len(nodes) - 1, -1, -1):
            if above[number] != NO_TOKEN:
                exits[above[number]] = max(exits[above[number]], exits[number])
        index = np.arange(len(self))
        parent = index - 1
        parent[places] = np.append(stops, 0)[above] - 1  # a root has none: -1
        shift = np.array([node.start for node in nodes], dtype=np.int64) - places
        depth = np.array([node.depth for node in nodes], dtype=np.int64) - places
        return Layout(
            order=index + np.repeat(shift, lengths),
            position_ids=(index + np.repeat(depth, lengths)).astype(np.int32),
            parent=parent.astype(np.int32),
            exit=np.repeat(np.array(exits, dtype=np.int32), lengths),
        )

    def _in_order(self) -> Iterator[Node]:
        open_nodes = [self._root]
        while open_nodes:
            node = open_nodes.pop()
            if node is not self._root:
                yield node
            below = [child for following in node.below.values() for child in following]
            open_nodes.extend(sorted(below, key=lambda child: -child.start))


def _common(first: "NDArray[np.int32]", second: "NDArray[np.int32]") -> int:
    """How many tokens two sequences have in common at their start."""
    length = min(len(first), len(second))
    for start, stop in ((0, min(length, _GLANCE)), (_GLANCE, length)):
        differs = first[start:stop] != second[start:stop]
        if differs.any():
            return start + int(np.argmax(differs))
    return length
