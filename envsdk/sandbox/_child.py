"""The launcher's child, seen from outside: the program, or process 1 of its namespace (all others end with it).

Normally the launcher ends its child. If the launcher is killed, the kernel ends the child (PR_SET_PDEATHSIG), but a
program can undo that: the setting is lost when one of its threads executes another program. So the process that runs
the program also holds the child by a file descriptor (a pidfd), and can end it without the launcher.
"""

import os
import select
import signal
from pathlib import Path

from ..errors import SandboxError

_PARENT, _THREADS = 1, 17  # indices of the fields after the name in /proc/PID/stat
_HAS_DESCRIPTORS = hasattr(os, "pidfd_open")


def check_descriptors() -> None:
    """Check that this machine supports file descriptors of processes (pidfd_open).

    Raises:
        OSError: If it does not.
    """
    os.close(os.pidfd_open(os.getpid()))


class Child:
    """A process, held by a file descriptor.

    Args:
        number: The id of the process.
        parent: The id of its parent, which must not have been waited for.

    Raises:
        OSError: If the process has ended, or this machine has no pidfd_open.
    """

    def __init__(self, number: int, parent: int) -> None:
        self._number = number
        self._file = os.pidfd_open(number)
        try:
            if _status(number)[_PARENT] != str(parent):
                raise ProcessLookupError(f"process {number} is not a child of {parent}")
            self.send(0)  # still alive, so the status that was read belongs to this process
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
        """Return the number of its threads; 0 if the process has ended."""
        try:
            return int(_status(self._number)[_THREADS])
        except OSError:
            return 0

    def end(self, timeout_s: float) -> None:
        """Kill the process if it has not ended, and wait for its end.

        Raises:
            SandboxError: If it does not end within `timeout_s` seconds.
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
        """Close the file descriptor."""
        os.close(self._file)


def child_of(parent: int, number: int) -> Child | None:
    """Return a child process; None if it has ended, or if this machine has no pidfd_open."""
    if not _HAS_DESCRIPTORS:
        return None
    try:
        return Child(number, parent)
    except OSError:
        return None


def _status(number: int) -> list[str]:
    return Path(f"/proc/{number}/stat").read_text(errors="replace").rpartition(")")[2].split()
