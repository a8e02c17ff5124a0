"""Sends a streamed reply while it is sampled."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from starlette.types import Send

from ._client import Client, send_head
from ._protocols import WireFormat
from ._protocols._wire import ReplyStream
from ._requests import ModelReply, ModelRequest, ReplyPiece


class Pieces:
    """The pieces of one reply, which come from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pieces: list[ReplyPiece] = []
        self._has_come = asyncio.Event()

    def put(self, piece: ReplyPiece) -> None:
        """Add a piece."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._put, piece)

    def _put(self, piece: ReplyPiece) -> None:
        self._pieces.append(piece)
        self._has_come.set()

    async def wait(self) -> None:
        """Wait for a piece."""
        await self._has_come.wait()

    def take(self) -> list[ReplyPiece]:
        """Return the pieces that have come since the last call."""
        self._has_come.clear()
        pieces, self._pieces = self._pieces, []
        return pieces


class LiveResponse:
    """The response of one request, which begins with the first piece of the reply.

    Args:
        wire: The protocol.
        request: The request.
        body: Its JSON body.
        send: Sends parts of the response.
    """

    def __init__(self, wire: WireFormat, request: ModelRequest, body: Any, send: Send) -> None:
        self._wire, self._request, self._body, self._send = wire, request, body, send
        self._stream: ReplyStream | None = None
        self.created = 0
        """The time in seconds since 1970 at which it began."""

    @property
    def has_begun(self) -> bool:
        """Whether a part of it was sent."""
        return self._stream is not None

    async def send_until(
        self,
        client: Client,
        pieces: Pieces,
        work: Coroutine[Any, Any, Sequence[ModelReply]],
        abandon: Callable[[], None],
    ) -> Sequence[ModelReply]:
        """Send pieces until the whole reply is there, and return it; see `Client.wait_for`."""
        working = asyncio.create_task(client.wait_for(work, abandon))
        waiting: asyncio.Task[None] | None = None
        try:
            while not working.done():
                waiting = asyncio.create_task(pieces.wait())
                await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if not working.done():
                    await self._send_pieces(pieces.take())
            return working.result()
        finally:
            for task in (working, waiting):
                if task is not None:
                    task.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def _send_pieces(self, pieces: Iterable[ReplyPiece]) -> None:
        events: list[bytes] = []
        for piece in pieces:
            if self._stream is None:
                self.created = int(time.time())
                self._stream = self._wire.stream(self._request, self._body, self.created)
                await send_head(self._send)
            events += self._stream.feed(piece)
        if events:
            await self._send({"type": "http.response.body", "body": b"".join(events), "more_body": True})

    def rest(self, replies: Sequence[ModelReply]) -> bytes:
        """Return the rest of a response that has begun."""
        assert self._stream is not None
        last = self._wire.last_events(self._request, self._body, replies, self.created)
        return b"".join([*self._stream.end(replies[0]), *last])
