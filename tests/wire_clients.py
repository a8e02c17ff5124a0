"""The real client packages in front of a protocol, without a server between them."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from anthropic.types import Message as AnthropicMessage
from anthropic.types import RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from envsdk import Message
from envsdk.errors import RequestError
from envsdk.gateway._protocols import WIRE_FORMATS, SessionMemory, WireFormat
from envsdk.gateway._requests import ModelReply, ModelRequest
from envsdk.messages import ToolCall

CREATED = 1_700_000_000
TYPES: dict[str, tuple[TypeAdapter[Any], TypeAdapter[Any]]] = {
    "chat": (TypeAdapter(ChatCompletion), TypeAdapter(ChatCompletionChunk)),
    "responses": (TypeAdapter(Response), TypeAdapter(ResponseStreamEvent)),
    "anthropic": (TypeAdapter(AnthropicMessage), TypeAdapter(RawMessageStreamEvent)),
}
"""The packages' types of a response and of an event."""


def a_reply(
    content: str = "",
    *,
    id: str = "r1",
    reasoning: str | None = None,
    calls: Sequence[ToolCall] = (),
    finish: str | None = None,
    **more: Any,
) -> ModelReply:
    """A reply of four tokens."""
    message = Message(role="assistant", content=content, reasoning=reasoning, tool_calls=tuple(calls))
    finish = finish or ("tool_calls" if calls else "stop")
    return ModelReply(id, message, finish, prompt_tokens=7, tokens=[1, 2, 3, 4], **more)


def a_call(id: str, name: str = "add", arguments: "dict[str, Any] | str | None" = None) -> ToolCall:
    return ToolCall(id=id, name=name, arguments={"a": 1, "b": 2} if arguments is None else arguments)


REPLIES = {
    "text": a_reply("  Hello,\n wörld \u2028 \U0001f600 and more than one piece of text.\n"),
    "empty": a_reply(""),
    "reasoning": a_reply("Answer.", reasoning=" Thinking about it,\n for a while. "),
    "text and two calls": a_reply("Let me.", reasoning="r", calls=[a_call("call_1"), a_call("call_2", "sub", {})]),
    "broken arguments": a_reply(calls=[a_call("call_1", arguments='{"a": 1, "b":')]),
    "no arguments": a_reply(calls=[a_call("call_1", arguments="")]),
    "long integer": a_reply(calls=[a_call("call_1", arguments={"n": 10**40, "x": 2.5, "é": None})]),
    "cut": a_reply("Hello, wor", reasoning="r", finish="length"),
}
each_reply = pytest.mark.parametrize("reply", REPLIES.values(), ids=list(REPLIES))


def as_sent_back(reply: ModelReply) -> Message:
    """A reply's message, without what no protocol carries."""
    return reply.message.model_copy(update={"errors": (), "open_block": None})


class Wire:
    """Answers the requests of a client with given replies, and keeps what it read."""

    def __init__(self, protocol: str, memory: SessionMemory | None = None) -> None:
        self.format: WireFormat = WIRE_FORMATS[protocol]
        self.memory = SessionMemory() if memory is None else memory
        self.requests: list[ModelRequest] = []
        self.replies: list[list[ModelReply]] = []
        self.events: list[bytes] = []
        self.cut_after: int | None = None
        self.error: RequestError | None = None

    def answers(self, *replies: ModelReply) -> None:
        self.replies.append([*replies])

    @property
    def last(self) -> ModelRequest:
        return self.requests[-1]

    def handle(self, received: httpx2.Request) -> httpx2.Response:
        if received.method == "GET":
            return httpx2.Response(200, json=self.format.models("policy", CREATED))
        body = json.loads(received.content)
        try:
            return self._answer(received, body)
        except RequestError as error:
            return httpx2.Response(error.status, json=self.format.error(error))

    def _answer(self, received: httpx2.Request, body: Any) -> httpx2.Response:
        if received.url.path.endswith("count_tokens"):
            self.requests.append(self.format.read_count(body, received.headers, self.memory))
            return httpx2.Response(200, json={"input_tokens": 42})
        request = self.format.read(body, received.headers, self.memory)
        self.requests.append(request)
        if self.error is not None and self.cut_after is None:
            raise self.error
        replies = self.replies.pop(0)
        self.format.remember(request, replies, self.memory, CREATED)
        if body.get("stream") is not True:
            written = self.format.write(request, body, replies, CREATED)
            TYPES[self.format.name][0].validate_python(written)
            return httpx2.Response(200, json=written)
        self.events = list(self.format.events(request, body, replies, CREATED))
        for event in self.events:
            _, _, data = event.partition(b"data: ")
            if data.strip() != b"[DONE]" and not event.startswith(b"event: ping"):
                TYPES[self.format.name][1].validate_json(data)
        events = self.events
        if self.cut_after is not None and self.error is not None:
            events = [*events[: self.cut_after], self.format.error_event(self.error)]
        return httpx2.Response(200, stream=_Events(events), headers={"content-type": "text/event-stream"})


class _Events(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    def __init__(self, events: list[bytes]) -> None:
        self.given = events

    def __iter__(self) -> Iterator[bytes]:
        yield from self.given

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for event in self.given:
            await asyncio.sleep(0)
            yield event


SETTINGS: dict[str, Any] = {"api_key": "key", "base_url": "http://gateway.test/v1", "max_retries": 0}


def openai_client(wire: Wire) -> openai.OpenAI:
    return openai.OpenAI(**SETTINGS, http_client=httpx2.Client(transport=httpx2.MockTransport(wire.handle)))


def async_openai_client(wire: Wire) -> openai.AsyncOpenAI:
    transport = httpx2.MockTransport(wire.handle)
    return openai.AsyncOpenAI(**SETTINGS, http_client=httpx2.AsyncClient(transport=transport))


def anthropic_client(wire: Wire) -> anthropic.Anthropic:
    settings = {**SETTINGS, "base_url": "http://gateway.test"}
    return anthropic.Anthropic(**settings, http_client=httpx2.Client(transport=httpx2.MockTransport(wire.handle)))


def async_anthropic_client(wire: Wire) -> anthropic.AsyncAnthropic:
    settings = {**SETTINGS, "base_url": "http://gateway.test"}
    transport = httpx2.MockTransport(wire.handle)
    return anthropic.AsyncAnthropic(**settings, http_client=httpx2.AsyncClient(transport=transport))
