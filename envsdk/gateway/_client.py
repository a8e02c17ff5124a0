"""The client at the other end of a request: it may go away, and it gets a reply while that is streamed."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from starlette.types import Receive, Send

from ._exchange import ClientGone
from ._protocols import WireFormat
from ._protocols._wire import ReplyStream
from ._requests import ModelReply, ModelRequest, ReplyPiece

T = TypeVar("T")
_LAST_BYTES = 16_384


@contextlib.asynccontextmanager
async def disconnection(receive: Receive) -> "AsyncGenerator[asyncio.Task[None]]":
    """Provide a task that ends when the client of a request, whose body has been read, disconnects."""

    async def leave() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    leaving = asyncio.create_task(leave())
    try:
        yield leaving
    finally:
        leaving.cancel()


async def wait_for(work: Coroutine[Any, Any, T], leaving: "asyncio.Task[None]", abandon: Callable[[], None]) -> T:
    """Return the result of a coroutine. If the client goes away first, or the server ends, it is canceled.

    Args:
        work: The coroutine.
        leaving: Ends when the client goes away; see `disconnection`.
        abandon: Called before it is canceled.

    Raises:
        ClientGone: If the client went away.
    """
    working = asyncio.create_task(work)
    working.add_done_callback(retrieve)
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        if not working.done():
            abandon()
            working.cancel()


def retrieve(working: "asyncio.Task[Any]") -> None:
    """Retrieve the exception of a task: asyncio logs one that is never retrieved, with its message."""
    if not working.cancelled():
        working.exception()


class StreamedResponse:
    """A response of server-sent events. It begins with the first piece of the reply, or when all replies are complete.

    Args:
        wire: The protocol.
        request: The request.
        body: Its JSON body.
        created: The time in seconds since 1970.
        send: Sends parts of the response.

    Attributes:
        request: The request, which reports pieces of its reply if it asks for only one.
    """

    def __init__(self, wire: WireFormat, request: ModelRequest, body: Any, created: int, send: Send) -> None:
        self.request = replace(request, on_piece=self._put) if request.n == 1 else request
        self._wire, self._body, self._created, self._send = wire, body, created, send
        self._has_begun = False
        self._stream: ReplyStream | None = None
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[ReplyPiece | None] = asyncio.Queue()

    def _put(self, piece: ReplyPiece) -> None:
        """Add a piece, in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)

    async def send_pieces(self, working: "asyncio.Task[Any]") -> None:
        """Send pieces as they arrive, until the task of the whole reply is done. The task is canceled with this."""
        working.add_done_callback(lambda _: self._pieces.put_nowait(None))
        try:
            while (piece := await self._pieces.get()) is not None:
                if self._stream is None:
                    self._stream = self._wire.stream(self.request, self._body, self._created)
                await self.send(b"".join(self._stream.feed(piece)), more_body=True)
        finally:
            working.cancel()

    async def send_rest(self, replies: Sequence[ModelReply]) -> bytes:
        """Send all that is left except for the last part, and return that."""
        if self._stream is not None:
            return b"".join(self._stream.end(replies[0]))
        # All events are written before the response begins: an error in one of them can be answered.
        events = b"".join(self._wire.events(self.request, self._body, replies, self._created))
        if len(events) > _LAST_BYTES:
            await self.send(events[:-_LAST_BYTES], more_body=True)
            await self.send(b"", more_body=True)  # returns when the client has received most of the part before
        return events[-_LAST_BYTES:]

    async def send(self, part: bytes, *, more_body: bool = False) -> None:
        """Begin the response if it has not begun, and send a part of it, the last one unless more follow."""
        if not self._has_begun:
            self._has_begun = True
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": part, "more_body": more_body})
