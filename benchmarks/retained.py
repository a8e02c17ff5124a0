"""The memory that an object keeps: its own bytes, and those of everything that it refers to."""

import gc
import sys
from types import FunctionType, ModuleType
from typing import Any

import numpy as np


def retained_bytes(root: Any) -> int:
    """Return the bytes of an object and of all data that it refers to, each once, without classes and modules."""
    seen: set[int] = set()
    total, waiting = 0, [root]
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, (type, ModuleType, FunctionType)):
            continue
        seen.add(id(found))
        total += sys.getsizeof(found)
        if isinstance(found, np.ndarray) and found.base is not None:
            waiting.append(found.base)
        waiting.extend(gc.get_referents(found))
    return total
