"""The bodies of requests: limited in size and time while they are read, and parsed as JSON."""

import asyncio
import re
from typing import Any

import orjson
from starlette.requests import Request

from ._exchange import Refusal

_JSON = "application/json"
_MAX_VALUES = 300_000
"""How many values a body may have: each takes up to a thousand times the memory of its three bytes."""
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


async def read_json(request: Request, max_bytes: int, timeout_s: float) -> tuple[Any, int]:
    """Return the body of a request, parsed as JSON, and its size in bytes.

    Args:
        request: The request.
        max_bytes: The largest body, in bytes.
        timeout_s: How long the client may take to send it, in seconds.

    Raises:
        RequestError: If the content type is not JSON, or the body is too large, too slow or not JSON.
    """
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != _JSON:
        raise Refusal(415, "unsupported_media_type", f"the content type has to be {_JSON}")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(415, "unsupported_media_type", "the body has a content encoding; send it without one")
    body = await read_body(request, max_bytes, timeout_s)
    if _values(body) > _MAX_VALUES and await asyncio.to_thread(lambda: _values(_STRING.sub(b"", body))) > _MAX_VALUES:
        raise Refusal(413, "request_too_large", f"the body has more than {_MAX_VALUES:,} values")
    try:
        return orjson.loads(body), len(body)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, "invalid_json", f"the body is not JSON: {error}") from None


def _values(body: bytes) -> int:
    """Return at least how many values a JSON text has; text in strings may count, too."""
    return sum(map(body.count, (b",", b"[", b"{")))


async def read_body(request: Request, max_bytes: int, timeout_s: float) -> bytes:
    """Return the body of a request. See `read_json`."""
    too_large = Refusal(413, "request_too_large", f"the body is larger than {max_bytes} bytes")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise too_large
                chunks.append(chunk)
    except TimeoutError:
        raise Refusal(408, "request_timeout", f"the body did not arrive within {timeout_s:g} s") from None
    return b"".join(chunks)
