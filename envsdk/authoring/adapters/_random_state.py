"""Isolation of code that draws from the global random generators, such as the games and data sets of other packages."""

import contextlib
import io
import random
import threading
from collections.abc import Generator
from typing import Any

import numpy as np

_lock = threading.RLock()


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

        Only one thread at a time may enter, because this state belongs to the process.
        """
        with _lock, contextlib.nullcontext() if may_print else contextlib.redirect_stdout(io.StringIO()):
            outside = _states()
            _set_states(self._states)
            try:
                yield
            finally:
                self._states = _states()
                _set_states(outside)


def _states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state(legacy=False)


def _set_states(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
