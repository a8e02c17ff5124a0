"""The open sessions of a server: found by key or id, with limited rates, and closed when idle."""

import asyncio
import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..errors import ConfigError
from ._protocols import SessionMemory
from ._session import ProgramSession


@dataclass(slots=True)
class TokenBucket:
    """Limits a rate: `burst` requests at once, and `per_s` more each second.

    Attributes:
        per_s: Requests per second, above 0.
        burst: How many requests may arrive at once, at least 1.
        at_s: When a token was last taken, on a monotonic clock, in seconds.
        tokens: How many tokens there were then; at most `burst` count.
    """

    per_s: float
    burst: int
    at_s: float
    tokens: float = math.inf

    def take(self, now_s: float) -> float:
        """Take a token and return 0.0; or, if there is none, return the seconds until there will be one."""
        self.tokens = min(self.burst, self.tokens + (now_s - self.at_s) * self.per_s)
        self.at_s = now_s
        if self.tokens < 1:
            return (1 - self.tokens) / self.per_s
        self.tokens -= 1
        return 0.0


@dataclass(slots=True)
class OpenSession:
    """An open session with the server's counts.

    Attributes:
        session: The session.
        bucket: Limits its requests; None if they are not limited.
        opened: When it was opened, in seconds since the epoch.
        used_s: When its last request came, or was answered or rewarded, on the monotonic clock.
        requests: The number of requests for a reply.
        waiting: How many requests are being answered.
        memory: The protocols' memory of earlier requests.
        reading: Held while a request is read, because `memory` cannot be used by two threads.
        largest_body: The size of the largest body of a request, in bytes.
    """

    session: ProgramSession
    bucket: TokenBucket | None = None
    opened: float = field(default_factory=time.time)
    used_s: float = field(default_factory=time.monotonic)
    requests: int = 0
    waiting: int = 0
    memory: SessionMemory = field(default_factory=SessionMemory)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    largest_body: int = 0

    @contextmanager
    def answering(self) -> Generator[None]:
        """Count a request as being answered, so that the session is not idle."""
        self.requests += 1
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1
            self.used_s = time.monotonic()

    def idle_s(self) -> float:
        """Return the number of seconds without a request."""
        return 0.0 if self.waiting else time.monotonic() - self.used_s


class Sessions:
    """The open sessions of one server. `add` and `remove` may be called in any thread.

    Args:
        requests_per_s: How many requests per second a session may send; None for any number.
        burst: How many requests a session may send at once; None for the requests of one second.

    Attributes:
        by_id: The sessions by their ids.
        by_key: The sessions by their API keys.

    Raises:
        ConfigError: If `requests_per_s` is not above 0, or `burst` is less than 1.
    """

    def __init__(self, *, requests_per_s: float | None = None, burst: int | None = None) -> None:
        if requests_per_s is not None and not 0 < requests_per_s < math.inf:
            raise ConfigError(f"requests_per_s is {requests_per_s}; expected a number above 0, or None for no limit")
        if burst is not None and burst < 1:
            raise ConfigError(f"burst is {burst}; expected at least 1, or None for the requests of one second")
        self._requests_per_s = requests_per_s
        self._burst = burst or math.ceil(requests_per_s or 1)
        self.by_id: dict[str, OpenSession] = {}
        self.by_key: dict[str, OpenSession] = {}

    def add(self, session: ProgramSession) -> OpenSession:
        """Serve a session from now on.

        Raises:
            ConfigError: If its id or its key is that of an open session.
        """
        if session.id in self.by_id or session.key in self.by_key:
            raise ConfigError("the id or the key of the session is in use; draw both with secrets.token_urlsafe")
        per_s = self._requests_per_s
        bucket = None if per_s is None else TokenBucket(per_s, self._burst, time.monotonic())
        opened = OpenSession(session, bucket)
        self.by_id[session.id] = self.by_key[session.key] = opened
        return opened

    def remove(self, session_id: str) -> OpenSession | None:
        """Stop serving a session and return it with its counts; None if it is not open."""
        opened = self.by_id.pop(session_id, None)
        if opened is not None:
            self.by_key.pop(opened.session.key, None)
        return opened
