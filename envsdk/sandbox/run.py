"""Running a program, and waiting for it or not."""

import asyncio
import threading

from .isolation import check_isolation, run_isolated
from .limits import DEFAULT_LIMITS, Isolation, SandboxLimits
from .result import SandboxResult


def run_python(
    code: str, *, stdin: str = "", limits: SandboxLimits = DEFAULT_LIMITS, isolation: Isolation = "auto"
) -> SandboxResult:
    """Run a program that nobody trusts, and wait for its end. Any number of threads may do so at a time.

    It runs in this interpreter's bare self (`python -I -S`): it has the standard library, no packages, no environment
    variables, no network, an empty folder that is removed afterwards, and nothing of what an earlier program left.

    Args:
        code: The program.
        stdin: What it reads.
        limits: What it may use.
        isolation: What keeps it apart; see `Isolation`.

    Returns:
        What came of it, whatever it did.

    Raises:
        SandboxUnavailable: If this machine does not keep programs apart.
        SandboxError: If it could not be run, or nobody knows how it ended. That says nothing about the program.
        UnknownName: If there is no such isolation.
    """
    return _run(code, stdin, limits, isolation, threading.Event())


async def arun_python(
    code: str, *, stdin: str = "", limits: SandboxLimits = DEFAULT_LIMITS, isolation: Isolation = "auto"
) -> SandboxResult:
    """As `run_python`, in a thread of the event loop's own, while the loop goes on. Cancelled, it stops the program."""
    unwanted = threading.Event()
    try:
        return await asyncio.to_thread(_run, code, stdin, limits, isolation, unwanted)
    finally:
        unwanted.set()


def _run(
    code: str, stdin: str, limits: SandboxLimits, isolation: Isolation, unwanted: threading.Event
) -> SandboxResult:
    found = check_isolation(isolation)
    return run_isolated(_encoded(code), _encoded(stdin), limits, found, unwanted)


def _encoded(text: str) -> bytes:
    """A text as UTF-8; a surrogate, which has none, as bytes that are no UTF-8, for the program to refuse."""
    return text.encode(errors="surrogatepass")
