"""Regular expressions of many names, which are searched in time that does not depend on their number.

Python's `re` tries the alternatives of a pattern one after another. So names that begin alike are written as a tree.
"""

import re
from collections import defaultdict
from collections.abc import Iterable


def pattern_of_names(names: Iterable[str]) -> str:
    """Return the regular expression of any of some names, of which the longest one is matched; it has no groups."""
    branches: dict[str, list[str]] = defaultdict(list)
    is_end = False
    for name in dict.fromkeys(names):
        if name:
            branches[name[0]].append(name)
        is_end = is_end or not name
    found = [_branch(branch) for branch in branches.values()]
    if not found:
        return "" if is_end else "(?!)"
    pattern = found[0] if len(found) == 1 and not is_end else f"(?:{'|'.join(found)})"
    return pattern + ("?" if is_end else "")


def rests_by_first(names: Iterable[str]) -> dict[str, str]:
    """Return the regular expression of what follows each first character of the names."""
    rests: dict[str, list[str]] = defaultdict(list)
    for name in filter(None, names):
        rests[name[0]].append(name[1:])
    return {first: pattern_of_names(rest) for first, rest in rests.items()}


def _branch(names: list[str]) -> str:
    """Return the regular expression of names that begin with the same character."""
    least, most = min(names), max(names)
    length = next((i for i, (a, b) in enumerate(zip(least, most, strict=False)) if a != b), len(least))
    return re.escape(least[:length]) + pattern_of_names(name[length:] for name in names)
