"""Runs a command on this machine with a time limit, and cuts its output."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Literal, TypeAlias

from ..errors import ContainerError
from ._process import Output

CommandLimit: TypeAlias = Literal["time", "output", "disk"]
_TIMEOUT_S = 120.0
"""The default time limit, in seconds: it is for a command of a container engine that runs nothing of the user's."""
_LOOK_S = 0.2
"""The interval between checks of the limits, in seconds."""
_DRAIN_S = 1.0
"""The maximum time for reading what a command wrote after it has ended: its children may keep the output open."""
_MAX_OUTPUT = 16
"""A command is stopped when it writes more than this many times the limit on its kept output."""


class _Process(asyncio.SubprocessProtocol):
    """Reads what a process writes. It has no tasks, since asyncio.run cancels all tasks when its main one fails."""

    def __init__(self, stdout: Output, stderr: Output) -> None:
        self._outputs = {1: stdout, 2: stderr}
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when the process has ended."""
        self.drained: asyncio.Future[None] = loop.create_future()
        """Done when its output has ended as well."""

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._outputs[fd].add(data)

    def process_exited(self) -> None:
        self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.drained.set_result(None)


class Command:
    """A command, its output and its end.

    Args:
        size: The size to which each output is cut, in bytes.
        timeout_s: The maximum wall-clock time, in seconds.
        written: Returns how much was written, in bytes.
        most: The maximum of that.
        mark: What it writes to standard error when it begins, after which its time counts; empty if it writes nothing.
            It is not stopped before that: an engine would still start what its client has requested.
    """

    def __init__(
        self,
        size: int = 2**20,
        timeout_s: float = _TIMEOUT_S,
        written: Callable[[], int] | None = None,
        most: int = 0,
        mark: str = "",
    ) -> None:
        self.stdout, self.stderr = Output(size), Output(size)
        self.status: int | None = None
        """The exit status; None if the client was stopped."""
        self.limit: CommandLimit | None = None
        self._size, self._timeout_s, self._mark = size, timeout_s, mark
        self._ends_at = time.monotonic() + (_TIMEOUT_S if mark else timeout_s)
        self._written, self._most = written, most

    @property
    def message(self) -> str:
        """The end of what it wrote to standard error."""
        return self.stderr.text().strip()[-500:]

    async def execute(
        self,
        arguments: Sequence[str],
        stdin: bytes | IO[bytes] = b"",
        into: IO[bytes] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Run it to its end or to a limit, whichever comes first.

        Args:
            arguments: The program and its arguments.
            stdin: Its standard input.
            into: The file that its standard output is written to, in place of `stdout`.
            environ: Environment variables in addition to those of this process.
        """
        pipe, source = asyncio.subprocess.PIPE, None if isinstance(stdin, bytes) else stdin
        transport, process = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Process(self.stdout, self.stderr),
            *arguments,
            stdin=source or pipe,
            stdout=into or pipe,
            stderr=pipe,
            env=None if environ is None else {**os.environ, **environ},
            cwd="/",  # conmon writes a file where it was started when a container has no memory left
            start_new_session=True,  # Ctrl-C reaches this process alone, which needs the engine to clean up
        )
        if isinstance(stdin, bytes):
            feed: Any = transport.get_pipe_transport(0)
            feed.write(stdin)
            feed.write_eof()
        try:
            while self.limit is None and not process.ended.done():
                await asyncio.wait([process.ended], timeout=_LOOK_S)
                self.limit = await self._exceeded()
            if process.ended.done():
                await asyncio.wait([process.drained], timeout=_DRAIN_S)
                self.status = None if self.limit else transport.get_returncode()
        finally:
            while not process.ended.done() and not self._has_begun() and time.monotonic() < self._ends_at:
                await asyncio.sleep(_LOOK_S)
            if not process.ended.done():
                transport.kill()
                await asyncio.wait([process.ended])
            transport.close()

    def _has_begun(self) -> bool:
        if self._mark and self._mark in self.stderr.text():
            self._mark, self._ends_at = "", time.monotonic() + self._timeout_s
        return not self._mark

    async def _exceeded(self) -> CommandLimit | None:
        self._has_begun()
        if time.monotonic() > self._ends_at:
            return "time"
        if max(self.stdout.size, self.stderr.size) > _MAX_OUTPUT * self._size:
            return "output"
        if self._written is not None and await asyncio.to_thread(self._written) > self._most:
            return "disk"
        return None


async def output_of(*arguments: str, timeout_s: float = _TIMEOUT_S) -> str:
    """Return the standard output of a command, without white space around it.

    Raises:
        ContainerError: If it failed, or wrote more than 1 MiB.
    """
    call = Command(timeout_s=timeout_s)
    await call.execute(arguments)
    if call.status != 0:
        why = f"it took longer than {timeout_s:g} s" if call.limit else call.message
        raise ContainerError(f"{' '.join(arguments[:2])} failed: {why}")
    if call.stdout.is_cut:
        raise ContainerError(f"{' '.join(arguments[:2])} wrote {call.stdout.size:,} bytes, which is too much")
    return call.stdout.text().strip()
