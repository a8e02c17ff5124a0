"""One run of a program, seen from outside: it starts the launcher, exchanges data with it, and ends it.

Normally the launcher ends its child: the program, or process 1 of its namespace (all others end with it). If the
launcher is killed, the kernel ends the child (PR_SET_PDEATHSIG), but a program can undo that: the setting is lost when
one of its threads executes another program. So this process also holds the child by a file descriptor (a pidfd), and
can end it without the launcher.
"""

import contextlib
import os
import re
import select
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeAlias, cast

from ..errors import SandboxError, SandboxUnavailable
from ._bubblewrap import wrapped
from ._interpreter import command, sent
from ._job import SandboxJob
from ._result import Isolation, Limit, SandboxLimits, SandboxResult, limit_in

_Process: TypeAlias = "subprocess.Popen[bytes]"
_START_S = 60.0
"""The maximum time until the program starts, in seconds. It is long because a loaded machine is slow."""
_STOP_S = 10.0
"""The maximum time until all processes of a stopped program have ended, in seconds."""
_LOOK_S = 0.1
"""The interval between checks of the limits while the program writes nothing, in seconds."""
_CHUNK = 2**16
_MAX_CHUNKS_IN_PIPE = 16
_MAX_OUTPUT = 16
"""A program is stopped when it writes more than this many times the limit on its kept output."""
_CPU_SIGNAL, _KILL_SIGNAL = -24, -9
_PARENT, _THREADS = 1, 17  # indices of the fields after the name in /proc/PID/stat
_CHILD = re.compile(rb'^(?:child |\{ *"child-pid": *)(\d+)\b.*\n', re.MULTILINE)
"""The report of the child's process id, by the launcher or by bubblewrap."""


@dataclass(eq=False, repr=False)
class Output:
    """The beginning and the end of an output, and the number of bytes left out between them.

    Args:
        limit: The maximum number of bytes to keep.
    """

    limit: int
    size: int = 0
    """The number of bytes that were added."""
    _head: bytearray = field(default_factory=bytearray)
    _tail: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        """Append bytes."""
        self.size += len(data)
        head_size = self.limit // 2
        room = head_size - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        del self._tail[: -(self.limit - head_size)]

    @property
    def is_cut(self) -> bool:
        """True if bytes are left out."""
        return self.size > self.limit

    def text(self) -> str:
        """Return the kept bytes as a string. Invalid UTF-8 is replaced by U+FFFD."""
        if not self.is_cut:
            return (self._head + self._tail).decode(errors="replace")
        left_out = f"\n[... {self.size - self.limit:,} bytes are left out ...]\n"
        return self._head.decode(errors="replace") + left_out + self._tail.decode(errors="replace")


class Run:
    """One run of a program.

    Args:
        job: The launcher's description of the run.
        stdin: The program's standard input.
        limits: The resource limits.
        isolation: How the program is isolated. It is recorded in the result.
        cancelled: The program is stopped when the caller sets this event.
    """

    def __init__(
        self, job: SandboxJob, stdin: bytes, limits: SandboxLimits, isolation: Isolation, cancelled: threading.Event
    ) -> None:
        self._job, self._stdin, self._cancelled = job, stdin, cancelled
        self._limits = limits
        self._isolation: Isolation = isolation
        self._stdout, self._stderr = Output(limits.output_kib * 1024), Output(limits.output_kib * 1024)
        self._reports = bytearray()
        self._child = 0  # the id of the launcher's child
        self._descriptor: int | None = None  # of the child
        self._limit: Limit | None = None
        self._started_at = self._stopped_at = self._looked_at = 0.0  # 0.0 means not yet

    def wait(self) -> SandboxResult:
        """Run the program to its end.

        Raises:
            SandboxError: If the program could not be run or stopped, or its exit status is unknown.
        """
        try:
            reports, write_end = os.pipe()
            with os.fdopen(reports, "rb", 0) as file:
                try:
                    process = self._start(write_end)
                finally:
                    os.close(write_end)
                with process:
                    try:
                        self._exchange(process, file)
                    finally:
                        self._end(process)
        except OSError as error:
            raise SandboxError(f"the program could not be run: {error}") from error
        return self._result(process.returncode)

    def _start(self, control: int) -> _Process:
        self._job["control"] = control
        self._began_at = time.monotonic()
        pipe, root = subprocess.PIPE, self._job["root"]
        status = os.dup(control)  # bubblewrap closes this one
        try:
            return subprocess.Popen(
                wrapped(root, status) if root and root["is_wrapped"] else command(),
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                bufsize=0,
                pass_fds=[control, status] if root and root["is_wrapped"] else [control],
                env={},
                start_new_session=True,
            )
        finally:
            os.close(status)

    def _exchange(self, process: _Process, reports: IO[bytes]) -> None:
        """Write the input and read the output until the launcher ends, which is after all processes of the program."""
        stdin, stdout, stderr = (cast("IO[bytes]", file) for file in (process.stdin, process.stdout, process.stderr))
        data = memoryview(sent("_launcher", self._job) + self._stdin)
        outputs = {stdout: self._stdout.add, stderr: self._stderr.add, reports: self._reports.extend}
        with selectors.DefaultSelector() as selector:
            os.set_blocking(stdin.fileno(), False)
            selector.register(stdin, selectors.EVENT_WRITE)
            for file in outputs:
                selector.register(file, selectors.EVENT_READ)
            while not reports.closed:
                for key, _ in selector.select(_LOOK_S):
                    file = cast("IO[bytes]", key.fileobj)
                    if file is stdin:
                        try:
                            data = data[os.write(file.fileno(), data[:_CHUNK]) :]
                        except BrokenPipeError:  # the program does not read it
                            data = data[:0]
                        is_open = bool(data)
                    else:
                        is_open = _read(file, outputs[file])
                    if not is_open:
                        selector.unregister(file)
                        file.close()
                self._check_limits(process, time.monotonic())
        # Without blocking: without isolation, another process may keep the other end of a pipe open.
        for file in (stdout, stderr):
            if not file.closed:
                os.set_blocking(file.fileno(), False)
                with contextlib.suppress(BlockingIOError):
                    chunks = 0
                    while chunks < _MAX_CHUNKS_IN_PIPE and _read(file, outputs[file]):
                        chunks += 1

    def _check_limits(self, process: _Process, now: float) -> None:
        """Read the launcher's reports, and stop a program that has exceeded a limit or was cancelled."""
        if not self._started_at and b"started\n" in self._reports:
            self._started_at = now
        if not self._child and (found := _CHILD.search(self._reports)):
            self._child = int(found[1])
            with contextlib.suppress(OSError, AttributeError):  # it has ended, or this machine has no pidfd_open
                self._descriptor = os.pidfd_open(self._child)
                if _status(self._child)[_PARENT] != str(process.pid):  # its id was reused before that
                    os.close(self._descriptor)
                    self._descriptor = None
        if self._stopped_at:
            if now > self._stopped_at + _STOP_S:
                raise SandboxError(f"the program could not be stopped within {_STOP_S:g} s")
            return
        self._limit = self._exceeded(now)
        if self._limit or self._cancelled.is_set():
            self._stopped_at = now
            process.terminate()

    def _exceeded(self, now: float) -> Limit | None:
        """Return the exceeded limit, of those that are checked from outside; None if there is none."""
        if not self._started_at:
            if now > self._began_at + _START_S:
                raise SandboxError(f"the program did not start within {_START_S:g} s")
            return None
        if now > self._started_at + self._limits.timeout_s:
            return "time"
        if max(self._stdout.size, self._stderr.size) > _MAX_OUTPUT * self._limits.output_kib * 1024:
            return "output"
        if self._job["root"] is not None or now <= self._looked_at + _LOOK_S:
            return None
        self._looked_at, size = now, 0  # what follows are limits that the kernel enforces only in namespaces
        for entry in Path(self._job["folder"]).iterdir():
            with contextlib.suppress(FileNotFoundError):
                size += max(entry.lstat().st_blocks * 512, 4096)  # an empty file counts as one page
        if size > self._limits.disk_mib * 2**20:
            return "disk"
        if self._job["rules"] is not None and self._descriptor is not None:
            with contextlib.suppress(OSError):  # it has ended
                if int(_status(self._child)[_THREADS]) > self._limits.processes:
                    return "processes"
        return None

    def _end(self, process: _Process) -> None:
        """End the launcher, which ends the program; then make sure that the program has ended."""
        try:
            if process.poll() is None:
                process.terminate()
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise SandboxError(f"the program could not be stopped within {_STOP_S:g} s") from error
        finally:
            if self._descriptor is not None:
                try:
                    signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
                    poll = select.poll()
                    poll.register(self._descriptor, select.POLLIN)
                    if not poll.poll(1000 * _STOP_S):
                        raise SandboxError(f"the program could not be stopped within {_STOP_S:g} s")
                except ProcessLookupError:
                    pass
                finally:
                    os.close(self._descriptor)

    def _result(self, status: int) -> SandboxResult:
        """Return the result, from the launcher's reports.

        Raises:
            SandboxUnavailable: If the program could not be confined.
            SandboxError: If the exit status of the program is unknown.
        """
        seconds = time.monotonic() - self._started_at
        lines = self._reports.decode(errors="replace").split("\n")
        errors = [line.removeprefix("error ") for line in lines if line.startswith("error ")]
        ends = [int(line.removeprefix("exit ")) for line in lines if line.startswith("exit ")]
        if errors:
            raise SandboxUnavailable(f"the program could not be confined: {errors[0]}")
        if not self._stopped_at and not (self._started_at and ends):
            stderr = self._stderr.text()[-1000:]
            if stderr.startswith("bwrap: ") and not self._started_at:
                raise SandboxUnavailable(stderr.strip())
            raise SandboxError(
                f"the launcher ended with status {status} and did not report how the program ended. {stderr}"
            )
        exit_status = None if self._stopped_at else ends[0]
        stderr, limit = self._stderr.text(), self._limit
        if limit is None and exit_status == 1:
            limit = limit_in(stderr)
        elif exit_status == _CPU_SIGNAL or (exit_status == _KILL_SIGNAL and seconds > self._limits.cpu_s):
            limit = limit or "cpu"
        return SandboxResult(
            stdout=self._stdout.text(),
            stderr=stderr,
            exit_status=exit_status,
            limit=limit,
            stdout_cut=self._stdout.is_cut,
            stderr_cut=self._stderr.is_cut,
            seconds=seconds,
            limits=self._limits,
            isolation=self._isolation,
        )


def _status(number: int) -> list[str]:
    """Return the fields after the name in the kernel's status of a process."""
    return Path(f"/proc/{number}/stat").read_text(errors="replace").rpartition(")")[2].split()


def _read(file: IO[bytes], take: Callable[[bytes], None]) -> bool:
    """Read the available bytes. Return False at the end of the file."""
    data = os.read(file.fileno(), _CHUNK)
    take(data)
    return bool(data)
