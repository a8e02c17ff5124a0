"""A fixed piece of work, by whose time other times are divided, so that a slower machine changes no figure.

It never changes: a change would change all stored figures.
"""

import json
from statistics import median
from time import perf_counter

import numpy as np

_RECORD = {"role": "tool", "content": "The quick brown fox jumps over the lazy dog. " * 20, "calls": list(range(50))}
_REPETITIONS = 9


def work() -> int:
    """Do what envsdk's own code does most: small objects, dicts, texts as JSON, and copies of arrays."""
    total, array = 0, np.arange(20_000, dtype=np.int32)
    for number in range(150):
        record = json.loads(json.dumps({**_RECORD, "number": number}))
        counts = {word: len(word) + number for word in record["content"].split()}
        total += sum(counts.values()) + int(np.concatenate([array[number:], array[:number]])[0])
    return total


def time_s() -> float:
    """Return how long the work takes now, in seconds: the median of several times."""
    seconds: list[float] = []
    for _ in range(_REPETITIONS):
        start = perf_counter()
        work()
        seconds.append(perf_counter() - start)
    return median(seconds)
