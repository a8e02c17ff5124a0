"""A server on this machine for the page: the page itself, its data as JSON, and images. It only reads."""

import contextlib
import re
import socket
import threading
from collections import OrderedDict
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from .._visible import brief
from ..errors import ConfigError, EnvsdkError, ImageError, InvalidFilter, InvalidRecord, UnknownName
from ._episodes import ImageFile
from ._page import PAGE
from ._resources import Resources, as_json, error_of

_HOST = "127.0.0.1"
_INTEGER = re.compile(r"[0-9]{1,9}")
_HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_OF_IMAGES: Mapping[str, str] = {
    "Cache-Control": "private, max-age=86400, immutable",  # the address has the hash
    "Content-Security-Policy": "default-src 'none'; sandbox",
}


class ViewerServer(ThreadingHTTPServer):
    """Serves the page and its data to this machine.

    Args:
        resources: The answers to requests.
        port: The port; 0 for a free one.

    Raises:
        ConfigError: If the port is in use.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64  # with the default, 5, a browser waits a second for some of its connections
    max_connections = 64
    """The maximum number of open connections, each with a thread. Then the least recently used one is closed."""

    def __init__(self, resources: Resources, port: int = 0) -> None:
        self.resources = resources
        self.connections: OrderedDict[Any, None] = OrderedDict()  # the least recently used one first
        self.lock = threading.Lock()
        try:
            super().__init__((_HOST, port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"port {port} cannot be used: {error.strerror}. Expected a free one; --port 0 finds one"
            ) from error

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a separate thread."""
        with self.lock:
            self.connections[request] = None
            if len(self.connections) > self.max_connections:
                with contextlib.suppress(OSError):  # its thread ends then
                    self.connections.popitem(last=False)[0].shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self.lock:
            self.connections.pop(request, None)
        super().shutdown_request(request)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{_HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "envsdk"
    sys_version = ""
    timeout = 75.0
    """The maximum time that a connection may be silent, in seconds."""

    def do_GET(self) -> None:
        """Answer a request."""
        server = cast("ViewerServer", self.server)
        with server.lock:
            if self.connection in server.connections:
                server.connections.move_to_end(self.connection)
        # Other sites cannot reach the data by DNS rebinding.
        hosts = [f"{name}:{server.server_port}" for name in (_HOST, "[::1]", "localhost")]
        if self.headers.get("Host", "") not in hosts:
            self._refuse(HTTPStatus.FORBIDDEN, "HostRefused", f"the Host is not one of {', '.join(hosts)}")
            return
        url = urlsplit(self.path)
        if url.path == "/":
            self._send(HTTPStatus.OK, PAGE.read_bytes(), "text/html; charset=utf-8")
            return
        try:
            answer = _answer(server.resources, url.path, parse_qs(url.query))
        except (ImageError, InvalidRecord, UnknownName) as error:
            self._send(HTTPStatus.NOT_FOUND, error_of(error))
        except InvalidFilter as error:
            self._send(HTTPStatus.BAD_REQUEST, error_of(error))
        except (EnvsdkError, OSError) as error:
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, error_of(error))
        else:
            if isinstance(answer, ImageFile):
                self._send(HTTPStatus.OK, answer.data, answer.media_type, _OF_IMAGES)
            else:
                self._send(HTTPStatus.OK, answer)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that cannot be read, or whose method is not GET."""
        self._refuse(HTTPStatus(code), "RequestRefused", message or HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing, since a page sends many requests."""

    def _refuse(self, status: HTTPStatus, kind: str, why: str) -> None:
        self.close_connection = True
        self._send(status, {"error": {"type": kind, "message": why}})

    def _send(
        self, status: HTTPStatus, value: Any, content_type: str = "application/json", more: Mapping[str, str] = {}
    ) -> None:
        """Send bytes as they are, and other values as JSON."""
        body = value if isinstance(value, bytes) else as_json(value)
        own = {"Content-Type": content_type, "Content-Length": str(len(body))}
        try:
            self.send_response(status)
            for name, value in {**_HEADERS, **own, **more}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:  # the page was closed
            self.close_connection = True


def _answer(resources: Resources, path: str, query: Mapping[str, list[str]]) -> Any:
    """Return the answer to a path and its query.

    Raises:
        UnknownName: If there is no such path, or a number in the query is missing or wrong.
        InvalidRecord: If there is no such episode, or it is damaged.
    """

    def number(name: str, default: int | None = None) -> int:
        given = query.get(name, [""])[-1]
        if not given and default is not None:
            return default
        if _INTEGER.fullmatch(given) is None:
            raise UnknownName(f"{name} is {brief(given)}; expected an integer from 0, such as {name}=1")
        return int(given)

    match path:
        case "/api/runs":
            return resources.runs()
        case "/api/rows":
            return resources.rows(number("run"), number("after", 0), number("generation", 0))
        case "/api/search":
            return resources.search(
                number("run"), query.get("q", [""])[-1], number("after", 0), number("generation", 0)
            )
        case "/api/episode":
            return resources.episode(number("run"), number("line"))
        case "/api/tokens":
            return resources.tokens(number("run"), number("line"), query.get("context", [""])[-1])
        case "/api/prompt":
            return resources.prompt(number("run"), number("line"), number("step"))
        case "/api/image":
            return resources.image(number("run"), number("line"), query.get("sha256", [""])[-1])
        case _:
            raise UnknownName(
                f"there is nothing at {brief(path)}; expected /, /api/runs, /api/rows, /api/search, /api/episode, "
                "/api/tokens, /api/prompt or /api/image"
            )
