"""The wire between programs and the gateway: notes each request, and cuts an answer where a scenario wants it."""

import asyncio
import json
import time
import zlib
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass
class WireRequest:
    """A request as it came, and how it was answered.

    Attributes:
        path: Its path, without the session.
        headers: Its headers, without the key.
        body: Its body as JSON; None without one.
        status: The status of the answer; 0 if it was cut before.
        answer: The bytes of the answer.
        seconds: The time until the last byte of the answer.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: Any = None
    status: int = 0
    answer: bytes = b""
    seconds: float = 0.0


@dataclass
class Wire:
    """Application in front of the gateway's.

    Attributes:
        app: The gateway's application.
        requests: The requests for replies, in order.
        outside: The hosts to which programs wanted to connect: this server is also their proxy.
        cut_at: The first answer that has these bytes is cut there; None to cut none.
        was_cut: Whether one was cut.
    """

    app: ASGIApp
    requests: list[WireRequest] = field(default_factory=list[WireRequest])
    outside: list[str] = field(default_factory=list[str])
    cut_at: bytes | None = None
    was_cut: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["method"] == "CONNECT" or not headers.get("host", "").startswith("127.0.0.1"):
            self.outside.append(headers.get("host") or path)
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        began = time.perf_counter()
        noted = WireRequest(scope["method"], path.partition("/v1")[2] or path.rpartition("/")[2], headers)
        for secret in ("authorization", "x-api-key"):
            headers.pop(secret, None)
        self.requests.append(noted)
        raw, is_cut = bytearray(), asyncio.Event()

        async def read() -> Message:
            if is_cut.is_set():
                return {"type": "http.disconnect"}
            pending = [asyncio.ensure_future(receive()), asyncio.ensure_future(is_cut.wait())]
            try:
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if not pending[0].done():
                    return {"type": "http.disconnect"}
            finally:
                for each in pending:
                    each.cancel()
            message = await pending[0]
            raw.extend(message.get("body", b""))
            if message["type"] == "http.request" and not message.get("more_body") and raw and noted.body is None:
                is_packed = headers.get("content-encoding") == "gzip"
                try:
                    noted.body = json.loads(zlib.decompress(raw, 31) if is_packed else bytes(raw))
                except ValueError:
                    noted.body = raw.decode("latin-1")
            return message

        async def write(message: Message) -> None:
            if message["type"] == "http.response.start":
                noted.status = message["status"]
                message = {**message, "headers": [each for each in message["headers"] if each[0] != b"content-length"]}
            if is_cut.is_set():
                return  # as a server does after its client has gone
            sent = len(noted.answer)
            noted.answer += message.get("body", b"")
            noted.seconds = time.perf_counter() - began
            position = noted.answer.find(self.cut_at) if self.cut_at and not self.was_cut else -1
            if position < 0:
                await send(message)
                return
            self.was_cut = True
            await send({**message, "body": message["body"][: max(0, position - sent)], "more_body": True})
            is_cut.set()
            await asyncio.sleep(0.05)

        await self.app(scope, read, write)
        if is_cut.is_set():
            raise OSError("the connection is cut here")  # the server closes it
