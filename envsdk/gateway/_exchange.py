"""One HTTP exchange: its id, its line in the log, its metrics, and how errors are answered.

No content enters the log: a line has the id of the request, the method, the template of the route, the status and the
time. An unexpected exception is logged without its text, which may quote a message.
"""

import asyncio
import logging
import secrets
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import RequestError
from ._metrics import Metrics
from ._protocols import WireFormat, load_protocol

_log = logging.getLogger(__name__)
_KEY = "envsdk.exchange"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CLIENT_GONE = 499
"""The status in the log and the metrics of a request whose client went away before the answer, as in nginx."""


class ClientGone(Exception):
    """The client closed the connection before it had the answer."""


class Refusal(RequestError):
    """A `RequestError` of the server itself, with headers of its response."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, status, code)
        self.headers = headers


@dataclass(slots=True)
class Exchange:
    """What is known of a request while it is answered.

    Attributes:
        protocol: The name of the protocol in whose form errors are answered.
        route: The template of the route.
        status: The status of the response; 499 until it has started.
        id: Identifies the request in the log and in the response.
    """

    protocol: str
    route: str = "(no route)"
    status: int = CLIENT_GONE
    id: str = field(default_factory=lambda: f"req_{secrets.token_hex(12)}")

    @property
    def has_started(self) -> bool:
        """Whether the response has started."""
        return self.status != CLIENT_GONE

    @staticmethod
    def of(scope: Scope) -> "Exchange":
        """Return the exchange of a request."""
        return cast("Exchange", scope[_KEY])


_wire_formats: dict[str, WireFormat] = {}


async def wire_format(name: str) -> WireFormat:
    """Return a protocol. The first call imports its package, which takes seconds, in a thread."""
    if name not in _wire_formats:
        _wire_formats[name] = await asyncio.to_thread(load_protocol, name)
    return _wire_formats[name]


class Guard:
    """The outermost part of the server: times, counts and logs each request, and answers unexpected exceptions.

    Args:
        app: The application.
        metrics: Counts the requests; None to count nothing.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics | None) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = scope[_KEY] = Exchange(_likely_protocol(scope))
        started_s = time.perf_counter()

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                request_id = exchange.id.encode()
                message["headers"] += [(b"x-request-id", request_id), (b"request-id", request_id)]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except (ClientGone, ClientDisconnect):
            pass  # no client is left to answer; the status in the log and the metrics says so
        except asyncio.CancelledError:
            # The server ends. The task ends here, too, so nothing is lost that would have to be raised further.
            ending = RequestError("the gateway is shutting down", 503, "shutting_down")
            await _answer_error(ending, exchange, scope, receive, noting)
        except Exception as error:
            await _answer_error(unexpected(error, exchange), exchange, scope, receive, noting)
        finally:
            self._note(scope["method"], exchange, time.perf_counter() - started_s)

    def _note(self, method: str, exchange: Exchange, seconds: float) -> None:
        if self._metrics is not None:
            self._metrics.answered(exchange.protocol, exchange.status, seconds)
        # Whoever sends the request chooses the method, so an unknown one may be anything.
        known = method if method in _METHODS else "(other method)"
        _log.info("%s %s %s %d %.1f ms", exchange.id, known, exchange.route, exchange.status, 1000 * seconds)


def unexpected(error: Exception, exchange: Exchange) -> RequestError:
    """Log an unexpected exception, without its text, and return the error that the client gets: it has the id only."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    _log.error("%s failed with %s (its text is left out)\n%s", exchange.id, type(error).__qualname__, frames)
    return RequestError(f"the gateway failed; its log has the cause under {exchange.id}", 500, "internal_error")


async def _answer_error(error: RequestError, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
    if not exchange.has_started:
        response = await error_response(error, exchange)
        await response(scope, receive, send)


def _likely_protocol(scope: Scope) -> str:
    """Return the protocol in whose form an error is answered until the route is known."""
    path: str = scope["path"]
    if "/messages" in path or any(name == b"anthropic-version" for name, _ in scope["headers"]):
        return "anthropic"
    return "responses" if "/responses" in path else "chat"


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(orjson.dumps(value), status, headers, "application/json")


async def error_response(error: RequestError, exchange: Exchange) -> Response:
    """Return an error in the form of the request's protocol."""
    error.__traceback__ = None  # its frames hold the request, whose future holds the error
    headers = error.headers if isinstance(error, Refusal) else None
    wire = await wire_format(exchange.protocol)
    return json_response(wire.error(error), error.status, headers)


async def answer_refusal(request: Request, error: Exception) -> Response:
    """Answer a `RequestError`."""
    return await error_response(cast("RequestError", error), Exchange.of(request.scope))


async def answer_unknown_route(request: Request, error: Exception) -> Response:
    """Answer a request whose path is that of no route."""
    refusal = Refusal(404, "not_found", "no route has this path")
    return await error_response(refusal, Exchange.of(request.scope))
