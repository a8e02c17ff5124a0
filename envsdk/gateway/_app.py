"""The routes on which programs request replies. A session is identified by its API key, or by its id in the path.

The answer is complete before the first byte of it is sent, so that every error has its status; unless the client wants
a stream and the policy reports tokens while it samples them. Then an error that comes later is the stream's last event.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Lifespan, Receive, Scope, Send

from ..errors import ConfigError, RequestError
from ..images import PixelBudget
from ._client import LiveResponse, WaitingClient, send_events
from ._exchange import (
    ClientGone,
    Guard,
    HttpExchange,
    Refusal,
    answer_refusal,
    json_response,
    read_json,
    unexpected,
    wire_format,
)
from ._metrics import Metrics
from ._protocols._fields import RequestImages
from ._requests import ModelRequest
from ._sessions import OpenSession, Sessions

if TYPE_CHECKING:
    from ._protocols._anthropic import Anthropic
    from ._protocols._responses import Responses

_READERS = 4
"""The number of bodies that are read at the same time, each in a thread: meanwhile, other requests are answered."""
_PROTOCOLS = {"chat/completions": "chat", "responses": "responses", "messages": "anthropic"}


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of a server.

    Attributes:
        max_body_bytes: The largest body of a request, in bytes.
        body_timeout_s: How long a client may take to send a body, in seconds.
        max_waiting: How many requests of one session may be answered at the same time.
        max_pixels: How many pixels all new images of a body may have together; each counts for at least 131,072.
        max_image_pixels: How many pixels one image may have.
        max_connections: How many connections may be open; at most three quarters of the process's file descriptors are
            used for them. Beyond that, the connection that has been idle the longest is closed.
        header_timeout_s: How long a client may take to send the headers of a request, in seconds.
        keep_alive_s: How long a connection stays open between two requests, in seconds: longer than clients keep
            idle connections, so that none is closed just when it is used again.
    """

    max_body_bytes: int = 64 * 2**20
    body_timeout_s: float = 60.0
    max_waiting: int = 256
    max_pixels: int = 2**26
    max_image_pixels: int = 2**24
    max_connections: int = 10_000
    header_timeout_s: float = 20.0
    keep_alive_s: float = 75.0

    def __post_init__(self) -> None:
        for limit in fields(self):
            if not getattr(self, limit.name) > 0:
                raise ConfigError(f"{limit.name} is {getattr(self, limit.name)}; expected a number above 0")

    @property
    def possible_connections(self) -> int:
        """The number of connections that may be open in this process."""
        try:
            import resource  # not on Windows
        except ImportError:
            return self.max_connections
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return self.max_connections if descriptors < 0 else max(1, min(self.max_connections, descriptors * 3 // 4))


def model_app(
    sessions: Sessions,
    *,
    limits: ServerLimits,
    model: str = "envsdk",
    metrics: Metrics | None = None,
    routes: Sequence[BaseRoute] = (),
    lifespan: Lifespan[Starlette] | None = None,
) -> Starlette:
    """Return the application that answers programs.

    Args:
        sessions: The sessions that it serves.
        limits: Its limits.
        model: The name of the model that it lists.
        metrics: Counts requests and tokens; None for the metrics of this application alone.
        routes: More routes, which come first.
        lifespan: The lifespan of the application: it runs from its start to its end.
    """
    metrics = metrics or Metrics(lambda: len(sessions.by_id))
    app = Starlette(
        routes=[*routes, *ModelRoutes(sessions, limits, model, metrics).routes()],
        middleware=[Middleware(Guard, metrics=metrics)],
        exception_handlers={RequestError: answer_refusal, 404: answer_refusal},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a redirect would not be in the form of any protocol
    return app


@dataclass(frozen=True)
class RouteHandler:
    """Answers a route: records the route and the protocol in the exchange, checks the method, then answers.

    Attributes:
        route: The template of the route.
        methods: The methods; a route with GET has HEAD, too.
        answer: Returns the response, or sends it itself and returns None.
        protocol: The name of the protocol; None to detect it from the request.
    """

    route: str
    methods: tuple[str, ...]
    answer: Callable[[Request, Send], Awaitable[Response | None]]
    protocol: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        exchange = HttpExchange.of(scope)
        exchange.route, exchange.protocol = self.route, self.protocol or exchange.protocol
        request = Request(scope, receive, send)
        allowed = [*self.methods, *(["HEAD"] if "GET" in self.methods else [])]
        if request.method not in allowed:
            headers = {"allow": ", ".join(allowed)}
            raise Refusal(405, "method_not_allowed", f"the route has {' and '.join(self.methods)} only", headers)
        response = await self.answer(request, send)
        if response is not None:
            await response(scope, receive, send)


class ModelRoutes:
    """The routes on which programs request replies; see `model_app`."""

    def __init__(self, sessions: Sessions, limits: ServerLimits, model: str, metrics: Metrics) -> None:
        self._sessions = sessions
        self._limits = limits
        self._model = model
        self._metrics = metrics
        self._readers = asyncio.Semaphore(_READERS)
        self._started = int(time.time())

    def routes(self) -> list[Route]:
        """Return the routes.

        Clients of OpenAI's protocols expect a base URL that ends with /v1. Anthropic's add it themselves. Each kind may
        be given either URL, so each route exists without, with one, and with two of them.
        """
        handlers: list[RouteHandler] = []
        for root in ("/s/{session_id}", ""):
            for base in (f"{root}/v1", root, f"{root}/v1/v1"):
                handlers += [
                    *(
                        RouteHandler(f"{base}/{n}", ("POST",), self.reply, protocol)
                        for n, protocol in _PROTOCOLS.items()
                    ),
                    RouteHandler(f"{base}/messages/count_tokens", ("POST",), self.count_tokens, "anthropic"),
                    RouteHandler(f"{base}/responses/{{response_id}}", ("GET", "DELETE"), self.stored, "responses"),
                    RouteHandler(f"{base}/models", ("GET",), self.models),
                    RouteHandler(base or "/", ("GET",), self.base),
                ]
            handlers.append(RouteHandler(f"{root}/v1/", ("GET",), self.base))
        handlers.append(RouteHandler("/s/{session_id}/", ("GET",), self.base))
        return [Route(handler.route, handler) for handler in handlers]

    async def reply(self, request: Request, send: Send) -> None:
        """Answer a request for a reply."""
        opened, exchange = self._admit(request), HttpExchange.of(request.scope)
        with opened.answering():
            wire = await wire_format(exchange.protocol)
            try:
                asked, body = await self._read(opened, request, wire.read)
            except RequestError as error:
                opened.session.note_refusal(error)
                raise
            is_streamed = body.get("stream") is True
            streamed = LiveResponse(wire, asked, body, send) if is_streamed and asked.n == 1 else None
            asked = asked if streamed is None else streamed.request

            def abandon() -> None:
                self._metrics.abandoned.labels(exchange.protocol).inc()
                opened.session.abandon(asked)

            async with WaitingClient(request.receive) as client:
                last: Callable[[], Awaitable[None]]
                try:
                    work = opened.session.ask(asked)
                    if streamed is None:
                        replies = await client.wait_for(work, abandon)
                    else:
                        replies = await streamed.send_until(client, work, abandon)
                    self._metrics.replied(exchange.protocol, replies)
                    created = (0 if streamed is None else streamed.created) or int(time.time())
                    wire.remember(asked, replies, opened.memory, created)
                    if not is_streamed:
                        response = json_response(wire.write(asked, body, replies, created))
                        last = partial(response, request.scope, request.receive, send)
                    else:
                        rest = None if streamed is None else streamed.rest(replies)
                        if rest is None:
                            await send_events(wire.events(asked, body, replies, created), send)
                        last = _last_part(rest or b"", send)
                except ClientGone:
                    raise
                except Exception as error:
                    if not exchange.has_started:
                        raise
                    known = error if isinstance(error, RequestError) else unexpected(error, exchange)
                    last = _last_part(wire.error_event(known), send)
                if await client.is_gone():
                    abandon()
                else:
                    await last()

    async def count_tokens(self, request: Request, send: Send) -> Response:
        """Answer with the number of tokens of a prompt."""
        opened = self._admit(request)
        with opened.answering():
            wire = cast("Anthropic", await wire_format("anthropic"))
            asked, _ = await self._read(opened, request, wire.read_count)
            async with WaitingClient(request.receive) as client:
                count = await client.wait_for(opened.session.count_tokens(asked), lambda: None)
        return json_response(wire.count(count))

    async def stored(self, request: Request, send: Send) -> Response:
        """Answer with a response that the session keeps, or forget it."""
        opened = self._session_of(request)
        if request.query_params.get("stream") == "true":
            raise RequestError("stream: a response that is kept is not streamed: leave it out", field="stream")
        wire = cast("Responses", await wire_format("responses"))
        act = wire.delete if request.method == "DELETE" else wire.retrieve
        async with opened.reading:
            return json_response(act(request.path_params["response_id"], opened.memory))

    async def models(self, request: Request, send: Send) -> Response:
        """List the one model, in the form of the client's protocol."""
        self._session_of(request)
        wire = await wire_format(HttpExchange.of(request.scope).protocol)
        return json_response(wire.models([self._model], self._started))

    async def base(self, request: Request, send: Send) -> Response:
        """Answer on a base URL, which some clients request to find out whether the server is running."""
        if "session_id" in request.path_params:
            self._session_of(request)
        return json_response({"status": "ok"})

    def _session_of(self, request: Request) -> OpenSession:
        """Return the session that a request names.

        Raises:
            RequestError: If it names no session, or two.
        """
        keyed = next(filter(None, map(self._sessions.by_key.get, keys_of(request))), None)
        session_id = request.path_params.get("session_id")
        if session_id is None:
            if keyed is None:
                message = "no open session has the API key: send a session's key as a bearer token or as x-api-key"
                raise Refusal(401, "invalid_api_key", message, {"www-authenticate": "Bearer"})
            return keyed
        opened = self._sessions.by_id.get(session_id)
        if opened is None:
            raise Refusal(404, "session_not_found", "no open session has the id in the path")
        if keyed is not None and keyed is not opened:
            message = "the API key belongs to a different session than the id in the path"
            raise Refusal(401, "invalid_api_key", message, {"www-authenticate": "Bearer"})
        return opened

    def _admit(self, request: Request) -> OpenSession:
        """Return the session of a request that is within the session's limits."""
        opened = self._session_of(request)
        wait_s = opened.bucket.take(time.monotonic()) if opened.bucket is not None else 0.0
        if wait_s:
            message = "the session exceeds its limit of requests per second; try again later"
            headers = {"retry-after": str(math.ceil(wait_s)), "retry-after-ms": str(math.ceil(1000 * wait_s))}
            raise Refusal(429, "rate_limit_exceeded", message, headers)
        if opened.waiting >= self._limits.max_waiting:
            message = f"{opened.waiting} requests of the session are being answered, which is the limit"
            raise Refusal(429, "rate_limit_exceeded", message, {"retry-after": "1"})
        return opened

    async def _read(
        self, opened: OpenSession, request: Request, read: Callable[..., ModelRequest]
    ) -> tuple[ModelRequest, Any]:
        """Return a request as the protocol reads it, and its body."""
        limits = self._limits
        body, size = await read_json(request, limits.max_body_bytes, limits.body_timeout_s)
        opened.largest_body = max(opened.largest_body, size)
        images = RequestImages(opened.session.check_image, PixelBudget(limits.max_pixels, limits.max_image_pixels))
        async with opened.reading, self._readers:
            with images.reading():  # in the thread, too, which gets the context of this task
                return await asyncio.to_thread(read, body, request.headers, opened.memory), body


def _last_part(body: bytes, send: Send) -> Callable[[], Awaitable[None]]:
    """Return a function that sends the last part of a response."""
    return partial(send, {"type": "http.response.body", "body": body, "more_body": False})


def keys_of(request: Request) -> list[str]:
    """Return the API keys that a request has, as OpenAI's clients and as Anthropic's send them."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    keys = [token.strip() if scheme.lower() == "bearer" else "", request.headers.get("x-api-key", "")]
    return [key for key in keys if key]
