"""uvicorn, as the gateway uses it: nothing but HTTP, no log of its own, and an end that answers those who wait."""

import asyncio
import socket
from typing import Any

import uvicorn

from ..errors import ConfigError

_BACKLOG = 2048
_KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that none is closed just when it is used again
_CLOSING_S = 5  # for connections whose clients do not read


class Server(uvicorn.Server):
    """A server of one application.

    Args:
        app: The application.
        grace_s: How long requests that are being answered have to end when the server ends. Then they are canceled.
        lifespan: `"on"` if the application has a lifespan.
    """

    def __init__(self, app: Any, *, grace_s: float, lifespan: str = "off") -> None:
        # uvicorn's access log would have the ids of sessions, which are in paths.
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            http="h11",
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
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=self._grace_s)
        for task in self.server_state.tasks:
            task.cancel()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; clients may connect before the server accepts.

    Raises:
        ConfigError: If the address is not one of this machine, or is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error}; choose another host or port (0 is any)") from error
    return listening
