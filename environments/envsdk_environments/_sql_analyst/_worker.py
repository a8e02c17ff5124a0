"""The process that runs queries, so that a query that takes too much memory or time can be killed."""

import json
import marshal
import os
import signal
import socket
import subprocess
import threading
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from envsdk.errors import SandboxError, ToolError
from envsdk.sandbox._interpreter import executable

from .guarded._query import TOO_LARGE, QueryLimits, QueryResult

_PROGRAM = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); from guarded._serve import serve; serve()"
_EXTRA_WAIT_S = 60.0
"""A query is waited for ten times its CPU time and this much longer, since a loaded machine is slow."""


class TooManySteps(ToolError):
    """A query took more steps, or more time, than it may."""


@dataclass(eq=False, repr=False)
class QueryWorker:
    """Run queries in a separate process, one at a time, from any thread.

    The process starts with the first query, and again with the next one after it ended. It ends with `close` and when
    this object is garbage-collected. A copy (`copy.deepcopy`, `pickle`) is a worker that has not started. After
    `os.fork`, the child process starts its own.
    """

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _process: "_QueryProcess | None" = None
    _end: "weakref.finalize[..., QueryWorker] | None" = None

    def run(self, image: bytes, query: str, limits: QueryLimits, max_rows: int) -> QueryResult:
        """Run a query on a database.

        Args:
            image: The database, the bytes of a sqlite file.
            query: One SELECT, or a PRAGMA that describes the schema.
            limits: How much the query may do.
            max_rows: The maximum number of rows to fetch.

        Raises:
            TooManySteps: If it takes more steps, or more time, than it may.
            ToolError: If it is not such a query, or exceeds another limit; the message specifies what to change.
            SandboxError: If the process cannot be started, or fails for another reason than the query.
        """
        request = marshal.dumps((image, query, tuple(limits), max_rows))
        with self._lock:
            if self._process is None or not self._process.is_running():
                self.close()
                self._process = _QueryProcess()
                self._end = weakref.finalize(self, self._process.end)
            kind, *answer = self._process.ask(request, limits.max_cpu_s)
        if kind == "refused":
            text, is_too_long = answer
            raise (TooManySteps if is_too_long else ToolError)(text)
        columns, rows, has_more = answer
        return QueryResult(tuple(columns), [tuple(row) for row in rows], has_more)

    def close(self) -> None:
        """End the process. The next query starts another one."""
        if self._end is not None:
            self._end()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


class _QueryProcess:
    """One process, and the socket on which it is asked."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._owner = os.getpid()
        try:
            self._popen = subprocess.Popen(
                [executable(), "-I", "-S", "-c", _PROGRAM],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                start_new_session=True,
            )
        except OSError as error:
            self._socket.close()
            raise SandboxError(f"the process that runs queries could not be started: {error}") from error
        finally:
            theirs.close()

    def is_running(self) -> bool:
        """Return whether it can be asked, by this process."""
        return self._owner == os.getpid() and self._socket.fileno() != -1 and self._popen.poll() is None

    def ask(self, request: bytes, max_cpu_s: int) -> list[Any]:
        """Return the answer to a request; afterwards, the process may have ended.

        Raises:
            TooManySteps: If the process was killed because it took too much time.
            ToolError: If it was killed for another reason.
            SandboxError: If it failed for another reason than the query.
        """
        try:
            self._socket.settimeout(10 * max_cpu_s + _EXTRA_WAIT_S)
            self._socket.sendall(len(request).to_bytes(8) + request)
            size = int.from_bytes(self._received(8))
            return json.loads(self._received(size), object_hook=lambda blob: bytes.fromhex(blob["hex"]))
        except TimeoutError as error:
            self.end()
            raise TooManySteps("the query takes too long; make it simpler") from error
        except ConnectionError as error:
            status = self._popen.wait()
            self.end()
            if status == -signal.SIGXCPU:
                raise TooManySteps("the query takes too long; make it simpler") from error
            if status < 0:
                raise ToolError(TOO_LARGE) from error
            raise SandboxError(f"the process that runs queries ended with status {status}: see its output") from error
        except BaseException:  # such as KeyboardInterrupt: its answer is not to be read as that to another request
            self.end()
            raise

    def _received(self, size: int) -> bytearray:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(min(size - len(data), 2**20))
            if not part:
                raise ConnectionResetError("the process closed its socket")
            data += part
        return data

    def end(self) -> None:
        """Kill it, unless that was done; in a child process after `os.fork`, only let go of it."""
        self._socket.close()
        if self._owner == os.getpid():
            self._popen.kill()
            self._popen.wait()
        else:
            self._popen.poll()  # it is not a child of this process, which Popen notes here
