"""The client at the other end of a request: whether it is still there, and how it gets what was made for it."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from starlette.types import Receive, Send

from ._exchange import ClientGone

T = TypeVar("T")
_CHUNK_BYTES = 16_384


class Client:
    """The client of a request whose body has been read: `async with Client(receive) as client`.

    Args:
        receive: The `receive` of the request; from now on, all that comes is that the client went away.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive

    async def __aenter__(self) -> "Client":
        self._leaving = asyncio.create_task(self._leave())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leaving.cancel()

    async def _leave(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def is_gone(self) -> bool:
        """Return whether the client closed the connection. Ask before the last part of the response is sent."""
        for _ in range(
            2
        ):  # a failed write is noted in the next turn of the event loop, and by `_leave` in the one after
            await asyncio.sleep(0)
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
    """Read how a task ended: asyncio logs, with its text, an exception that is never read."""
    if not working.cancelled():
        working.exception()


async def send_events(events: Iterator[bytes], send: Send) -> None:
    """Send server-sent events as a response, in chunks, each after the client took the one before."""
    chunks = _chunks(events)
    first = next(chunks, b"")  # what fails here is still answered with an error
    await send_head(send)
    await send({"type": "http.response.body", "body": first, "more_body": True})
    for chunk in chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def send_head(send: Send) -> None:
    """Begin a response that consists of server-sent events."""
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


def _chunks(events: Iterator[bytes]) -> Iterator[bytes]:
    """Join small events: each chunk costs a write, and the reply is complete anyway."""
    chunk = bytearray()
    for event in events:
        chunk += event
        if len(chunk) >= _CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    if chunk:
        yield bytes(chunk)
