"""The interface of the protocols for a server, and what they share."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeAlias

from ..._visible import brief
from ...errors import RequestError
from ...messages import ToolCall
from ...rendering.reading import CallEnded, ContentText, ReasoningText
from .._requests import GivenTool, ModelReply, ModelRequest, ReceivedMessage, ReplyPiece
from ._fields import LARGEST, Fields, json_bytes, refused
from ._memory import SessionMemory

Kind: TypeAlias = Literal["reasoning", "content"]
SIGNED = "envsdk_"
"""Begins the opaque string that a client sends back with the reasoning of a reply; the id of the reply follows."""
_NO_GRAMMAR = "it is not supported: give the protocol's own field with a JSON schema, such as response_format"
_UNSUPPORTED = {
    **dict.fromkeys(
        ("logit_bias", "min_tokens", "ignore_eos", "stop_token_ids", "stop_regex", "bad_words", "allowed_token_ids"),
        "it is not supported: leave it out",
    ),
    **dict.fromkeys(
        ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "regex", "ebnf"),
        _NO_GRAMMAR,
    ),
}
"""Fields of OpenAI, vLLM and SGLang that change what is sampled, in addition to the parameters of `_sampling`."""
_NOT_ASKED = {"stream", "stream_options"}
_CREDENTIALS = {"authorization", "x-api-key", "x-goog-api-key", "cookie"}
_MAX_NAME = 256
_PIECES = 8
_MIN_PIECE = 8


class WireFormat(ABC):
    """A protocol: how a request, a reply and an error are written. It keeps no state and does no I/O.

    A parameter that a protocol has, but that cannot be enforced on a model here, is either refused with an error that
    names the field, or, where a reply is of use without it, accepted and not enforced: `tool_choice: none`, `strict`
    tools, `parallel_tool_calls: false` (Anthropic: `disable_parallel_tool_use`) of a choice that does not require a
    call, the effort and the length of reasoning, and `verbosity`.
    Fields that have no meaning here (caching, metadata, tiers, unknown ones) are ignored.

    Attributes:
        name: Its name.
        unsupported: The fields that must not have a value other than null, false, or an empty list or object, with the
            reason, and what to do instead.
        of_server: The fields that only the vendor's server can honor; they are left out.
    """

    name: ClassVar[str]
    unsupported: ClassVar[Mapping[str, str]]
    of_server: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def read(self, body: Any, headers: Mapping[str, str], memory: SessionMemory | None = None) -> ModelRequest:
        """Read a request.

        Args:
            body: The parsed JSON body.
            headers: The request's headers, with lower-case names or case-insensitive.
            memory: The memory of the session; without it, each message is read again, and no response can be named.

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
        stream = self.stream(request, body, created)
        for reply in replies:
            yield from stream.feed(reply)
            yield from stream.end(reply, is_last=reply is replies[-1])

    @abstractmethod
    def stream(self, request: ModelRequest, body: Any, created: int) -> "ReplyStream":
        """Return a writer of the events of a response while its replies are sampled; for the arguments, see `write`."""

    @abstractmethod
    def error(self, error: RequestError) -> dict[str, Any]:
        """Return the body of a response with an error."""

    def error_event(self, error: RequestError) -> bytes:
        """Return the event that ends a stream which has begun, with an error."""
        return event_bytes(self.error(error), "error")

    @abstractmethod
    def models(self, name: str, created: int) -> dict[str, Any]:
        """Return the body of the list of models.

        Args:
            name: The name of the only model.
            created: The time in seconds since 1970 from which it exists.
        """

    def remember(
        self, request: ModelRequest, replies: Sequence[ModelReply], memory: SessionMemory, created: int
    ) -> None:
        """Store the values that later requests may name. A server calls it, at time `created`, before it responds."""
        del request, replies, memory, created

    def _fields(self, body: Any, messages: str) -> Fields:
        """Return the fields of a request after the checks that each request needs.

        Args:
            body: The request.
            messages: The field of the messages. Its values and those of `tools` are checked when they are read.

        Raises:
            RequestError: If it is not an object, contains an unpaired surrogate, is nested too deeply, or asks for
                something that is not supported. The error names the field.
        """
        if not isinstance(body, dict):
            raise RequestError("the request has to be a JSON object")
        fields = Fields(body)
        for key, value in fields.value.items():
            if key not in ("tools", messages):
                json_bytes({key: value}, key)
        fields.required_text("model")
        fields.get("stream", bool)
        for key, reason in (_UNSUPPORTED | dict(self.unsupported)).items():
            if fields.get(key) not in (None, False, [], {}):
                raise refused(key, reason)
        return fields

    def _sampling(self, fields: Fields, hottest: float = 2) -> dict[str, Any]:
        """Return the sampling parameters that a request names: those of the protocols, and those that servers add.

        Args:
            fields: The request.
            hottest: The highest temperature of the protocol.

        Raises:
            RequestError: If one is out of its range, or log-probabilities of other tokens are requested.
        """
        if fields.integer("top_logprobs", 0, 20):
            reason = "only the log-probability of the sampled token is known: leave it out, or give 0"
            raise refused("top_logprobs", reason)
        found = {
            "temperature": fields.number("temperature", 0, hottest),
            "top_p": fields.number("top_p", 0, 1, above_low=True),
            "top_k": fields.integer("top_k", -1, LARGEST),
            "min_p": fields.number("min_p", 0, 1),
            "repetition_penalty": fields.number("repetition_penalty", 0, 10, above_low=True),
            "presence_penalty": fields.number("presence_penalty", -2, 2),
            "frequency_penalty": fields.number("frequency_penalty", -2, 2),
            "seed": fields.integer("seed", -(2**63), 2**63 - 1),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _read_tools(
        self,
        fields: Fields,
        memory: SessionMemory,
        read: Callable[[Any, int], Sequence[GivenTool]],
        more: Sequence[GivenTool] = (),
    ) -> list[GivenTool]:
        """Return the tools, whose names differ; `more` are not in the field of tools."""
        _, found = memory.read(self.name, "tools", fields.items("tools"), read)
        names: set[str] = set()
        for i, tools in enumerate([*found, more]):
            for name in (tool.schema["function"]["name"] for tool in tools if tool.schema is not None):
                if name in names:
                    raise refused(f"tools[{i}]", f"another tool has the name {brief(name)}, too")
                names.add(name)
        return [tool for tools in [*found, more] for tool in tools]

    def _shared(
        self,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        choice: str | Mapping[str, Any],
        given: Sequence[GivenTool],
        schema: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """Return the fields of a `ModelRequest` that do not depend on the protocol.

        Args:
            body: The request, with the values of its messages as they are kept.
            headers: Its headers.
            choice: The choice of a tool; see `ModelRequest.tool_choice`.
            given: The tools.
            schema: The JSON schema of the content, or None.
        """
        tools = [tool.schema for tool in given if tool.schema is not None]
        forms = {tool.schema["function"]["name"]: tool for tool in given if tool.schema is not None}
        if choice == "required" and not tools:
            raise refused("tool_choice", "a call is required, but the request has no tools")
        for name in () if isinstance(choice, str) else choice.get("names") or [choice["name"]]:
            if name not in forms:
                raise refused("tool_choice", f"{brief(name)} is not among the tools of the request")
        fields_left_out = [key for key in self.of_server if body.get(key) not in (None, False, [])]
        named = {key: (headers.get(f"x-envsdk-{key}") or "").strip() for key in ("context", "role")}
        for key, value in named.items():
            if len(value) > _MAX_NAME or not value.isprintable():
                raise refused(f"x-envsdk-{key}", f"expected at most {_MAX_NAME} printable characters")
        return {
            "tools": tools,
            "tool_choice": choice,
            "is_parallel": body.get("parallel_tool_calls") is not False,
            "schema": schema,
            "given_tools": {name: tool for name, tool in forms.items() if (tool.type, tool.name) != ("function", name)},
            "left_out": list(dict.fromkeys([*(tool.type for tool in given if tool.schema is None), *fields_left_out])),
            **{key: value or None for key, value in named.items()},
            "body": {key: value for key, value in body.items() if key not in _NOT_ASKED},
            "headers": {name.lower(): value for name, value in headers.items() if name.lower() not in _CREDENTIALS},
            "is_streamed": body.get("stream") is True,
        }


class ReplyStream(ABC):
    """Writes the events of a response, which are sent while its replies are sampled, or after them.

    A reply only grows: reasoning comes before content, and what was sent stays true.
    """

    _open: Kind | None
    _sent: dict[Kind, list[str]]

    def feed(self, piece: ReplyPiece) -> Iterator[bytes]:
        """Yield the events of the next piece of a reply; the first one is a reply without a message."""
        match piece:
            case ModelReply():
                self._open, self._sent = None, {"reasoning": [], "content": []}
                yield from self._start(piece)
            case ReasoningText(text):
                yield from self._text("reasoning", text)
            case ContentText(text):
                yield from self._text("content", text)
            case CallEnded(index, call):
                yield from self._call(index, call)

    def end(self, reply: ModelReply, *, is_last: bool = True) -> Iterator[bytes]:
        """Yield the events of the unsent rest of a reply, and of its end.

        Args:
            reply: The whole reply.
            is_last: Whether it is the last reply of the response.

        Raises:
            RuntimeError: If it does not begin with the text that was sent.
        """
        texts: dict[Kind, str] = {"reasoning": reply.message.reasoning or "", "content": reply.message.content}
        for kind, text in texts.items():
            sent = "".join(self._sent[kind])
            if not text.startswith(sent):
                raise RuntimeError(f"the {kind} of a reply does not begin with the {kind} that was sent")
            for piece in pieces(text[len(sent) :]):
                yield from self._text(kind, piece)
        yield from self._switch(self._open, None, reply)
        yield from self._finish(reply, is_last)

    def _text(self, kind: Kind, text: str) -> Iterator[bytes]:
        if self._open != kind:
            yield from self._switch(self._open, kind, None)
            self._open = kind
        self._sent[kind].append(text)
        yield from self._delta(kind, text)

    @abstractmethod
    def _start(self, begun: ModelReply) -> Iterator[bytes]:
        """Yield the events before a reply."""

    def _switch(self, closed: Kind | None, opened: Kind | None, reply: ModelReply | None) -> Iterator[bytes]:
        """Yield the events after the reasoning or the content and before the other; the reply is None if it goes on."""
        yield from ()

    @abstractmethod
    def _delta(self, kind: Kind, text: str) -> Iterator[bytes]:
        """Yield the events of a part of the reasoning or the content."""

    def _call(self, index: int, call: ToolCall) -> Iterator[bytes]:
        """Yield the events of a call, if the protocol takes them before the end of the reply."""
        yield from ()

    @abstractmethod
    def _finish(self, reply: ModelReply, is_last: bool) -> Iterator[bytes]:
        """Yield the events of everything but the reasoning and the content, and of the end."""


def read_format(form: Fields | None, *, is_nested: bool = False) -> Mapping[str, Any] | None:
    """Return the JSON schema of the content that a format asks for; None for any text.

    Args:
        form: The format, or None.
        is_nested: Whether the schema is in a field that has the name of the type.
    """
    if form is None:
        return None
    form.required_text("type")
    kind = form.one_of("type", ("text", "json_object", "json_schema"))
    if kind != "json_schema":
        return {"type": "object"} if kind == "json_object" else None
    described = Fields(form.get(kind), form.name(kind)) if is_nested else form
    schema = described.object("schema")
    if schema is None:
        raise refused(described.name("schema"), "it is required: give a JSON schema")
    return schema.value


def pieces(text: str) -> list[str]:
    """Return a string in up to eight pieces, the deltas of a stream."""
    size = max(_MIN_PIECE, -(-len(text) // _PIECES))
    return [text[i : i + size] for i in range(0, len(text), size)]


def split_system(
    received: Sequence[ReceivedMessage], first: str | None = None
) -> tuple[str | None, tuple[ReceivedMessage, ...]]:
    """Return the system message's content, and the messages after it.

    Args:
        received: The conversation. The system and developer messages at its start are joined by a blank line.
        first: Instructions that come before them, or None.
    """
    count = 0
    while count < len(received) and received[count].message.role in ("system", "developer"):
        count += 1
    texts = [*([first] if first else []), *(item.message.content for item in received[:count])]
    return "\n\n".join(texts) if texts else None, tuple(received[count:])


def prefilled(request: ModelRequest, path: str) -> ModelRequest:
    """Return a request whose last message, if it is one of the assistant, is the beginning of the reply.

    Args:
        request: The request.
        path: The place of the last message in the request.

    Raises:
        RequestError: If that message has calls.
    """
    last = request.messages[-1].message if request.messages else None
    if last is None or last.role != "assistant":
        return request
    if last.tool_calls:
        raise refused(path, "a conversation that ends with calls needs their results: add them")
    return replace(request, messages=request.messages[:-1], prefill=last.content)


def signed(text: str | None) -> str | None:
    """Return the id of the reply after `SIGNED`; None for a string that the gateway did not issue."""
    return text.removeprefix(SIGNED) or None if text is not None and text.startswith(SIGNED) else None


def compact(arguments: str | Mapping[str, Any]) -> str:
    """Return the arguments of a call as compact JSON, or the string that the model sampled instead of an object."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def event_bytes(data: Any, event: str | None = None) -> bytes:
    """Return a server-sent event. Its JSON is ASCII, because some clients split lines at other characters, too."""
    name = f"event: {event}\n" if event else ""
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return f"{name}data: {text}\n\n".encode()


def token_logprobs(reply: ModelReply) -> list[dict[str, Any]] | None:
    """Return the log-probabilities of the sampled tokens in OpenAI's form; None if they are not known."""
    if reply.logprobs is None or len(reply.texts) != len(reply.logprobs):
        return None
    return [  # clients cannot read minus infinity
        {"token": text, "logprob": max(float(logprob), -9999.0), "bytes": list(text.encode()), "top_logprobs": []}
        for text, logprob in zip(reply.texts, reply.logprobs, strict=True)
    ]
