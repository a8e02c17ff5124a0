"""uvicorn for the gateway: only HTTP, bounded connections, and a shutdown that answers pending requests.

The server of one process runs in a separate thread, on loopback, and is started when it is first used.
"""

import asyncio
import atexit
import contextlib
import contextvars
import errno
import logging
import math
import os
import signal
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Generator
from concurrent.futures import wait
from functools import partial
from typing import Any

import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..authoring._event_loops import LoopThread
from ..errors import ConfigError
from ._app import ServerLimits, model_app
from ._session import ProgramSession
from ._sessions import Sessions

_BACKLOG = 2048
_ACCEPTED = 64  # connections that are accepted in one iteration of the event loop; excess ones are closed after it
_CLOSING_S = 5  # for connections whose clients do not read
_LINE_EACH_S = 60.0
_GRACE_S, _STOP_S = 1.0, 5.0  # of the server of the process


_last_logged: dict[str, tuple[float, int]] = {}
"""When each message was last logged, and how many times it was left out since then."""


def _is_seldom(record: logging.LogRecord) -> bool:
    """Return whether to log a message: once a minute, with its count since then. Clients can cause it at any rate."""
    at_s, left_out = _last_logged.get(record.msg, (-math.inf, 0))
    if time.monotonic() - at_s < _LINE_EACH_S:
        _last_logged[record.msg] = at_s, left_out + 1
        return False
    _last_logged[record.msg] = time.monotonic(), 0
    record.msg += f" ({left_out} more times before)" if left_out else ""
    return True


_log_of_connections = logging.getLogger(f"{__name__}.connections")
_log_of_connections.addFilter(_is_seldom)


class _BoundedProtocol(H11Protocol):
    """HTTP with limits of connections, and without uvicorn's access log, which would have the ids of sessions.

    The option `access_log` would change the log of every server in the process.

    Args:
        limits: The limits of the server.
        max_connections: How many connections may be open in this process.
        idle: The connections without a request, the longest idle first.
    """

    def __init__(
        self,
        limits: ServerLimits,
        max_connections: int,
        idle: "OrderedDict[_BoundedProtocol, None]",
        *arguments: Any,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.access_log = False
        self.logger = _log_of_connections
        self._limits, self._max_connections, self._idle = limits, max_connections, idle
        self._deadline: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: Any) -> None:
        """If there are too many connections, close the one that has been idle the longest."""
        super().connection_made(transport)
        self._idle[self] = None
        self._expect_request()
        if len(self.connections) > self._max_connections:
            closed, _ = self._idle.popitem(last=False)
            self.connections.discard(closed)
            closed.transport.abort()
            self.logger.warning("there were too many connections: one without a request was closed")

    @override
    def data_received(self, data: bytes) -> None:
        if self._deadline is None and self._has_no_request:
            self._expect_request()
        super().data_received(data)
        if not self._has_no_request:
            self._leave_idle()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._has_no_request and not self.transport.is_closing():
            self._idle[self] = None

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._leave_idle()
        super().connection_lost(exc)

    @property
    def _has_no_request(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete

    def _expect_request(self) -> None:
        """Give the client some time to send the headers of its next request."""
        self._deadline = self.loop.call_later(self._limits.header_timeout_s, self.transport.abort)

    def _leave_idle(self) -> None:
        self._idle.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Server(uvicorn.Server):
    """A server of one application.

    Args:
        app: The application.
        grace_s: How long requests that are being answered have to end when the server ends. Then they are canceled.
        lifespan: `"on"` if the application has a lifespan.
        limits: The limits of its connections.
    """

    def __init__(self, app: Any, *, grace_s: float, lifespan: str = "off", limits: ServerLimits | None = None) -> None:
        limits = limits or ServerLimits()
        max_connections = limits.max_connections
        with contextlib.suppress(ImportError):  # on Windows
            import resource

            descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if descriptors >= 0:
                max_connections = max(1, min(max_connections, descriptors * 3 // 4))
        config = uvicorn.Config(
            app,
            log_config=None,
            http=partial(_BoundedProtocol, limits, max_connections, OrderedDict()),  # pyright: ignore[reportArgumentType]
            ws="none",
            loop="asyncio",
            lifespan=lifespan,  # pyright: ignore[reportArgumentType]
            server_header=False,
            proxy_headers=False,
            backlog=_ACCEPTED,
            timeout_keep_alive=limits.keep_alive_s,  # pyright: ignore[reportArgumentType]
            timeout_graceful_shutdown=_CLOSING_S,
        )
        super().__init__(config)
        self._grace_s = grace_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, with a backlog that is larger than the number of connections accepted at once."""

        def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            error = context.get("exception")
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):  # once per waiting one
                text = "no file descriptor is left, so connections wait; raise the limit (ulimit -n)"
                _log_of_connections.error(text)
            else:
                loop.default_exception_handler(context)

        asyncio.get_running_loop().set_exception_handler(handle)
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(_BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, wait for pending requests, and cancel those that take too long."""
        for server in self.servers:
            server.close()
        ends_s = time.monotonic() + self._grace_s
        while self.server_state.tasks and not self.force_exit and time.monotonic() < ends_s:
            await asyncio.wait(self.server_state.tasks, timeout=0.1)
        for task in self.server_state.tasks:
            task.cancel()
        try:
            await super().shutdown(sockets)
        finally:
            for connection in [*self.server_state.connections]:  # their clients do not read
                connection.transport.abort()  # pyright: ignore[reportOptionalMemberAccess]

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """End at SIGINT and SIGTERM while it runs. Unlike uvicorn, do not raise the signal again at the end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; clients may connect before the server accepts.

    Raises:
        ConfigError: If the address does not belong to this machine, or is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets that name TCP; without it, each answer would wait for 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error}; choose another host or port (0 is any)") from error
    return listening


class BackgroundServer:
    """Answers the requests of sessions in this process, on loopback, from a daemon thread with its own event loop.

    Programs in the process should share the one that `background_server` returns. It listens once it is created.

    Args:
        limits: The limits of the server.

    Attributes:
        sessions: The sessions that it serves. Requests that are being answered are not interrupted when one is removed.
        socket: The socket at which it listens.
    """

    def __init__(self, limits: ServerLimits | None = None) -> None:
        self.sessions = Sessions()
        self.socket = listen("127.0.0.1", 0)
        self._address = "http://{}:{}".format(*self.socket.getsockname())
        limits = limits or ServerLimits()
        self._server = Server(model_app(self.sessions, limits=limits), grace_s=_GRACE_S, limits=limits)
        self._thread = LoopThread("envsdk-gateway")
        # The server must not inherit context variables of the first caller, such as its collector of tasks.
        self._serving = contextvars.Context().run(self._thread.submit, self._server.serve([self.socket]))

    @property
    def is_running(self) -> bool:
        """True while it answers requests."""
        return not self._serving.done() and not self._server.should_exit

    def base_url(self, session: ProgramSession) -> str:
        """Return the base URL of a session for clients of Anthropic's protocol; those of OpenAI's need /v1 after it."""
        return f"{self._address}/s/{session.id}"

    def stop(self) -> None:
        """Stop answering, and close all connections. Requests that are being answered have a second to end."""
        self._server.should_exit = True
        wait([self._serving], _STOP_S)
        self._thread.stop(_STOP_S)


_server: BackgroundServer | None = None
_starting = threading.Lock()
_of_parents: list[BackgroundServer] = []
"""Servers that a forked child inherited. Their threads do not exist in it, so their event loops must not be closed."""


def background_server() -> BackgroundServer:
    """Return the server of this process, which is started at the first call, and again in each forked child."""
    global _server
    with _starting:
        if _server is None or not _server.is_running:
            _server = BackgroundServer()
            atexit.register(_server.stop)
        return _server


def _forget_parent() -> None:
    """Leave the parent's server to the parent, in a forked child."""
    global _server, _starting
    if _server is not None:
        _server.socket.close()  # else the port would stay open as long as the child lives
        atexit.unregister(_server.stop)
        _of_parents.append(_server)
    _server, _starting = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_parent)
