"""A limit for what runs too long, be it a loop, a wait, or a pattern that never matches."""

import contextlib
import signal
import threading
import time
from collections.abc import Generator


class Overtime(BaseException):
    """An episode took too long. It is no `Exception`, so that no environment takes it for one of its own."""


@contextlib.contextmanager
def time_limit(limit_s: float, what: str) -> Generator[None]:
    """Interrupt what takes too long; where there are no signals, say so afterwards.

    Raises:
        Overtime: It says what took too long.
    """
    message = f"{what} did not end within {limit_s:g} s"
    started = time.monotonic()
    can_interrupt = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    with _alarm(limit_s, message) if can_interrupt else contextlib.nullcontext():
        yield
    if time.monotonic() - started > limit_s:
        raise Overtime(message)


@contextlib.contextmanager
def _alarm(limit_s: float, message: str) -> Generator[None]:
    """Raise an `Overtime` after a while, wherever the program is then. An alarm that was set before still rings."""

    def ring(*_: object) -> None:
        raise Overtime(message)

    started = time.monotonic()
    handler = signal.signal(signal.SIGALRM, ring)
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, max(left_s - (time.monotonic() - started), 0.001))
