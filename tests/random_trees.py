"""Random trees in depth-first order, as arrays of parents."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st


@st.composite
def trees(draw: Any, max_tokens: int = 40) -> Any:
    """A tree: each token follows the one before it, one that this one sees, or none."""
    ups = draw(st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 5, 100]), min_size=1, max_size=max_tokens))
    parent: list[int] = []
    for index, up in enumerate(ups):
        last = index - 1
        for _ in range(up):
            last = parent[last] if last >= 0 else last
        parent.append(last)
    return SimpleNamespace(parent=np.array(parent, dtype=np.int32))


def branch(tree: Any, index: int) -> list[int]:
    """What a token sees, from its root to itself."""
    path: list[int] = []
    while index >= 0:
        path.append(index)
        index = int(tree.parent[index])
    return path[::-1]
