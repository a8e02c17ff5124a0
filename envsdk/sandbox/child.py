"""The launcher's child, as seen from outside: the program, or process 1 of its namespace, with which all others end.

The launcher ends it. If the launcher itself is killed, the kernel is asked to end the child, but a program can undo
that: when one of its threads becomes another program, the request is gone. So whoever runs the program holds its
process by a file descriptor, too, and needs nobody to end it.
"""

import os
import select
import signal
from pathlib import Path

from ..errors import SandboxError

_PARENT, _THREADS = 1, 17  # in what /proc/PID/stat says after the name
_HAS_DESCRIPTORS = hasattr(os, "pidfd_open")


def check_descriptors() -> None:
    """Try out that processes can be held by file descriptors.

    Raises:
        OSError: If this machine does not allow it.
    """
    os.close(os.pidfd_open(os.getpid()))


class Child:
    """A process that another one started.

    Args:
        number: Its process id.
        parent: Who started it, which has not been waited for.

    Raises:
        OSError: If it has ended, or cannot be held.
    """

    def __init__(self, number: int, parent: int) -> None:
        self._number = number
        self._file = os.pidfd_open(number)
        try:
            if _status(number)[_PARENT] != str(parent):
                raise ProcessLookupError(f"process {number} is not a child of {parent}")
            self.send(0)  # still there, so that what was read is about this process
        except BaseException:
            self.close()
            raise

    def send(self, number: int) -> None:
        """Send a signal.

        Raises:
            ProcessLookupError: If the process has ended.
        """
        signal.pidfd_send_signal(self._file, number)

    def thread_count(self) -> int:
        """Count its threads: 0 if it has ended."""
        try:
            return int(_status(self._number)[_THREADS])
        except OSError:
            return 0

    def end(self, timeout_s: float) -> None:
        """Kill it, if it has not ended, and wait for its end.

        Raises:
            SandboxError: If it does not end.
        """
        try:
            self.send(signal.SIGKILL)
        except ProcessLookupError:
            return
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        if not poll.poll(1000 * timeout_s):
            raise SandboxError(f"the program could not be stopped within {timeout_s:g} s")

    def close(self) -> None:
        """Let go of the process."""
        os.close(self._file)


def child_of(parent: int, number: int) -> Child | None:
    """Hold a child; None if it has ended, or if this machine cannot hold processes."""
    if not _HAS_DESCRIPTORS:
        return None
    try:
        return Child(number, parent)
    except OSError:
        return None


def _status(number: int) -> list[str]:
    return Path(f"/proc/{number}/stat").read_text(errors="replace").rpartition(")")[2].split()
