"""Isolation of code that draws from the global random generators, such as the games and data sets of other packages."""

import contextlib
import random
import sys
import threading
from collections.abc import Generator
from typing import Any, cast

import numpy as np

from ...errors import WorkerLost
from .._event_loops import is_abandoned

_lock = threading.RLock()
_holder: threading.Thread | None = None
_LOOK_S = 0.2
"""The interval between checks whether the thread that is inside was abandoned, in seconds."""


class _Quiet:
    """Standard output without what the thread that made this writes."""

    def __init__(self) -> None:
        self._stream, self._thread = sys.stdout, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._thread else self._stream.write(text)


class GlobalRandom:
    """A state of the global random generators, Python's and numpy's, that belongs to one environment.

    Args:
        seed: The seed of both generators: not negative.
    """

    def __init__(self, seed: int) -> None:
        numpy: Any = np.random.RandomState(seed % 2**32).get_state(legacy=False)
        self._states: tuple[Any, Any] = random.Random(seed).getstate(), numpy

    @contextlib.contextmanager
    def active(self, *, may_print: bool = False) -> Generator[None]:
        """Give the global generators this state, and afterwards their former one. Inside, nothing is printed.

        Only one thread at a time may enter, because this state belongs to the process. The others wait.

        Raises:
            WorkerLost: If the thread that is inside was abandoned at a deadline. It may never leave.
        """
        global _holder
        while not _lock.acquire(timeout=_LOOK_S):
            if is_abandoned(_holder):
                raise WorkerLost(
                    "a method that did not return in time still uses the random generators of this process, so no "
                    "other one can: run with executor='processes', where envsdk ends the process"
                )
        above, _holder = _holder, threading.current_thread()
        try:
            with contextlib.nullcontext() if may_print else contextlib.redirect_stdout(cast("Any", _Quiet())):
                outside = _states()
                _set_states(self._states)
                try:
                    yield
                finally:
                    self._states = _states()
                    _set_states(outside)
        finally:
            _holder = above
            _lock.release()


def _states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state(legacy=False)


def _set_states(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
