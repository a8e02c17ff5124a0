"""Which rows of a matrix of parameters a short run takes: few, but each value of each parameter.

`@pytest.mark.matrix` marks a test whose rows show the same rule for many values. Its rows are chosen so that each value
of each parameter (with `pairs=True`, each pair of values of two parameters) is in at least one of them. With `every=3`,
a short run takes only each third of these; where it begins depends on the name of the file, so that the tests of a file
share what they measure, and several files together take all of them.
`@pytest.mark.full` marks a test or a single row that only the full run has. `--full` runs every row.
"""

import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

SLOW_CHECKS = ("same bytes in another process", "garbage replies", "injected text", "enormous replies", "cut replies")
"""Checks of `check_env` that a short run makes with few environments."""
Row = Mapping[str, Hashable]  # which object each parameter is, by its id


def short_run(items: Sequence["pytest.Item"]) -> list["pytest.Item"]:
    """Return the items of a short run, in their order."""
    matrices: dict[tuple[str, bool, int], list[pytest.Item]] = {}
    kept: set[pytest.Item] = set()
    for item in items:
        if item.get_closest_marker("full"):
            continue
        matrix = item.get_closest_marker("matrix")
        if matrix is None or not row_of(item):
            kept.add(item)
        else:
            name = item.nodeid.partition("[")[0]
            key = name, matrix.kwargs.get("pairs", False), matrix.kwargs.get("every", 1)
            matrices.setdefault(key, []).append(item)
    for (name, pairs, every), rows in matrices.items():
        chosen = covering([row_of(item) for item in rows], pairs=pairs)
        first = zlib.crc32(name.partition("::")[0].encode()) % min(every, len(chosen))
        kept.update(rows[at] for at in chosen[first::every])
    return [item for item in items if item in kept]


def row_of(item: "pytest.Item") -> Row:
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else {name: id(value) for name, value in callspec.params.items()}


def covering(rows: Sequence[Row], *, pairs: bool = False) -> list[int]:
    """Return the indices of a few rows that have all values that any row has, or all pairs of two of them.

    Greedy: each time the row with the most values that are still missing, and of these one whose values were taken
    least often.
    """
    wanted = [frozenset(_values(row, 2 if pairs and len(row) > 1 else 1)) for row in rows]
    missing = set().union(*wanted)
    left, chosen, taken = dict.fromkeys(range(len(rows))), [], Counter[Hashable]()
    while missing:
        best = max(left, key=lambda at: (len(wanted[at] & missing), -sum(taken[one] for one in rows[at].items())))
        missing -= wanted[best]
        taken.update(rows[best].items())
        chosen.append(best)
        del left[best]
    return sorted(chosen)


def _values(row: Row, size: int) -> Iterable[Hashable]:
    return combinations(sorted(row.items()), size)
