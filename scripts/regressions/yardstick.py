"""A fixed piece of work. Other times are divided by its time, so that the machine's speed does not change figures.

It never changes: a change would change all stored figures.
"""

import json
from statistics import median
from time import perf_counter

import numpy as np

_RECORD = {"role": "tool", "content": "The quick brown fox jumps over the lazy dog. " * 20, "calls": list(range(50))}
_REPETITIONS = 9


def work() -> int:
    """Run the operations that envsdk's own code runs most: small objects, dicts, JSON strings, and copies of arrays."""
    total, array = 0, np.arange(20_000, dtype=np.int32)
    for number in range(150):
        record = json.loads(json.dumps({**_RECORD, "number": number}))
        counts = {word: len(word) + number for word in record["content"].split()}
        total += sum(counts.values()) + int(np.concatenate([array[number:], array[:number]])[0])
    return total


def time_s() -> float:
    """Measure the time of the work, in seconds: the median of several runs."""
    seconds: list[float] = []
    for _ in range(_REPETITIONS):
        start = perf_counter()
        work()
        seconds.append(perf_counter() - start)
    return median(seconds)
