"""One HTTP exchange: its id, its line in the log, its metrics, its body, and how errors are answered.

No content enters the log: a line has the id of the request, the method, the template of the route, the status and the
time. An unexpected exception is logged without its text, which may quote a message.
"""

import asyncio
import io
import json
import logging
import re
import secrets
import time
import traceback
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, cast

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .._spans import EpisodeSpan
from ..errors import RequestError
from ._protocols import WIRE_FORMATS

_log = logging.getLogger(__name__)
_KEY = "envsdk.exchange"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_JSON = "application/json"
_ENCODINGS = ("gzip", "x-gzip", "deflate", *(["zstd"] if find_spec("zstandard") is not None else []))
"""The content encodings of bodies; zstandard comes with other packages."""
_MAX_VALUES = 300_000
"""The maximum number of values in a body: each takes up to a thousand times the memory of its three bytes."""
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
CLIENT_GONE = 499
"""The status in the log and the metrics of a request whose client went away before the answer, as in nginx."""


class ClientGone(Exception):
    """The client closed the connection before it received the answer."""


class Refusal(RequestError):
    """A `RequestError` of the server itself, with headers of its response."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, status, code)
        self.headers = headers


@dataclass(slots=True)
class HttpExchange:
    """The state of a request while it is answered.

    Attributes:
        protocol: The name of the protocol that errors are written in.
        route: The template of the route.
        status: The status of the response; 499 until it has started.
        path_fields: The fields of the body that the protocol has in the path.
        id: Identifies the request in the log and in the response.
        span: Its span, if it is recorded.
    """

    protocol: str
    route: str = "(no route)"
    status: int = CLIENT_GONE
    path_fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    id: str = field(default_factory=lambda: f"req_{secrets.token_hex(12)}")
    span: EpisodeSpan | None = None

    @property
    def has_started(self) -> bool:
        """True once the response has started."""
        return self.status != CLIENT_GONE

    @staticmethod
    def of(scope: Scope) -> "HttpExchange":
        """Return the exchange of a request."""
        return cast("HttpExchange", scope[_KEY])


class Metrics:
    """The metrics of one gateway for Prometheus, in a separate registry. No label has content, a key or a session's id.

    Args:
        open_sessions: Returns how many sessions are open.

    Attributes:
        registry: The registry of the metrics.
        requests: The requests that were answered, by protocol and status.
        prompt_tokens: The tokens of prompts, by protocol. The replies to one request share a prompt.
        sampled_tokens: The tokens of replies, by protocol.
        seconds: From the first byte of a request to the last one of its answer, by protocol.
        abandoned: The requests whose client disconnected before it received the whole answer, by protocol.
        closed: The closed sessions, by the reason.
    """

    def __init__(self, open_sessions: Callable[[], int]) -> None:
        self.registry = registry = CollectorRegistry()
        protocol, prefix = ["protocol"], "envsdk_gateway"
        self.requests = Counter(
            f"{prefix}_requests", "Requests that were answered", ["protocol", "status"], registry=registry
        )
        self.seconds = Histogram(
            f"{prefix}_request_seconds",
            "From the first byte of a request to the last one of its answer",
            protocol,
            buckets=_SECONDS,
            registry=registry,
        )
        self.prompt_tokens = Counter(f"{prefix}_prompt_tokens", "Tokens of prompts", protocol, registry=registry)
        self.sampled_tokens = Counter(f"{prefix}_sampled_tokens", "Tokens of replies", protocol, registry=registry)
        self.abandoned = Counter(
            f"{prefix}_abandoned_requests", "Requests whose client disconnected", protocol, registry=registry
        )
        self.closed = Counter(f"{prefix}_closed_sessions", "Closed sessions", ["reason"], registry=registry)
        gauge = Gauge(f"{prefix}_open_sessions", "Open sessions", registry=registry)
        gauge.set_function(open_sessions)


@dataclass(eq=False, repr=False)
class Guard:
    """The outermost part of the server: times, counts and logs each request, and answers it if it fails.

    Args:
        app: The application.
        metrics: Counts the requests.
    """

    _app: ASGIApp
    _metrics: Metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # The protocol that errors are written in until the route is known.
        names = {name for name, _ in scope["headers"]}
        is_anthropic = "/messages" in scope["path"] or b"anthropic-version" in names
        is_google = "/v1beta" in scope["path"] or b"x-goog-api-key" in names
        is_responses = "/responses" in scope["path"]
        likely = "google" if is_google else "anthropic" if is_anthropic else "responses" if is_responses else "chat"
        exchange = scope[_KEY] = HttpExchange(likely)
        started_s = time.perf_counter()
        error: RequestError | None = None

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                request_id = exchange.id.encode()
                message["headers"] += [(b"x-request-id", request_id), (b"request-id", request_id)]
            await send(message)

        try:
            try:
                await self._app(scope, receive, noting)
            except (ClientGone, ClientDisconnect):
                pass  # no client is left to answer; the log and the metrics have the status
            except asyncio.CancelledError:
                # The server is shutting down. The task ends here, too, so the cancellation need not be raised again.
                error = RequestError("the gateway is shutting down", 503, "shutting_down")
            except RequestError as refusal:
                error = refusal
            except Exception as failure:
                error = unexpected(failure, exchange)
            if error is not None and not exchange.has_started:
                error.__traceback__ = None  # its frames hold the request, whose future holds the error
                headers = error.headers if isinstance(error, Refusal) else None
                body = WIRE_FORMATS[exchange.protocol].error(error)
                await json_response(body, error.status, headers)(scope, receive, noting)
        finally:
            seconds = time.perf_counter() - started_s
            self._metrics.requests.labels(exchange.protocol, exchange.status).inc()
            self._metrics.seconds.labels(exchange.protocol).observe(seconds)
            if exchange.span is not None:
                exchange.span.facts["status"], exchange.span.ended_s = exchange.status, time.time()
            # The client chooses the method, so an unknown one may be any string.
            method = scope["method"] if scope["method"] in _METHODS else "(other method)"
            _log.info("%s %s %s %d %.1f ms", exchange.id, method, exchange.route, exchange.status, 1000 * seconds)


def unexpected(error: Exception, exchange: HttpExchange) -> RequestError:
    """Log an unexpected exception, without its text, and return the error that the client gets: it has the id only."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    _log.error("%s failed with %s (its text is left out)\n%s", exchange.id, type(error).__qualname__, frames)
    return RequestError(f"the gateway failed; its log has the cause under {exchange.id}", 500, "internal_error")


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(json.dumps(value, separators=(",", ":")), status, headers, _JSON)


async def read_json(request: Request, max_bytes: int, timeout_s: float) -> tuple[Any, int]:
    """Return the body of a request, parsed as JSON, and its size in bytes.

    Args:
        request: The request.
        max_bytes: The largest body, in bytes.
        timeout_s: How long the client may take to send it, in seconds.

    Raises:
        RequestError: If the content type is not JSON, or the body is too large, also when it is decoded, too slow or
            not JSON.
    """
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != _JSON:
        raise Refusal(415, "unsupported_media_type", f"the content type has to be {_JSON}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", *_ENCODINGS):
        known = ", ".join(_ENCODINGS)
        raise Refusal(415, "unsupported_media_type", f"the content encodings are {known}; send the body without one")
    too_large = Refusal(413, "request_too_large", f"the body is larger than {max_bytes} bytes")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise too_large
    except TimeoutError:
        raise Refusal(408, "request_timeout", f"the body did not arrive within {timeout_s:g} s") from None
    if encoding != "identity":
        try:
            body = await asyncio.to_thread(_decoded, bytes(body), encoding, max_bytes + 1)
        except ValueError as error:
            raise Refusal(400, "invalid_encoding", f"the body is not encoded with {encoding}: {error}") from None
        if len(body) > max_bytes:
            raise too_large
    # An upper bound first, in which characters in strings count, too.
    if _values(body) > _MAX_VALUES and await asyncio.to_thread(lambda: _values(_STRING.sub(b"", body))) > _MAX_VALUES:
        raise Refusal(413, "request_too_large", f"the body has more than {_MAX_VALUES:,} values")
    try:
        return orjson.loads(body), len(body)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, "invalid_json", f"the body is not JSON: {error}") from None


def _decoded(body: bytes, encoding: str, size: int) -> bytes:
    """Return the first bytes of an encoded body, at most `size`.

    Raises:
        ValueError: If the body does not have this encoding.
    """
    if encoding == "zstd":
        import zstandard

        try:
            return zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(io.BytesIO(body)).read(size)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)  # detects zlib and gzip
    try:
        found = decoder.decompress(body, size)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not decoder.eof and len(found) < size:
        raise ValueError("its end is missing")
    return found


def _values(body: bytes | bytearray) -> int:
    """Return an upper bound of the number of values in JSON."""
    return sum(map(body.count, (b",", b"[", b"{")))
