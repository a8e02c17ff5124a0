"""The client at the other end of a request: it may go away, and it gets a reply while that is streamed."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from starlette.types import Receive, Send

from ._exchange import ClientGone
from ._protocols import WireFormat
from ._protocols._wire import ReplyStream
from ._requests import ModelReply, ModelRequest, ReplyPiece

T = TypeVar("T")
_CHUNK_BYTES = 16_384


class WaitingClient:
    """The client of a request whose body has been read: `async with WaitingClient(receive) as client`.

    Args:
        receive: The `receive` of the request; from now on, it only reports that the client disconnected.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive

    async def __aenter__(self) -> "WaitingClient":
        async def leave() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass

        self._leaving = asyncio.create_task(leave())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leaving.cancel()

    async def is_gone(self) -> bool:
        """Return whether the client closed the connection. Call it before the last part of the response is sent."""
        await asyncio.sleep(0)  # a failed write is noted in the next turn of the event loop,
        await asyncio.sleep(0)  # and by `leave` in the one after
        return self._leaving.done()

    async def wait_for(self, work: Coroutine[Any, Any, T], abandon: Callable[[], None]) -> T:
        """Return the result of a coroutine. If the client goes away first, or the server ends, it is canceled.

        Args:
            work: The coroutine.
            abandon: Called before it is canceled.

        Raises:
            ClientGone: If the client went away.
        """
        working = asyncio.create_task(work)
        working.add_done_callback(retrieve)
        try:
            await asyncio.wait({working, self._leaving}, return_when=asyncio.FIRST_COMPLETED)
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


async def send_head(send: Send) -> None:
    """Begin a response that consists of server-sent events."""
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def send_events(events: Iterable[bytes], send: Send) -> None:
    """Send server-sent events as a response, in chunks, each after the client has received the previous one.

    Small events are joined: each chunk costs a write, and the reply is complete anyway.
    """
    chunk, has_begun = bytearray(), False
    for event in (*events, None):  # an event that cannot be written is answered with an error
        chunk += event or b""
        if chunk and (event is None or len(chunk) >= _CHUNK_BYTES):
            if not has_begun:
                await send_head(send)
            has_begun = True
            await send({"type": "http.response.body", "body": bytes(chunk), "more_body": True})
            chunk.clear()


class LiveResponse:
    """The response of one request, which begins with the first piece of the reply.

    Args:
        wire: The protocol.
        request: The request.
        body: Its JSON body.
        send: Sends parts of the response.

    Attributes:
        request: The request, which reports pieces of its reply.
        created: The time in seconds since 1970 at which the response began; 0 before.
    """

    def __init__(self, wire: WireFormat, request: ModelRequest, body: Any, send: Send) -> None:
        self.request = replace(request, on_piece=self._put)
        self.created = 0
        self._wire, self._body, self._send = wire, body, send
        self._stream: ReplyStream | None = None
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[ReplyPiece] = asyncio.Queue()

    def _put(self, piece: ReplyPiece) -> None:
        """Add a piece, in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)

    async def send_until(
        self, client: WaitingClient, work: Coroutine[Any, Any, Sequence[ModelReply]], abandon: Callable[[], None]
    ) -> Sequence[ModelReply]:
        """Send pieces until the whole reply is there, and return it; see `WaitingClient.wait_for`."""
        working = asyncio.create_task(client.wait_for(work, abandon))
        waiting: asyncio.Task[ReplyPiece] | None = None
        try:
            while True:
                waiting = asyncio.create_task(self._pieces.get())
                await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    return working.result()
                pieces = [waiting.result()]
                while not self._pieces.empty():
                    pieces.append(self._pieces.get_nowait())
                if self._stream is None:
                    self.created = int(time.time())
                    self._stream = self._wire.stream(self.request, self._body, self.created)
                    await send_head(self._send)
                events = b"".join(event for piece in pieces for event in self._stream.feed(piece))
                if events:
                    await self._send({"type": "http.response.body", "body": events, "more_body": True})
        finally:
            for task in (working, waiting):
                if task is not None:
                    task.cancel()
            await asyncio.gather(working, return_exceptions=True)

    def rest(self, replies: Sequence[ModelReply]) -> bytes | None:
        """Return the rest of the response; None if it has not begun."""
        if self._stream is None:
            return None
        last = self._wire.last_events(self.request, self._body, replies, self.created)
        return b"".join([*self._stream.end(replies[0]), *last])
