"""uvicorn for the gateway: only HTTP, bounded connections, and a shutdown that answers pending requests."""

import asyncio
import contextlib
import errno
import logging
import math
import signal
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import ConfigError
from ._app import ServerLimits
from ._exchange import is_loopback

if TYPE_CHECKING:
    from ._management import Gateway

_BACKLOG = 2048
_ACCEPTED = 64  # connections that are accepted in one iteration of the event loop; excess ones are closed after it
_CLOSING_S = 5  # for connections whose clients do not read
_LINE_EACH_S = 60.0


class _SeldomRepeated(logging.Filter):
    """Logs a message at most once a minute, with its count since then, because clients can cause it at any rate."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, tuple[float, int]] = {}

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        at_s, left_out = self._last.get(record.msg, (-math.inf, 0))
        if time.monotonic() - at_s < _LINE_EACH_S:
            self._last[record.msg] = at_s, left_out + 1
            return False
        self._last[record.msg] = time.monotonic(), 0
        record.msg += f" ({left_out} more times before)" if left_out else ""
        return True


_log_of_connections = logging.getLogger(f"{__name__}.connections")
_log_of_connections.addFilter(_SeldomRepeated())


class _BoundedProtocol(H11Protocol):
    """HTTP with limits of connections, and without uvicorn's access log, which would have the ids of sessions.

    The option `access_log` would change the log of every server in the process.

    Args:
        limits: The limits of the server.
        idle: The connections without a request, the longest idle first.
    """

    def __init__(
        self, limits: ServerLimits, idle: "OrderedDict[_BoundedProtocol, None]", *arguments: Any, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.access_log = False
        self.logger = _log_of_connections
        self._limits, self._idle = limits, idle
        self._deadline: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: Any) -> None:
        """If there are too many connections, close the one that has been idle the longest."""
        super().connection_made(transport)
        self._idle[self] = None
        self._expect_request()
        if len(self.connections) > self._limits.possible_connections:
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
            self._idle.pop(self, None)
            self._expect_nothing()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._has_no_request and not self.transport.is_closing():
            self._idle[self] = None

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._idle.pop(self, None)
        self._expect_nothing()
        super().connection_lost(exc)

    @property
    def _has_no_request(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete

    def _expect_request(self) -> None:
        """Give the client some time to send the headers of its next request."""
        self._deadline = self.loop.call_later(self._limits.header_timeout_s, self.transport.abort)

    def _expect_nothing(self) -> None:
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
        config = uvicorn.Config(
            app,
            log_config=None,
            http=partial(_BoundedProtocol, limits, OrderedDict()),  # pyright: ignore[reportArgumentType]
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
        await super().shutdown(sockets)

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


def serve(
    gateway: "Gateway",
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    grace_s: float = 10.0,
    on_start: Callable[[str], object] = lambda url: None,
) -> None:
    """Serve a gateway until SIGINT or SIGTERM; then close its sessions and return.

    Args:
        gateway: The gateway.
        host: The address. One that other machines can reach requires a gateway with a token.
        port: The port; 0 for any free one.
        grace_s: How long requests that are being answered have to end, in seconds. A second SIGINT ends them at once.
        on_start: Called with the URL as soon as clients can connect.

    Raises:
        ConfigError: If other machines can reach the address and the gateway has no token, or it cannot be used.
    """
    if not is_loopback(host) and not gateway.has_token:
        raise ConfigError(f"host is {host!r}, which other machines may reach; give a token, or 127.0.0.1")
    with contextlib.closing(listen(host, port)) as listening:
        named = f"[{host}]" if ":" in host else host
        on_start(f"http://{named}:{listening.getsockname()[1]}")
        Server(gateway.app, grace_s=grace_s, lifespan="on", limits=gateway.limits).run([listening])


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
