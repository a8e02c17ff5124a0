"""The queue between a program's requests and the environment that answers them, which run in different threads."""

import asyncio
import contextlib
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from .._describing import message_of
from .._spans import EpisodeSpan, current_span
from ..errors import RequestError
from ..images import Image
from ._requests import ModelReply, ModelRequest


@dataclass(frozen=True, slots=True, eq=False)
class PendingRequest:
    """A request that is waiting for its replies.

    Attributes:
        request: The request.
        replies: Its replies, or an error.
        span: The span of the request, if it is recorded.
    """

    request: ModelRequest
    replies: "Future[Sequence[ModelReply]]" = field(default_factory=Future["Sequence[ModelReply]"])
    span: EpisodeSpan | None = field(default_factory=current_span.get)

    @property
    def is_abandoned(self) -> bool:
        """True if the program no longer waits for the replies."""
        return self.replies.cancelled()

    def answer(self, given: Sequence[ModelReply] | RequestError) -> None:
        """Give the program its replies or an error, if it still waits."""
        if not self.replies.set_running_or_notify_cancel():
            return
        if isinstance(given, RequestError):
            self.replies.set_exception(given)
        else:
            self.replies.set_result(given)


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """The end of a program.

    Attributes:
        outcome: The value that it returned.
        error: The exception that it raised, or None.
    """

    outcome: Any = None
    error: BaseException | None = None


@dataclass(eq=False, repr=False)
class ProgramSession:
    """The requests of one program, in one episode: a server puts them in, an environment takes them out.

    Args:
        count_tokens: Returns how many tokens the prompt of a request has, or raises `RequestError` if it cannot be
            rendered. It is called in a thread.
        check_image: Checks that the model takes an image, or images at all (None). It is called in a thread, and raises
            `RenderError` if the model does not, or `ConfigError` if its processor of images cannot be loaded.
        role: The role of contexts whose requests do not name one.

    Attributes:
        id: Names the session in URLs. Whoever knows it can send requests, so it is as hard to guess as the key.
        key: The API key of the session.
        was_asked: Whether a request came, refused ones included.
        refused: How many requests were refused.
        refusal: Why the last of these was refused.
        abandoned: The requests whose clients disconnected, and that the environment has not taken yet.
        span: The span of the program, in which those of its requests are; None if they are not recorded.
    """

    count_tokens: Callable[[ModelRequest], int]
    check_image: Callable[[Image | None], None]
    role: str | None = None
    id: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    key: str = field(default_factory=lambda: f"sk-envsdk-{secrets.token_urlsafe(24)}")
    was_asked: bool = False
    refused: int = 0
    refusal: str = ""
    span: EpisodeSpan | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _events: deque[PendingRequest | ProgramEnd] = field(default_factory=deque["PendingRequest | ProgramEnd"])
    _waiting: Future[PendingRequest | ProgramEnd] | None = None
    _closed: RequestError | None = None
    abandoned: list[ModelRequest] = field(default_factory=list[ModelRequest])

    # The server's side, in its event loop.

    async def ask(self, request: ModelRequest) -> Sequence[ModelReply]:
        """Return the replies to a request.

        Raises:
            RequestError: If the episode is over, or ends before the reply.
        """
        self.was_asked = True
        asked = PendingRequest(request)
        self.put(asked)
        return await asyncio.wrap_future(asked.replies)

    def abandon(self, request: ModelRequest) -> None:
        """Record that the client disconnected before it received the whole answer; cancel `ask` if it waits."""
        with self._lock:
            self.abandoned.append(request)

    def note_refusal(self, error: RequestError) -> None:
        """Record that a request was refused, by the server before `ask`, or by the environment."""
        with self._lock:
            self.was_asked = True
            self.refused, self.refusal = self.refused + 1, message_of(error)

    def put(self, event: PendingRequest | ProgramEnd) -> None:
        """Give the environment a request, which is refused if the session is closed, or the end of the program."""
        with self._lock:
            closed, waiting = self._closed, self._waiting
            if closed is None:
                self._waiting = None
                if waiting is None or not waiting.set_running_or_notify_cancel():
                    self._events.append(event)
                    return
                waiting.set_result(event)
                return
        if isinstance(event, PendingRequest):
            event.answer(closed)

    # The environment's side, and the program's end.

    async def next(self) -> PendingRequest | ProgramEnd:
        """Wait for the next request, or for the end of the program."""
        with self._lock:
            if self._events:
                return self._events.popleft()
            waiting = self._waiting = Future()
        try:
            return await asyncio.wrap_future(waiting)
        except asyncio.CancelledError:
            if not waiting.cancel():  # it arrived just before
                self.put_back(waiting.result())
            raise

    def put_back(self, event: PendingRequest | ProgramEnd) -> None:
        """Let the next call of `next` return an event that an earlier one returned."""
        with self._lock:
            self._events.appendleft(event)

    def take_abandoned(self) -> list[ModelRequest]:
        """Return the requests that were abandoned since the last call."""
        with self._lock:
            abandoned, self.abandoned = self.abandoned, []
        return abandoned

    def close(self, error: RequestError) -> None:
        """Refuse the waiting requests, and all further ones."""
        with self._lock:
            self._closed = error
            left = [event for event in self._events if isinstance(event, PendingRequest)]
            self._events.clear()
        for asked in left:
            asked.answer(error)


async def until_done(future: "Future[Any]") -> None:
    """Wait until a future has a result, or is canceled; canceling the waiter does not cancel the future."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: "Future[Any]") -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(done.set)

    future.add_done_callback(wake)
    await done.wait()
