"""The routes on which programs request replies. A session is identified by its API key, or by its id in the path.

The answer is complete before the first byte of it is sent, so that every error has its status; unless the client wants
a stream and the policy reports tokens while it samples them. Then an error that comes later is the stream's last event.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from .._spans import current_span
from .._visible import brief
from ..errors import ConfigError, RequestError
from ..images import PixelBudget
from ._client import StreamedResponse, disconnection, wait_for
from ._exchange import ClientGone, Guard, HttpExchange, Metrics, Refusal, json_response, read_json, unexpected
from ._protocols import WIRE_FORMATS
from ._protocols._anthropic import Anthropic
from ._protocols._fields import RequestImages, request_images
from ._protocols._google import Google
from ._requests import ModelRequest
from ._sessions import OpenSession, Sessions

_log = logging.getLogger(__name__)
_READERS = 4
"""The number of bodies that are read at the same time, each in a thread: meanwhile, other requests are answered."""


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


def model_app(
    sessions: Sessions,
    *,
    limits: ServerLimits,
    model: str = "envsdk",
    metrics: Metrics | None = None,
    routes: Sequence[BaseRoute] = (),
    lifespan: Lifespan[Any] | None = None,
) -> ASGIApp:
    """Return the application that answers programs.

    Clients of OpenAI's protocols expect a base URL that ends with /v1. Anthropic's add it themselves, and Google's add
    it or /v1beta. Each kind may be given either URL, so each route exists without, with one, and with two of them.

    Args:
        sessions: The sessions that it serves.
        limits: Its limits.
        model: The name of the model that it lists.
        metrics: Counts requests and tokens; None for the metrics of this application alone.
        routes: More routes, which come first.
        lifespan: The lifespan of the application: it runs from its start to its end.
    """
    metrics = metrics or Metrics(lambda: len(sessions.by_id))
    answers = ModelAnswers(sessions, limits, model, metrics)
    handlers = [RouteHandler("/s/{session_id}/", ("GET",), answers.base)]
    for root in ("/s/{session_id}", ""):
        handlers.append(RouteHandler(f"{root}/v1/", ("GET",), answers.base))
        for base in (f"{root}/v1", root, f"{root}/v1/v1", f"{root}/v1beta", f"{root}/v1/v1beta"):
            google = "google" if base.endswith("beta") else None
            handlers += [
                RouteHandler(f"{base}/models", ("GET",), answers.models, google),
                RouteHandler(f"{base}/models/{{model:path}}", ("GET", "POST"), answers.model, google),
            ]
            if google is not None:
                continue
            handlers += [
                RouteHandler(f"{base}/chat/completions", ("POST",), answers.reply, "chat"),
                RouteHandler(f"{base}/responses", ("POST",), answers.reply, "responses"),
                RouteHandler(f"{base}/messages", ("POST",), answers.reply, "anthropic"),
                RouteHandler(f"{base}/messages/count_tokens", ("POST",), answers.count_tokens, "anthropic"),
                RouteHandler(f"{base}/responses/{{response_id}}", ("GET", "DELETE"), answers.stored, "responses"),
                RouteHandler(base or "/", ("GET",), answers.base),
            ]

    async def no_route(scope: Scope, receive: Receive, send: Send) -> None:
        raise Refusal(404, "not_found", "no route has this path")

    found = [*routes, *(Route(handler.route, handler) for handler in handlers)]
    # A redirect would not be in the form of any protocol.
    return Guard(Router(found, redirect_slashes=False, default=no_route, lifespan=lifespan), metrics)


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


@dataclass(eq=False, repr=False)
class ModelAnswers:
    """The answers on the routes on which programs request replies; see `model_app`."""

    _sessions: Sessions
    _limits: ServerLimits
    _model: str
    _metrics: Metrics
    _readers: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_READERS))
    _started: int = field(default_factory=lambda: int(time.time()))

    async def reply(self, request: Request, send: Send) -> None:
        """Answer a request for a reply."""
        opened, exchange = self._admit(request), HttpExchange.of(request.scope)
        wire, created = WIRE_FORMATS[exchange.protocol], int(time.time())

        def abandon() -> None:
            self._metrics.abandoned.labels(exchange.protocol).inc()
            opened.session.abandon(asked)

        with opened.answering():
            try:
                asked, body = await self._read(opened, request, wire.read)
            except RequestError as error:
                opened.session.note_refusal(error)
                raise
            streamed = StreamedResponse(wire, asked, body, created, send) if body.get("stream") is True else None
            asked = asked if streamed is None else streamed.request
            async with disconnection(request.receive) as leaving:
                last: Callable[[], Awaitable[None]]
                try:
                    working = asyncio.create_task(wait_for(opened.session.ask(asked), leaving, abandon))
                    if streamed is not None:
                        await streamed.send_pieces(working)
                    replies = await working
                    sampled = sum(len(reply.tokens) for reply in replies)
                    self._metrics.prompt_tokens.labels(exchange.protocol).inc(replies[0].prompt_tokens)
                    self._metrics.sampled_tokens.labels(exchange.protocol).inc(sampled)
                    wire.remember(asked, replies, opened.memory, created)
                    if streamed is None:
                        response = json_response(wire.write(asked, body, replies, created))
                        last = partial(response, request.scope, request.receive, send)
                    else:
                        last = partial(streamed.send, await streamed.send_rest(replies))
                except ClientGone:
                    raise
                except Exception as error:
                    if streamed is None or not exchange.has_started:
                        raise
                    known = error if isinstance(error, RequestError) else unexpected(error, exchange)
                    last = partial(streamed.send, wire.error_event(known))
                await asyncio.sleep(0)  # a failed write is noted in the next turn of the event loop,
                await asyncio.sleep(0)  # and by the task in the one after
                if leaving.done():
                    abandon()
                else:
                    await last()

    async def count_tokens(self, request: Request, send: Send) -> Response:
        """Answer with the number of tokens of a prompt."""
        opened = self._admit(request)
        wire = cast("Anthropic | Google", WIRE_FORMATS[HttpExchange.of(request.scope).protocol])
        with opened.answering():
            asked, _ = await self._read(opened, request, wire.read_count)
            async with disconnection(request.receive) as leaving:
                work = asyncio.to_thread(opened.session.count_tokens, asked)
                return json_response(wire.counted(await wait_for(work, leaving, lambda: None)))

    async def stored(self, request: Request, send: Send) -> Response:
        """Answer with a response that the session keeps, or forget it."""
        opened, named = self._session_of(request), request.path_params["response_id"]
        if request.query_params.get("stream") == "true":
            raise RequestError("stream: a response that is kept is not streamed: leave it out", field="stream")
        async with opened.reading:
            kept = opened.memory.response(named)
            if kept is None or not kept.body:
                raise RequestError(f"Response with id {brief(named)} not found.", 404, "not_found_error")
            if request.method == "DELETE":
                opened.memory.forget(named)
                return json_response({"id": named, "object": "response", "deleted": True})
            return json_response(kept.body)

    async def models(self, request: Request, send: Send) -> Response:
        """List the one model, in the form of the client's protocol."""
        self._session_of(request)
        wire = WIRE_FORMATS[HttpExchange.of(request.scope).protocol]
        return json_response(wire.models(self._model, self._started))

    async def model(self, request: Request, send: Send) -> Response | None:
        """Answer a request of Google's protocol, whose path ends with the name of the model, a colon and a verb.

        Without a verb, describe a model: each name is known.
        """
        exchange = HttpExchange.of(request.scope)
        name, _, verb = request.path_params["model"].rpartition(":")
        if request.method != "POST":
            self._session_of(request)
            listed = WIRE_FORMATS[exchange.protocol].models(request.path_params["model"], self._started)
            return json_response(listed["models" if exchange.protocol == "google" else "data"][0])
        exchange.protocol = "google"
        exchange.path_fields = {"model": name, "stream": verb == "streamGenerateContent"}
        if verb == "countTokens":
            return await self.count_tokens(request, send)
        if verb not in ("generateContent", "streamGenerateContent"):
            raise Refusal(404, "not_found", "the verbs are generateContent, streamGenerateContent and countTokens")
        if verb == "streamGenerateContent" and request.query_params.get("alt") != "sse":
            raise RequestError("alt: a stream has server-sent events only: add ?alt=sse to the URL", field="alt")
        return await self.reply(request, send)

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
        if opened.session.span is not None:
            exchange, headers = HttpExchange.of(request.scope), request.headers
            exchange.span = opened.session.span.child("request", exchange.route, method=request.method, id=exchange.id)
            exchange.span.facts["carrier"] = {n: headers[n] for n in ("traceparent", "tracestate") if n in headers}
            current_span.set(exchange.span)  # in the task of this request
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
        if isinstance(body, dict):
            body = {**cast("dict[str, Any]", body), **HttpExchange.of(request.scope).path_fields}
        opened.largest_body = max(opened.largest_body, size)
        images = RequestImages(opened.session.check_image, PixelBudget(limits.max_pixels, limits.max_image_pixels))
        async with opened.reading, self._readers:
            request_images.set(images)  # for the thread, which gets the context of this task
            asked = await asyncio.to_thread(read, body, request.headers, opened.memory)
        if asked.left_out:
            _log.info("%s left out of the request: %s", HttpExchange.of(request.scope).id, ", ".join(asked.left_out))
        return asked, body


def keys_of(request: Request) -> list[str]:
    """Return the API keys that a request has, as the clients of OpenAI, Anthropic and Google send them."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    keys = [token.strip() if scheme.lower() == "bearer" else ""]
    keys += [request.headers.get(name, "") for name in ("x-api-key", "x-goog-api-key")]
    return [key for key in [*keys, request.query_params.get("key", "")] if key]
