"""A time limit for code that may run too long, such as a loop, a wait, or a regular expression."""

import contextlib
import signal
import threading
import time
from collections.abc import Generator


class TimeLimitExceeded(BaseException):
    """A time limit is over. It is not an `Exception`, so an environment does not catch it by mistake."""


@contextlib.contextmanager
def time_limit(limit_s: float, what: str) -> Generator[None]:
    """Interrupt the code inside after a time limit. Without signals (in other threads), raise when it has ended.

    Args:
        limit_s: The time limit, in seconds.
        what: The name of the code, for the error.

    Raises:
        TimeLimitExceeded: If the code took too long.
    """
    message = f"{what} did not end within {limit_s:g} s"
    started = time.monotonic()
    can_interrupt = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    with _alarm(limit_s, message) if can_interrupt else contextlib.nullcontext():
        yield
    if time.monotonic() - started > limit_s:
        raise TimeLimitExceeded(message)


@contextlib.contextmanager
def _alarm(limit_s: float, message: str) -> Generator[None]:
    """Raise `TimeLimitExceeded` from a timer signal. A timer that was set before is restored afterwards."""

    def ring(*_: object) -> None:
        raise TimeLimitExceeded(message)

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
