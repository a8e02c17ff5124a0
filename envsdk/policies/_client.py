"""Send requests to model servers: one pooled client for each event loop, deadlines, retries, and typed errors.

This module handles HTTP and JSON, and does not depend on tokens. It imports httpx when a client is created.
"""

import asyncio
import contextlib
import email.utils
import json
import logging
import random
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC
from functools import cache
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import orjson

from .._packages import load
from .._visible import brief
from ..errors import ConfigError, EngineDead, PolicyUnavailable, RequestRefused, ServerReplyError, ServerUnreachable

_log = logging.getLogger(__name__)
T = TypeVar("T")
_MAX_RETRY_AFTER_S = 120.0
_FIRST_WAIT_S, _MAX_WAIT_S = 0.5, 30.0
_KEEPALIVE_S = 4.0  # less than the 5 s after which uvicorn closes an idle connection
_NOT_IMPLEMENTED = 501
_FAILURES_IN_A_ROW = 2  # of a call on a server, after which its episode moves to another server
_OVERLOADED = ("408", "429")  # the server works, and asks the client to wait
_MAX_MESSAGE = 500
_MAX_ERROR_BYTES = 2**16  # of the body of an error that is read as JSON
MAX_REPLY_BYTES = 2**26
_MAX_LINES = 1_000_000
"""The maximum number of lines in a stream: two for each token."""
_MAX_VALUES, _MAX_CONTAINERS = 3_000_000, 400_000
"""Of the JSON value of a reply, whose objects in memory are far larger than its text: one list or object, and a few
values, for each token."""
_REST_S = 30.0  # for which a server that failed is not used, unless all have failed
_DEAD = "EngineCore encountered an issue"  # vLLM's EngineDeadError
_MAX_EPISODES = 100_000
"""The number of episodes whose server is remembered. An older one that continues may move to another server."""


@dataclass(slots=True)
class Usage:
    """The requests of a policy since it was created."""

    requests: int = 0
    """Requests that were sent, retries included."""
    retries: Counter[str] = field(default_factory=Counter[str])
    """Retries by cause: `connection`, `timeout`, `partial` (a response that is not complete JSON), or the status of the
    response, such as `429`."""
    prompt_tokens: int = 0
    """Prompt tokens of answered requests."""
    cached_tokens: int | None = None
    """Prompt tokens that the servers read from their caches; None until a server has reported any."""
    sampled_tokens: int = 0
    """Tokens that the servers sampled in answered requests."""
    seconds: float = 0.0
    """The total duration of all requests."""
    price: float = 0.0
    """The price of the tokens, if prices were given."""

    def answered(
        self, prompt_tokens: int, sampled_tokens: int, price: float = 0.0, cached_tokens: int | None = None
    ) -> None:
        """Count an answer."""
        self.prompt_tokens += prompt_tokens
        self.sampled_tokens += sampled_tokens
        self.price += price
        if cached_tokens is not None:
            self.cached_tokens = (self.cached_tokens or 0) + cached_tokens

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as a dict, for JSON."""
        return {**{each.name: getattr(self, each.name) for each in fields(self)}, "retries": dict(self.retries)}

    def __reduce__(self) -> tuple[Any, ...]:
        return Usage, ()  # a copy in another process counts its own requests


# The choice of a server.


@dataclass(eq=False)
class ModelServer:
    """A server and its state."""

    url: str
    load: int = 0
    """The number of calls that are waiting for an answer from it."""
    episodes: int = 0
    """The number of episodes that were assigned to it."""
    down_until: float = 0.0
    """The time, as `time.monotonic()`, from which it may be used again after it failed."""
    has_answered: bool = False
    """Whether a connection to it was ever opened."""
    is_checked: bool = False
    """Whether the startup checks have passed since it was last reached."""
    tokenizers: set[str] = field(default_factory=set[str])
    """The fingerprints of the tokenizers that its vocabulary was compared with."""
    max_model_len: int | None = None
    """The largest number of tokens of a prompt and its reply; None if it is not known."""
    lacks_token_endpoint: bool = False
    """Whether it lacks an endpoint for token ids, so that `/v1/completions` is used."""
    has_model: bool = False
    """Whether it lists the policy's model."""
    adapter: str | None = None
    """The name of the policy's model if that is a LoRA adapter of the server's model."""
    is_dead: bool = False
    """Whether it reported that its engine has died, and has not answered since."""
    is_lost: bool = False
    """Whether no connection could be opened the last time, which was logged."""


def base_urls(url: str | Sequence[str]) -> list[str]:
    """Return the base URLs of one or several servers, without a trailing `/v1`.

    Raises:
        ConfigError: If there is no URL, one is given twice, or one is not an HTTP URL.
    """
    given: Sequence[str] = [url] if isinstance(url, str) else list(url or ())
    urls = [checked_url(one).removesuffix("/v1") for one in given]
    if not urls or len(set(urls)) < len(urls):
        raise ConfigError(f"url is {brief(url, 200)}; expected the URL of a server, or a list of different ones")
    return urls


def checked_url(url: object) -> str:
    """Return a base URL without a trailing slash.

    Raises:
        ConfigError: If it is not an HTTP URL.
    """
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"url is {brief(url, 200)}; expected an HTTP URL, such as 'http://localhost:8000'")
    return parts.geturl().rstrip("/")


# Requests.


class AttemptFailure(Exception):
    """A request failed in a way that may not recur in another attempt.

    Attributes:
        cause: `connection`, `timeout`, `partial`, or the status of the response.
        retry_after_s: The time that the server asks to wait, in seconds; None if it does not ask.
        is_unreachable: Whether no connection could be opened.
        is_dead: Whether the server reports that its engine has died.
    """

    def __init__(
        self, cause: str, message: str, *, retry_after_s: float | None = None, is_unreachable: bool = False
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.retry_after_s = retry_after_s
        self.is_unreachable = is_unreachable
        self.is_dead = _DEAD in message


@dataclass(slots=True)
class _Connections:
    """The objects that belong to one event loop."""

    http: Any
    """An `httpx.AsyncClient`."""
    gate: asyncio.Semaphore
    """Bounds the calls in flight."""
    checks: asyncio.Lock
    """Held while a server is checked."""


class ServerClient:
    """Sends requests to the servers of a policy. A copy in another process opens its own connections.

    Args:
        urls: The base URLs.
        usage: Counts the requests.
        headers: Headers of each request.
        timeout_s: The longest duration of a request, in seconds.
        max_retries: The number of times that a call is tried again.
        max_in_flight: The maximum number of calls that are being answered at the same time, in each event loop.
        max_reply_bytes: The longest body of a response, in bytes.
    """

    def __init__(
        self,
        urls: Sequence[str],
        usage: Usage,
        headers: Mapping[str, str],
        timeout_s: float,
        max_retries: int,
        max_in_flight: int,
        max_reply_bytes: int,
    ) -> None:
        self._arguments = (urls, usage, headers, timeout_s, max_retries, max_in_flight, max_reply_bytes)
        self.servers = [ModelServer(url) for url in urls]
        self.in_flight: dict[str, ModelServer] = {}
        """The servers of the replies that are being sampled, by the id of the request."""
        self._usage = usage
        self._headers = dict(headers)
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._max_in_flight = max_in_flight
        self._max_reply_bytes = max_reply_bytes
        self._httpx = load("httpx", "A policy on a model server needs", "pip install 'envsdk[servers]'")
        self._connections: dict[asyncio.AbstractEventLoop, _Connections] = {}
        self._of_episode: OrderedDict[str, ModelServer] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return ServerClient, self._arguments

    def here(self) -> _Connections:
        """Return the connections of the running event loop, which are made at the first call."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._connections:
                for ended in [other for other in self._connections if other.is_closed()]:
                    del self._connections[ended]
                http = self._httpx.AsyncClient(
                    headers={"Content-Type": "application/json", **self._headers, "Accept-Encoding": "identity"},
                    limits=self._httpx.Limits(
                        max_keepalive_connections=self._max_in_flight, keepalive_expiry=_KEEPALIVE_S
                    ),
                    timeout=None,  # each request has its own deadline
                    verify=_certificates(self._httpx),
                )
                gate = asyncio.Semaphore(self._max_in_flight)
                self._connections[loop] = _Connections(http, gate, asyncio.Lock())
            return self._connections[loop]

    async def aclose(self) -> None:
        """Close the connections of the running event loop; the next request opens new ones."""
        with self._lock:
            connections = self._connections.pop(asyncio.get_running_loop(), None)
        if connections is not None:
            await connections.http.aclose()

    def server_of(self, episode_id: str) -> ModelServer:
        """Return the server of an episode: the last one that it used, or else the least loaded working one.

        An episode stays on one server, which has its prefixes in a cache, until that fails.
        """
        with self._lock:
            working = [server for server in self.servers if server.down_until <= time.monotonic()]
            server = self._of_episode.get(episode_id)
            if server is None or (working and server not in working):
                server = min(working or self.servers, key=lambda one: (one.load, one.episodes))
                server.episodes += 1
                self._of_episode[episode_id] = server
                if len(self._of_episode) > _MAX_EPISODES:
                    self._of_episode.popitem(last=False)
            self._of_episode.move_to_end(episode_id)
            return server

    async def call(
        self, attempt: Callable[[ModelServer], Awaitable[T]], *, episode_id: str = "", only: ModelServer | None = None
    ) -> T:
        """Call a server; try again, maybe on another server, if the attempt fails.

        Args:
            attempt: One attempt on a server.
            episode_id: The episode whose server is called.
            only: The server to call instead, in all attempts.

        Raises:
            PolicyUnavailable: If all attempts failed.
            ServerUnreachable: At once, if no connection to any of the servers can be opened, and none has been.
            EngineDead: If the server's engine has died, and no other server works.
            RequestRefused: If a server refused the request; it is not tried again.
        """
        failures: list[tuple[ModelServer, AttemptFailure]] = []
        while True:
            server = only or self.server_of(episode_id)
            server.load += 1
            try:
                async with self.here().gate:
                    result = await attempt(server)
                if server.is_lost:
                    _log.warning("%s answers again", server.url)
                server.has_answered, server.is_dead, server.is_lost = True, False, False
                return result
            except AttemptFailure as error:
                failure = error
                failures.append((server, failure))
                is_moving = self._note_failure(failures)
            finally:
                server.load -= 1
            attempts = len(failures)
            if attempts > self._max_retries:
                raise PolicyUnavailable(
                    f"{server.url} did not answer after {attempts} attempt{'s' if attempts > 1 else ''}; the last one "
                    f"failed because of {failure.cause}: {failure}. Check the server's log, or raise max_retries or "
                    "timeout_s"
                ) from failure
            self._usage.retries[failure.cause] += 1
            if failure.is_unreachable and not server.is_lost:
                server.is_lost = True
                goes_on = "go to another server" if is_moving else f"are sent again, up to {self._max_retries} times"
                _log.warning("no connection to %s can be opened: %s. Its requests %s", server.url, failure, goes_on)
            if not is_moving:
                await asyncio.sleep(_wait_s(failure, attempts))

    def _note_failure(self, failures: Sequence[tuple[ModelServer, AttemptFailure]]) -> bool:
        """Update the state of the server that failed, and return whether its episodes move to another server.

        Raises:
            EngineDead, ServerUnreachable: See `call`.
        """
        server, failure = failures[-1]
        server.has_answered |= not failure.is_unreachable
        last = failures[-_FAILURES_IN_A_ROW:]
        is_down = len(last) == _FAILURES_IN_A_ROW and all(
            one is server and found.cause not in _OVERLOADED for one, found in last
        )
        server.is_dead = failure.is_dead or (server.is_dead and failure.is_unreachable)  # vLLM then exits
        is_moving = False
        if failure.is_unreachable or is_down or server.is_dead:
            now = time.monotonic()
            server.down_until = now + _REST_S
            if failure.is_unreachable or server.is_dead:  # it may come back with other options
                server.is_checked = server.has_model = False
                server.tokenizers.clear()
            is_moving = any(one.down_until <= now for one in self.servers)
        if server.is_dead and not is_moving:
            raise EngineDead(dead(server, failure)) from failure
        if not is_moving and not any(one.has_answered for one in self.servers):
            raise ServerUnreachable(
                f"no connection to {server.url} can be opened: {failure}. Start the server and wait until it is ready, "
                "or correct the URL and its port"
            ) from failure
        return is_moving

    async def request(
        self,
        server: ModelServer,
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
            id: The value of the header `X-Request-Id`, which proxies would otherwise set.
            has_value: Whether the response has a JSON value; if not, None is returned.

        Raises:
            AttemptFailure: If another attempt may succeed.
            RequestRefused: If the server refuses the request (a status of 3xx or 4xx, except 408 and 429).
            ServerReplyError: If the response is longer than `max_reply_bytes`, compressed, or has too many values.
        """
        async with self._response(method, server.url + path, body, id) as response:
            content = b"".join([chunk async for chunk in _chunks(response, self._max_reply_bytes)])
        request = f"{method} {server.url}{path}"
        _check_status(response, content, request)
        return _value_of(content, request) if has_value else None

    async def stream(
        self,
        server: ModelServer,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[Any], Awaitable[bool]],
        *,
        id: str,
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
            AttemptFailure: If another attempt may succeed: also if the stream ends before `[DONE]`, or an event is not
                JSON or reports an error of the server.
            RequestRefused: If the server refuses the request; see `request`.
            ServerReplyError: If the answer is not a stream, or if it has no end; see `request`.
        """
        request = f"POST {server.url}{path}"
        async with self._response("POST", server.url + path, body, id) as response:
            chunks = _chunks(response, self._max_reply_bytes)
            if response.status_code >= 300:
                _check_status(response, b"".join([chunk async for chunk in chunks]), request)
            kind = response.headers.get("Content-Type", "")
            if not kind.startswith("text/event-stream"):
                raise ServerReplyError(f"{request} was answered with {brief(kind)}; expected a stream of events")
            async with contextlib.aclosing(_lines(chunks)) as lines:
                async for line in lines:
                    name, _, data = line.partition(b":")
                    if name != b"data":
                        continue  # the end of an event, or a comment, which keeps the connection open
                    if data.strip() == b"[DONE]":
                        return
                    value = _value_of(data, request)
                    if isinstance(value, dict) and "error" in value:
                        error: Any = cast("dict[str, Any]", value)["error"]
                        code: Any = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else None
                        status = code if isinstance(code, int) else 500  # without a status, the server failed
                        if status in (408, 429) or status >= 500:
                            raise AttemptFailure(str(status), f"{request}: {message_of(data)}")
                        raise ServerReplyError(f"the stream has an error with status {status}: {message_of(data)}")
                    if not await read(value):
                        return
            raise AttemptFailure("partial", f"{request}: the stream ended before [DONE]")

    @contextlib.asynccontextmanager
    async def _response(
        self, method: str, url: str, body: Mapping[str, Any] | None, id: str | None
    ) -> AsyncGenerator[Any]:
        """Send a request, bound its time, count it, and raise an `AttemptFailure` if it fails on the way."""
        start, clock = time.monotonic(), asyncio.timeout(self._timeout_s)
        content = None if body is None else orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        headers = {} if id is None else {"X-Request-Id": id}
        http = self.here().http
        try:
            async with clock, http.stream(method, url, content=content, headers=headers) as response:
                yield response
        except TimeoutError:
            if not clock.expired():
                raise
            raise AttemptFailure("timeout", f"no answer within timeout_s={self._timeout_s:g}") from None
        except self._httpx.RequestError as error:
            unreachable = isinstance(error, (self._httpx.ConnectError, self._httpx.ConnectTimeout))
            text = f"{type(error).__name__}: {error}"
            raise AttemptFailure("connection", text, is_unreachable=unreachable) from error
        finally:
            self._usage.requests += 1
            self._usage.seconds += time.monotonic() - start


def _wait_s(failure: AttemptFailure, attempts: int) -> float:
    """Return the time before the next attempt on the same server, in seconds."""
    backoff_s = min(_MAX_WAIT_S, _FIRST_WAIT_S * 2 ** (attempts - 1)) + random.uniform(0, _FIRST_WAIT_S)
    return max(backoff_s, failure.retry_after_s or 0.0)


@cache
def _certificates(httpx: Any) -> Any:
    """Return the SSL context that all clients share, because it takes longer to create than a client."""
    return httpx.create_ssl_context()


def dead(server: ModelServer, failure: AttemptFailure) -> str:
    """Return the error message for a server whose engine has died."""
    return f"the engine of {server.url} has died: {failure}. See the server's log for the cause, and start it again"


# Responses.


def _check_status(response: Any, content: bytes, request: str) -> None:
    status: int = response.status_code
    if status in (408, 429) or (status >= 500 and status != _NOT_IMPLEMENTED):
        header, after_s = response.headers.get("Retry-After", ""), None
        with contextlib.suppress(ValueError):  # a date
            date = email.utils.parsedate_to_datetime(header)
            after_s = date.replace(tzinfo=date.tzinfo or UTC).timestamp() - time.time()
        with contextlib.suppress(ValueError):
            after_s = float(header)
        if after_s is not None:
            after_s = min(max(0.0, after_s), _MAX_RETRY_AFTER_S)
        raise AttemptFailure(str(status), f"{request}: {message_of(content)}", retry_after_s=after_s)
    if status >= 300:
        raise RequestRefused(f"{request} was refused with status {status}: {message_of(content)}", status)


async def _chunks(response: Any, most: int) -> AsyncGenerator[bytes]:
    """Yield a body as it arrives. It is never decompressed, because a few bytes may become gigabytes."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise ServerReplyError(
            f"the response has the Content-Encoding {brief(encoding, 40)}; expected none, as Accept-Encoding asks. "
            "Change the server, or the proxy in front of it"
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


async def _lines(body: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the lines of a body, split at line feeds only: httpx also splits at characters that JSON may contain."""
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


def _value_of(content: bytes, request: str) -> Any:
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
            return json.loads(content)  # it accepts NaN, which is an error in the reply and not in the transport
        except RecursionError as error:
            raise ServerReplyError("the response is nested too deeply") from error
        except ValueError as error:
            raise AttemptFailure("partial", f"{request}: the response is not JSON: {error}") from error


def message_of(content: bytes) -> str:
    """Return the message in the body of an error response."""
    content = content[:_MAX_ERROR_BYTES]
    with contextlib.suppress(ValueError, RecursionError):
        value: Any = orjson.loads(content)
        for key in ("error", "message", "detail"):  # nested in vLLM: {"error": {"message": ...}}
            value = cast("dict[str, Any]", value).get(key, value) if isinstance(value, dict) else value
        return (value if isinstance(value, str) else json.dumps(value))[:_MAX_MESSAGE]
    return content[: 4 * _MAX_MESSAGE].decode(errors="replace")[:_MAX_MESSAGE]
