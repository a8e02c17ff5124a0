"""The functions that run a program in the sandbox."""

import asyncio
import threading

from ._isolation import check_isolation, run_isolated
from ._limits import DEFAULT_LIMITS, Isolation, SandboxLimits
from ._result import SandboxResult


def run_python(
    code: str, *, stdin: str = "", limits: SandboxLimits = DEFAULT_LIMITS, isolation: Isolation = "auto"
) -> SandboxResult:
    """Run an untrusted program, and wait for its end. It may be called from several threads at the same time.

    The program runs in a bare copy of this interpreter (`python -I -S`). It has the standard library, but no packages,
    environment variables or network. It starts in an empty folder, which is removed afterwards.

    Args:
        code: The source code of the program.
        stdin: The program's standard input.
        limits: The resource limits.
        isolation: How the program is isolated; see `Isolation`.

    Returns:
        The output and the exit status. A program that fails or exceeds a limit has a result, too.

    Raises:
        SandboxUnavailable: If this machine cannot isolate programs.
        SandboxError: If the program could not be run, or its exit status is unknown. This does not depend on the
            program.
        UnknownName: If no isolation has that name.
    """
    return _run(code, stdin, limits, isolation, threading.Event())


async def arun_python(
    code: str, *, stdin: str = "", limits: SandboxLimits = DEFAULT_LIMITS, isolation: Isolation = "auto"
) -> SandboxResult:
    """Run an untrusted program without blocking the event loop; see `run_python`. Cancellation stops the program."""
    cancelled = threading.Event()
    try:
        return await asyncio.to_thread(_run, code, stdin, limits, isolation, cancelled)
    finally:
        cancelled.set()


def _run(
    code: str, stdin: str, limits: SandboxLimits, isolation: Isolation, cancelled: threading.Event
) -> SandboxResult:
    found = check_isolation(isolation)
    return run_isolated(_encoded(code), _encoded(stdin), limits, found, cancelled)


def _encoded(text: str) -> bytes:
    """Encode a string as UTF-8. A surrogate becomes invalid UTF-8, which the interpreter rejects."""
    return text.encode(errors="surrogatepass")
