"""uvicorn, as the gateway uses it: nothing but HTTP, no log of its own, and an end that answers those who wait."""

import asyncio
import contextlib
import ipaddress
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Protocol

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import ConfigError

_BACKLOG = 2048
_KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that none is closed just when it is used again
_CLOSING_S = 5  # for connections whose clients do not read


class Servable(Protocol):
    """What `serve` needs of a gateway."""

    @property
    def app(self) -> Any:
        """The application."""
        ...

    @property
    def has_token(self) -> bool:
        """Whether managing its sessions requires a token."""
        ...


class _QuietProtocol(H11Protocol):
    """HTTP without uvicorn's access log, which would have paths, and so the ids of sessions.

    The option `access_log` would change the log of every server in the process.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.access_log = False


class Server(uvicorn.Server):
    """A server of one application.

    Args:
        app: The application.
        grace_s: How long requests that are being answered have to end when the server ends. Then they are canceled.
        lifespan: `"on"` if the application has a lifespan.
    """

    def __init__(self, app: Any, *, grace_s: float, lifespan: str = "off") -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            http=_QuietProtocol,
            ws="none",
            loop="asyncio",
            lifespan=lifespan,  # pyright: ignore[reportArgumentType]
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_CLOSING_S,
        )
        super().__init__(config)
        self._grace_s = grace_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, wait for the requests that are being answered, and cancel those that last."""
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
    gateway: Servable,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    grace_s: float = 10.0,
    on_start: Callable[[str], object] = lambda url: None,
) -> None:
    """Serve a gateway until SIGINT or SIGTERM; then close its sessions and return.

    Args:
        gateway: The gateway.
        host: The address. Others than those of this machine require a gateway with a token.
        port: The port; 0 for any that is free.
        grace_s: How long requests that are being answered have to end, in seconds. A second SIGINT ends them at once.
        on_start: Called with the URL as soon as clients can connect.

    Raises:
        ConfigError: If the address is not one of this machine and the gateway has no token, or cannot be used.
    """
    if not is_loopback(host) and not gateway.has_token:
        raise ConfigError(f"host is {host!r}, which other machines may reach; give a token, or 127.0.0.1")
    with contextlib.closing(listen(host, port)) as listening:
        named = f"[{host}]" if ":" in host else host
        on_start(f"http://{named}:{listening.getsockname()[1]}")
        Server(gateway.app, grace_s=grace_s, lifespan="on").run([listening])


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, and cannot be reached from others."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; clients may connect before the server accepts.

    Raises:
        ConfigError: If the address is not one of this machine, or is in use.
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
