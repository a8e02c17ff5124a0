"""What the protocols have in common: the interface that a server needs, and how deltas are streamed."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

from ...errors import RequestError
from ...messages import ToolCall, ToolSchema
from .._requests import ModelReply, ModelRequest, ReceivedMessage
from ._fields import Fields, check_body, check_choice, check_names, header
from ._live import ReplyStream
from ._memory import SessionMemory

LARGEST = 2**31 - 1  # of a number of tokens
_SIGNED = "envsdk_"
_NOT_ASKED = {"stream", "stream_options"}


class WireFormat(ABC):
    """A protocol: how a request, a reply and an error are written. It keeps no state and does no I/O.

    What a protocol lets a client ask for, but no model can be made to do here, is either refused with an error that
    names the field, or, where a reply is of use without it, accepted and not enforced: `parallel_tool_calls: false`
    (Anthropic: `disable_parallel_tool_use`), `strict` tools, the effort and the length of reasoning, and `verbosity`.
    Fields that have no meaning here (caching, metadata, tiers, unknown ones) are ignored.
    """

    name: ClassVar[str]

    @abstractmethod
    def read(self, body: Any, headers: Mapping[str, str], memory: SessionMemory | None = None) -> ModelRequest:
        """Return what a request asks for.

        Args:
            body: The parsed JSON body.
            headers: The request's headers, with lower-case names or case-insensitive.
            memory: What the session remembers; without it, each message is read again, and no response can be named.

        Raises:
            RequestError: If the request is invalid, or asks for something that is not supported.
        """

    @abstractmethod
    def write(self, request: ModelRequest, body: Any, replies: Sequence[ModelReply], created: int) -> dict[str, Any]:
        """Return the body of a response that is not streamed.

        Args:
            request: The request.
            body: The JSON body that the request was read from.
            replies: The replies: `request.n` of them.
            created: The time in seconds since 1970.
        """

    def events(self, request: ModelRequest, body: Any, replies: Sequence[ModelReply], created: int) -> Iterator[bytes]:
        """Yield the server-sent events of a streamed response; for the arguments, see `write`."""
        for reply in replies:
            stream = self.stream(request, body, created)
            yield from stream.feed(reply)
            yield from stream.end(reply)
        yield from self.last_events(request, body, replies, created)

    @abstractmethod
    def stream(self, request: ModelRequest, body: Any, created: int) -> ReplyStream:
        """Return what writes the events of the one reply to a request while it is sampled; see `write`."""

    def last_events(
        self, request: ModelRequest, body: Any, replies: Sequence[ModelReply], created: int
    ) -> Iterator[bytes]:
        """Yield the events after those of all replies; see `write`."""
        del request, body, replies, created
        yield from ()

    @abstractmethod
    def error(self, error: RequestError) -> dict[str, Any]:
        """Return the body of a response with an error."""

    @abstractmethod
    def error_event(self, error: RequestError) -> bytes:
        """Return the event that ends a stream which has begun, with an error."""

    @abstractmethod
    def models(self, names: Sequence[str], created: int) -> dict[str, Any]:
        """Return the body of the list of models.

        Args:
            names: The names of the models.
            created: The time in seconds since 1970 since when there are these models.
        """

    def read_count(self, body: Any, headers: Mapping[str, str], memory: SessionMemory | None = None) -> ModelRequest:
        """Return the request whose tokens are to be counted; see `read`, which may require more fields."""
        return self.read(body, headers, memory)

    def count(self, tokens: int) -> dict[str, Any]:
        """Return the body of a response to a request that tokens are counted."""
        return {"input_tokens": tokens}

    def remember(
        self, request: ModelRequest, replies: Sequence[ModelReply], memory: SessionMemory, created: int
    ) -> None:
        """Keep what later requests may name. A server calls it before it sends the response, created at that time."""
        del request, replies, memory, created

    def is_streamed(self, body: Any) -> bool:
        """Return whether a request that was read asks for a streamed response."""
        return body.get("stream") is True

    def _fields(self, body: Any, *, lists: Sequence[str]) -> Fields:
        """Return the fields of a request after the checks that each request needs.

        Args:
            body: The request.
            lists: The fields that are lists, whose values are checked when they are read.
        """
        fields = Fields(check_body(body, {"tools", *lists}))
        fields.required_text("model")
        fields.boolean("stream")
        return fields

    def _read_tools(self, fields: Fields, memory: SessionMemory) -> list[ToolSchema]:
        """Return the tools, whose names differ."""
        _, tools = memory.read(self.name, "tools", fields.items("tools"), self._tool)
        check_names(tools, "tools")
        return tools

    @abstractmethod
    def _tool(self, value: Any, index: int) -> ToolSchema:
        """Return a tool in the OpenAI form."""

    def _request(
        self,
        fields: Fields,
        headers: Mapping[str, str],
        *,
        tool_choice: str | Mapping[str, str],
        tools: Sequence[ToolSchema],
        **asked: Any,
    ) -> dict[str, Any]:
        """Return the fields of a `ModelRequest`: those given, and those that do not depend on the protocol."""
        check_choice(tool_choice, tools)
        return {
            **asked,
            "tools": tools,
            "tool_choice": tool_choice,
            "context": header(headers, "x-envsdk-context"),
            "role": header(headers, "x-envsdk-role"),
            "body": {key: value for key, value in fields.value.items() if key not in _NOT_ASKED},
        }


def split_system(received: Sequence[ReceivedMessage]) -> tuple[list[str], tuple[ReceivedMessage, ...]]:
    """Return the texts of the system and developer messages at the start, and the messages after them."""
    count = 0
    while count < len(received) and received[count].message.role in ("system", "developer"):
        count += 1
    return [item.message.content for item in received[:count]], tuple(islice(received, count, None))


def joined(texts: Sequence[str]) -> str | None:
    """Return texts of system messages, joined by a blank line; None without any."""
    return "\n\n".join(texts) if texts else None


def signature(reply: ModelReply) -> str:
    """Return the opaque text that a client sends back with the reasoning of a reply, and that identifies the reply."""
    return _SIGNED + reply.id


def signed(text: str | None) -> str | None:
    """Return the id of the reply that a `signature` identifies; None for a text that the gateway did not issue."""
    return text.removeprefix(_SIGNED) or None if text is not None and text.startswith(_SIGNED) else None


def arguments_text(call: ToolCall) -> str:
    """Return the arguments of a call as compact JSON, or the text that the model sampled instead of an object."""
    return call.arguments if isinstance(call.arguments, str) else compact(call.arguments)


def compact(value: Any) -> str:
    """Return compact JSON. Integers may have any length."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def event_bytes(data: Any, event: str | None = None) -> bytes:
    """Return a server-sent event. Its JSON is ASCII, because some clients split lines at other characters, too."""
    name = f"event: {event}\n" if event else ""
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return f"{name}data: {text}\n\n".encode()
