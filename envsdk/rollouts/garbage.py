"""Rare garbage collections while episodes are played, or arrive from other processes."""

import gc
import threading
import time

_RARER = 5
"""How many times rarer automatic collections are: most of what a step makes is soon gone."""
_FULL_COLLECTION = 50
"""The same for full collections: with a thousand episodes in memory, one takes a second."""
_OFTEN_S = 0.05
"""How often the young objects are collected, in seconds.

Python counts what is made less what is freed. Where episodes end and begin, that stays near 0 while the young objects
become many, and then one collection takes a tenth of a second.
"""
_YOUNGEST = 3
"""In how many of these collections only the youngest generation is collected, before the next one is, too."""


class _RareCollections:
    """Makes garbage collections rare in this process, from the first `begin` to the last `end`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = gc.get_threshold()
        self._last = 0.0
        self._youngest = 0

    def begin(self) -> None:
        """Note that a run begins."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                young, middle, old = self._before = gc.get_threshold()
                gc.set_threshold(young * _RARER, middle, old * _FULL_COLLECTION // _RARER)

    def end(self) -> None:
        """Note that a run has ended."""
        with self._lock:
            self._users -= 1
            if not self._users:
                gc.set_threshold(*self._before)

    def collect_young(self) -> None:
        """Collect the young objects, if that was not done just before."""
        now = time.monotonic()
        if now > self._last + _OFTEN_S:
            self._last = now
            self._youngest = (self._youngest + 1) % _YOUNGEST
            gc.collect(0 if self._youngest else 1)


rare_collections = _RareCollections()
