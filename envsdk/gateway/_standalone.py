"""The sessions of a standalone gateway: their number, the closing of idle ones, and the summaries of closed ones."""

import asyncio
import contextlib
import ctypes
import logging
import math
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, RequestError
from ._client import retrieve
from ._exchange import Metrics, Refusal
from ._outside import PlayedSessions
from ._session import ProgramSession
from ._sessions import OpenSession, Sessions

_log = logging.getLogger(__name__)
_REMEMBERED = 1000
_LARGE_BYTES = 2**20  # a session with a larger request returns its memory to the system when it is closed


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """The limits of a standalone gateway's sessions.

    Attributes:
        max_sessions: How many sessions may be open.
        requests_per_s: How many requests per second a session may send; None for any number.
        burst: How many requests a session may send at once; None for those of one second.
        idle_timeout_s: A session is closed after this time without a request, in seconds; None for never.
    """

    max_sessions: int = 1000
    requests_per_s: float | None = None
    burst: int | None = None
    idle_timeout_s: float | None = 3600.0

    def __post_init__(self) -> None:
        if self.max_sessions < 1:
            raise ConfigError(f"max_sessions is {self.max_sessions}; expected at least 1")
        if self.idle_timeout_s is not None and not 0 < self.idle_timeout_s < math.inf:
            raise ConfigError(f"idle_timeout_s is {self.idle_timeout_s}; expected a time above 0, or None for never")


@dataclass(frozen=True, slots=True)
class ClosedSession:
    """The summary of a closed session.

    Attributes:
        reason: Why it was closed.
        summary: The episode's summary.
    """

    reason: str
    summary: Mapping[str, Any]


class ManagedSessions:
    """The sessions of a standalone gateway.

    Args:
        factory: Opens, rewards and closes them.
        limits: Their limits.
    """

    def __init__(self, factory: PlayedSessions, limits: SessionLimits) -> None:
        self.open_sessions = Sessions(requests_per_s=limits.requests_per_s, burst=limits.burst)
        self.metrics = Metrics(lambda: len(self.open_sessions.by_id))
        self._factory = factory
        self._limits = limits
        self._opening = 0
        self._closing: dict[str, asyncio.Task[ClosedSession]] = {}
        self._closed: OrderedDict[str, ClosedSession] = OrderedDict()

    async def open(self, options: Mapping[str, Any]) -> ProgramSession:
        """Open a session.

        Raises:
            RequestError: If too many sessions are open.
        """
        if len(self.open_sessions.by_id) + self._opening + len(self._closing) >= self._limits.max_sessions:
            message = f"{self._limits.max_sessions} sessions are open, which is the limit: close one first"
            raise Refusal(429, "too_many_sessions", message, {"retry-after": "1"})
        self._opening += 1
        try:
            session = await self._factory.open(options)
            self.open_sessions.add(session)
        finally:
            self._opening -= 1
        return session

    async def reward(self, session_id: str, rewards: Mapping[str, float]) -> OpenSession:
        """Reward an open session.

        Raises:
            RequestError: If it is not open.
        """
        opened = self.open_sessions.by_id.get(session_id)
        if opened is None:
            if session_id in self._closed or session_id in self._closing:
                raise RequestError("the session is closed", 409, "session_closed")
            raise not_found()
        opened.used_s = time.monotonic()
        await self._factory.reward(session_id, rewards)
        return opened

    async def close(self, session_id: str, reason: str) -> ClosedSession:
        """Close a session. Closing it again returns the same.

        Raises:
            RequestError: If the session is not known.
        """
        if session_id in self._closed:
            return self._closed[session_id]
        if session_id not in self._closing:
            removed = self.open_sessions.remove(session_id)
            if removed is None:
                raise not_found()
            is_large = removed.largest_body > _LARGE_BYTES
            closing = self._closing[session_id] = asyncio.create_task(self._close(session_id, reason, is_large))
            del removed  # and all that it holds
            closing.add_done_callback(retrieve)
        return await asyncio.shield(self._closing[session_id])

    async def _close(self, session_id: str, reason: str, is_large: bool) -> ClosedSession:
        try:
            closed = ClosedSession(reason, await self._factory.close(session_id, reason))
            if is_large:  # the C library (glibc) would keep much of the memory that is free now
                with contextlib.suppress(OSError, AttributeError):  # another C library
                    await asyncio.to_thread(ctypes.CDLL(None).malloc_trim, 0)
        finally:
            del self._closing[session_id]
        self._closed[session_id] = closed
        self.metrics.closed.labels(reason).inc()
        if len(self._closed) > _REMEMBERED:
            self._closed.popitem(last=False)
        return closed

    async def find(self, session_id: str) -> OpenSession | ClosedSession:
        """Return an open or a closed session; wait for one that is being closed.

        Raises:
            RequestError: If there is no such session.
        """
        if session_id in self._closing:
            return await asyncio.shield(self._closing[session_id])
        found = self.open_sessions.by_id.get(session_id) or self._closed.get(session_id)
        if found is None:
            raise not_found()
        return found

    @contextlib.asynccontextmanager
    async def lifespan(self, app: object) -> AsyncGenerator[None]:
        """Warm up; close idle sessions while the server runs, and all sessions when it ends."""
        await self._factory.warm_up()
        sweeping = asyncio.create_task(self._close_idle())
        try:
            yield
        finally:
            sweeping.cancel()
            await self._close_all(list(self.open_sessions.by_id), "shutdown")
            await self._factory.aclose()

    async def _close_idle(self) -> None:
        timeout_s = self._limits.idle_timeout_s
        while timeout_s is not None:
            await asyncio.sleep(min(1.0, timeout_s / 4))
            sessions = list(self.open_sessions.by_id.items())
            await self._close_all([name for name, opened in sessions if opened.idle_s() >= timeout_s], "idle")

    async def _close_all(self, session_ids: list[str], reason: str) -> None:
        """Close sessions concurrently. Errors are logged without their messages, which may quote content."""
        results = await asyncio.gather(*(self.close(each, reason) for each in session_ids), return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                _log.error("closing a session (%s) failed with %s", reason, type(result).__qualname__)


def not_found() -> RequestError:
    """Return the error of a session that is not known."""
    return RequestError("no session has this id", 404, "session_not_found")
