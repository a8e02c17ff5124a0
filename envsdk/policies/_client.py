"""Sends requests to model servers: one pooled client for each event loop, deadlines, retries, and typed errors.

This module knows HTTP and JSON, and nothing about tokens. It imports httpx and tenacity when a client is created.
"""

import asyncio
import contextlib
import email.utils
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from functools import cache
from typing import Any, TypeVar, cast

import orjson

from .._packages import load
from ..errors import EngineDead, PolicyUnavailable, RequestRefused, ServerReplyError, ServerUnreachable
from ._per_loop import PerLoop
from ._servers import Server, Servers
from ._usage import Usage

T = TypeVar("T")
_NEEDS, _INSTALL = "A policy on a model server needs", "pip install 'envsdk[servers]'"
_MAX_RETRY_AFTER_S = 120.0
_FIRST_WAIT_S, _MAX_WAIT_S = 0.5, 30.0
_KEEPALIVE_S = 4.0  # less than the 5 s after which uvicorn closes an idle connection
_NOT_IMPLEMENTED = 501
_FAILURES_IN_A_ROW = 2  # of one call on one server, until its episode moves to another one
_OVERLOADED = ("408", "429")  # the server works, and asks to wait
_MAX_MESSAGE = 500
_MAX_ERROR_BYTES = 2**16  # of the body of an error that is read as JSON
MAX_REPLY_BYTES = 2**26
_MAX_LINES = 1_000_000
"""Of a stream: two for each token."""
_MAX_VALUES, _MAX_CONTAINERS = 3_000_000, 400_000
"""Of the JSON value of a reply, whose objects in memory are far larger than its text: one list or object, and a few
values, for each token."""
_DEAD = "EngineCore encountered an issue"  # vLLM's EngineDeadError


class Failure(Exception):
    """A request failed in a way that another attempt may not.

    Attributes:
        cause: `connection`, `timeout`, `partial`, or the status of the response.
        retry_after_s: How long the server asks to wait, in seconds; None if it does not.
        is_unreachable: Whether no connection could be opened.
        is_dead: Whether the server reports that its engine has died.
        moves: Whether the next attempt goes to another server.
    """

    def __init__(
        self, cause: str, message: str, *, retry_after_s: float | None = None, is_unreachable: bool = False
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.retry_after_s = retry_after_s
        self.is_unreachable = is_unreachable
        self.is_dead = _DEAD in message
        self.moves = False


@dataclass(slots=True)
class _Connections:
    """What belongs to one event loop."""

    http: Any
    """An `httpx.AsyncClient`."""
    gate: asyncio.Semaphore
    """Bounds the calls in flight."""
    checks: asyncio.Lock
    """Held while a server is checked."""


class Client:
    """Sends requests to the servers of a policy.

    Args:
        servers: The servers.
        usage: Counts the requests.
        headers: Headers of each request.
        timeout_s: The longest duration of a request, in seconds.
        max_retries: How often a call is tried again.
        max_in_flight: The maximum number of calls that are being answered at the same time, in each event loop.
        max_reply_bytes: The longest body of a response, in bytes.
    """

    def __init__(
        self,
        servers: Servers,
        usage: Usage,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        max_retries: int,
        max_in_flight: int,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        self._servers = servers
        self._usage = usage
        self._headers = dict(headers)
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._max_in_flight = max_in_flight
        self._max_reply_bytes = max_reply_bytes
        self._httpx = load("httpx", _NEEDS, _INSTALL)
        self._tenacity = load("tenacity", _NEEDS, _INSTALL)
        self._connections = PerLoop(self._connect, _disconnect)

    async def call(self, choose: Callable[[], Server], attempt: Callable[[Server], Awaitable[T]]) -> T:
        """Return what an attempt returns; try again, maybe on another server, if it fails.

        Args:
            choose: Returns the server of the next attempt.
            attempt: One attempt on a server.

        Raises:
            PolicyUnavailable: If all attempts failed.
            ServerUnreachable: At once, if no connection to any of the servers can be opened, and none has been.
            EngineDead: If the server's engine has died, and there is no other server.
            RequestRefused: If a server refused the request; it is not tried again.
        """
        tenacity = self._tenacity
        failures: list[tuple[Server, Failure]] = []
        retrying = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self._max_retries + 1),
            wait=self._wait(),
            retry=tenacity.retry_if_exception_type(Failure),
            before_sleep=self._count_retry,
            reraise=True,
        )
        try:
            return await retrying(self._attempt, choose, attempt, failures)
        except Failure as failure:
            server, attempts = failures[-1][0], len(failures)
            raise PolicyUnavailable(
                f"{server.url} did not answer after {attempts} attempt{'s' if attempts > 1 else ''}; the last one "
                f"failed because of {failure.cause}: {failure}. Check the server's log, or raise max_retries or "
                "timeout_s"
            ) from failure

    async def request(
        self,
        server: Server,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        has_value: bool = True,
    ) -> Any:
        """Send one request and return the JSON value of the response.

        Args:
            server: The server.
            method: `GET` or `POST`.
            path: The path.
            body: The JSON value to send, which may hold numpy arrays.
            id: The value of the header `X-Request-Id`, which proxies would set otherwise.
            has_value: Whether the response has a JSON value; if not, None is returned.

        Raises:
            Failure: If another attempt may succeed.
            RequestRefused: If the server refuses the request (a status of 3xx or 4xx, except 408 and 429).
            ServerReplyError: If the response is longer than `max_reply_bytes`, compressed, or has too many values.
        """
        http, request = self._connections.get().http, f"{method} {server.url}{path}"
        async with self._sending(), http.stream(method, server.url + path, **_sent(body, id)) as response:
            content = await self._content(response)
        _check_status(response, content, request)
        return _value_of(content, request) if has_value else None

    async def stream(
        self, server: Server, path: str, body: Mapping[str, Any], read: Callable[[Any], Awaitable[bool]], *, id: str
    ) -> None:
        """Send one request, and read the server-sent events that answer it.

        Args:
            server: The server.
            path: The path.
            body: See `request`.
            read: Called with the JSON value of each event, up to `[DONE]`. It returns whether to read on; if not, the
                connection is closed.
            id: See `request`.

        Raises:
            Failure: If another attempt may succeed: also if the stream ends before `[DONE]`, or an event is not JSON or
                reports an error of the server.
            RequestRefused: If the server refuses the request; see `request`.
            ServerReplyError: If the answer is not a stream, or if it has no end; see `request`.
        """
        http, request = self._connections.get().http, f"POST {server.url}{path}"
        async with self._sending(), http.stream("POST", server.url + path, **_sent(body, id)) as response:
            if response.status_code >= 300:
                _check_status(response, await self._content(response), request)
            await _read_events(response, _chunks(response, self._max_reply_bytes), request, read)

    async def _content(self, response: Any) -> bytes:
        async with contextlib.aclosing(_chunks(response, self._max_reply_bytes)) as chunks:
            return b"".join([chunk async for chunk in chunks])

    @contextlib.asynccontextmanager
    async def _sending(self) -> AsyncGenerator[None]:
        """Bound the time of a request, count it, and raise a `Failure` if it fails on the way."""
        start, clock = time.monotonic(), asyncio.timeout(self._timeout_s)
        try:
            async with clock:
                yield
        except TimeoutError:
            if not clock.expired():
                raise
            raise Failure("timeout", f"no answer within timeout_s={self._timeout_s:g}") from None
        except self._httpx.RequestError as error:
            unreachable = isinstance(error, (self._httpx.ConnectError, self._httpx.ConnectTimeout))
            text = f"{type(error).__name__}: {error}"
            raise Failure("connection", text, is_unreachable=unreachable) from error
        finally:
            self._usage.sent(time.monotonic() - start)

    def checking(self) -> asyncio.Lock:
        """Return the lock of the running event loop that is held while a server is checked."""
        return self._connections.get().checks

    async def aclose(self) -> None:
        """Close the connections of the running event loop; the next request opens new ones."""
        await self._connections.aclose()

    async def _attempt(
        self,
        choose: Callable[[], Server],
        attempt: Callable[[Server], Awaitable[T]],
        failures: list[tuple[Server, Failure]],
    ) -> T:
        server = choose()
        with self._servers.calling(server):
            try:
                async with self._connections.get().gate:
                    result = await attempt(server)
                server.has_answered, server.is_dead = True, False
                return result
            except Failure as failure:
                failures.append((server, failure))
                server.has_answered |= not failure.is_unreachable
                last = failures[-_FAILURES_IN_A_ROW:]
                is_down = len(last) == _FAILURES_IN_A_ROW and all(
                    one is server and found.cause not in _OVERLOADED for one, found in last
                )
                server.is_dead = failure.is_dead or (server.is_dead and failure.is_unreachable)  # vLLM ends itself then
                if failure.is_unreachable or is_down or server.is_dead:
                    is_gone = failure.is_unreachable or server.is_dead
                    failure.moves = self._servers.failed(server, is_unreachable=is_gone)
                if server.is_dead and not failure.moves:
                    raise EngineDead(dead(server, failure)) from failure
                if not failure.moves and not any(one.has_answered for one in self._servers.all):
                    raise ServerUnreachable(
                        f"no connection to {server.url} can be opened: {failure}. Start the server and wait until it "
                        "is ready, or correct the URL and its port"
                    ) from failure
                raise

    def _count_retry(self, state: Any) -> None:
        self._usage.retried(state.outcome.exception().cause)

    def _wait(self) -> Callable[[Any], float]:
        """Return the function that chooses the time before the next attempt: none if it goes to another server."""
        exponential = self._tenacity.wait_exponential(multiplier=_FIRST_WAIT_S, max=_MAX_WAIT_S)
        backoff = exponential + self._tenacity.wait_random(0, _FIRST_WAIT_S)

        def wait(state: Any) -> float:
            failure: Failure = state.outcome.exception()
            if failure.moves:
                return 0.0
            return max(backoff(state), failure.retry_after_s or 0.0)

        return wait

    def _connect(self) -> _Connections:
        limits = self._httpx.Limits(max_keepalive_connections=self._max_in_flight, keepalive_expiry=_KEEPALIVE_S)
        headers = {"Content-Type": "application/json", **self._headers, "Accept-Encoding": "identity"}
        http = self._httpx.AsyncClient(
            headers=headers,
            limits=limits,
            timeout=None,  # `request` has its own deadline
            verify=_certificates(self._httpx),
        )
        return _Connections(http, asyncio.Semaphore(self._max_in_flight), asyncio.Lock())


@cache
def _certificates(httpx: Any) -> Any:
    """Return the SSL context, which takes longer to create than a client, and which all clients share."""
    return httpx.create_ssl_context()


async def _disconnect(connections: _Connections) -> None:
    await connections.http.aclose()


def dead(server: Server, failure: Failure) -> str:
    """Return the message about a server whose engine has died."""
    return f"the engine of {server.url} has died: {failure}. See the server's log for the cause, and start it again"


def _sent(body: Mapping[str, Any] | None, id: str | None) -> dict[str, Any]:
    """Return the content and the headers of a request."""
    content = None if body is None else orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    return {"content": content, "headers": {} if id is None else {"X-Request-Id": id}}


def _check_status(response: Any, content: bytes, request: str) -> None:
    status: int = response.status_code
    if status in (408, 429) or (status >= 500 and status != _NOT_IMPLEMENTED):
        after = _seconds(response.headers.get("Retry-After", ""))
        raise Failure(str(status), f"{request}: {message_of(content)}", retry_after_s=after)
    if status >= 300:
        raise RequestRefused(f"{request} was refused with status {status}: {message_of(content)}", status)


def _value_of(content: bytes, request: str) -> Any:
    try:
        return _read(content)
    except ServerReplyError:
        raise
    except ValueError as error:
        raise Failure("partial", f"{request}: the response is not JSON: {error}") from error


async def _chunks(response: Any, most: int) -> AsyncGenerator[bytes]:
    """Yield a body as it arrives. It is never decompressed, because a few bytes may become gigabytes."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise ServerReplyError(
            f"the response has the Content-Encoding {encoding!r:.40}; expected none, as Accept-Encoding asks. Change "
            "the server, or the proxy in front of it"
        )
    size = 0
    async with contextlib.aclosing(response.aiter_raw()) as chunks:
        async for chunk in chunks:
            size += len(chunk)
            if size > most:
                raise ServerReplyError(
                    f"the response is longer than {most:,} bytes. If the server is right, raise max_reply_bytes"
                )
            yield chunk


async def _read_events(
    response: Any, body: AsyncGenerator[bytes], request: str, read: Callable[[Any], Awaitable[bool]]
) -> None:
    """Read the server-sent events of a response; see `Client.stream`."""
    kind = response.headers.get("Content-Type", "")
    if not kind.startswith("text/event-stream"):
        raise ServerReplyError(f"{request} was answered with {kind!r:.80}; expected a stream of events")
    async with contextlib.aclosing(_lines(body)) as lines:
        async for line in lines:
            name, _, data = line.partition(b":")
            if name != b"data":
                continue  # the end of an event, or a comment, which keeps the connection open
            if data.strip() == b"[DONE]":
                return
            value = _value_of(data, request)
            if isinstance(value, dict) and "error" in value:
                raise _error_in_stream(cast("dict[str, Any]", value)["error"], data, request)
            if not await read(value):
                return
    raise Failure("partial", f"{request}: the stream ended before [DONE]")


async def _lines(body: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the lines of a body, which only line feeds end: httpx also cuts at characters that JSON may contain."""
    parts: list[bytes] = []
    count = 0
    async with contextlib.aclosing(body):
        async for chunk in body:
            first, *others = chunk.split(b"\n")
            parts.append(first)
            count += len(others)
            if count > _MAX_LINES:
                raise ServerReplyError(f"the stream has more than {_MAX_LINES:,} lines")
            for other in others:
                yield b"".join(parts)
                parts = [other]


def _error_in_stream(error: Any, data: bytes, request: str) -> Exception:
    """Return what an error event means; its status is one of the server's own failures if it has none."""
    code: Any = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) else 500
    if status in (408, 429) or status >= 500:
        return Failure(str(status), f"{request}: {message_of(data)}")
    return ServerReplyError(f"the stream has an error with status {status}: {message_of(data)}")


def _read(content: bytes) -> Any:
    """Return a JSON value whose number of values and depth are bounded, before and after it is parsed."""
    containers = content.count(b"[") + content.count(b"{")
    values = content.count(b",") + containers
    if values > _MAX_VALUES or containers > _MAX_CONTAINERS:
        raise ServerReplyError(
            f"the response has {values:,} values, {containers:,} of them lists or objects; expected at most "
            f"{_MAX_VALUES:,} and {_MAX_CONTAINERS:,}"
        )
    try:
        return orjson.loads(content)
    except ValueError:
        try:
            return json.loads(content)  # Python writes NaN, which is an error in the reply and not in the transport
        except RecursionError as error:
            raise ServerReplyError("the response is nested too deeply") from error


def message_of(content: bytes) -> str:
    """Return the message in the body of an error response."""
    content = content[:_MAX_ERROR_BYTES]
    with contextlib.suppress(ValueError, RecursionError):
        value: Any = orjson.loads(content)
        for key in ("error", "message", "detail"):  # nested in vLLM: {"error": {"message": ...}}
            value = cast("dict[str, Any]", value).get(key, value) if isinstance(value, dict) else value
        return (value if isinstance(value, str) else json.dumps(value))[:_MAX_MESSAGE]
    return content[: 4 * _MAX_MESSAGE].decode(errors="replace")[:_MAX_MESSAGE]


def _seconds(retry_after: str) -> float | None:
    """Return the seconds of a `Retry-After` header, which is a number or a date; None if it is neither."""
    with contextlib.suppress(ValueError):
        return min(max(0.0, float(retry_after)), _MAX_RETRY_AFTER_S)
    with contextlib.suppress(ValueError):
        date = email.utils.parsedate_to_datetime(retry_after)
        left = date.replace(tzinfo=date.tzinfo or UTC).timestamp() - time.time()
        return min(max(0.0, left), _MAX_RETRY_AFTER_S)
    return None
