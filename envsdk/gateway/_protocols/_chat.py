"""OpenAI Chat Completions (https://platform.openai.com/docs/api-reference/chat).

- Reasoning is in `reasoning_content`, the field that most clients read; in requests, `reasoning` is read, too.
- Old clients send `functions`, `function_call` and messages of the role `function`: tools, a choice or a call, and
  results. A reply to a request with `functions` has its first call as `function_call`, the only one of this form.
- Calls and results without an id get one: a result answers the first open call of its name.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from ..._visible import brief
from ...errors import RequestError
from ...messages import Message, ToolCall, read_arguments
from .._requests import ModelReply, ModelRequest, ReceivedMessage
from ._fields import CallIds, Fields, check_unique, not_of_kind, refused, valid
from ._memory import SessionMemory
from ._openai_format import OpenAIFormat
from ._tools import custom_call, custom_input
from ._wire import Kind, ReplyStream, compact, event_bytes, pieces, prefilled, read_format, split_system, token_logprobs

_MAX_REPLIES = 128
_PARTS = {"text": "text", "refusal": "refusal"}


class Chat(OpenAIFormat):
    """OpenAI Chat Completions."""

    name = "chat"
    is_nested = True
    unsupported: ClassVar[Mapping[str, str]] = {
        "audio": "only text is supported",
    }
    of_server = ("web_search_options",)

    def read(self, body: Any, headers: Mapping[str, str], memory: SessionMemory | None = None) -> ModelRequest:
        """Read a request; see `WireFormat.read`."""
        memory = SessionMemory() if memory is None else memory
        fields = _modernized(self._fields(body, "messages"))
        schema = read_format(fields.object("response_format"), is_nested=True)
        if any(kind != "text" for kind in fields.items("modalities")):
            raise refused("modalities", "only text is supported")
        options = fields.object("stream_options")
        if options is not None:
            options.get("include_usage", bool)
        given = fields.items("messages")
        if not given:
            raise refused("messages", "it is required: give at least one message")
        values, received = memory.read(self.name, "messages", given, _received)
        system, messages = split_system(received)
        limits = [fields.limit(key) for key in ("max_completion_tokens", "max_tokens")]
        limits = [limit for limit in limits if limit is not None]
        if len(set(limits)) > 1:
            raise refused("max_tokens", "it differs from max_completion_tokens: give only one of them")
        tools = self._read_tools(fields, memory, self._tool)
        request = ModelRequest(
            messages=messages,
            system=system,
            max_tokens=limits[0] if limits else None,
            stop=fields.stops("stop"),
            sampling=self._sampling(fields),
            n=fields.integer("n", 1, _MAX_REPLIES) or 1,
            logprobs=fields.get("logprobs", bool) or False,
            **self._shared({**fields.value, "messages": values}, headers, self._choice(fields), tools, schema),
        )
        continues = fields.get("continue_final_message", bool)  # of vLLM and SGLang
        return prefilled(request, f"messages[{len(values) - 1}]") if continues else request

    def write(self, request: ModelRequest, body: Any, replies: Sequence[ModelReply], created: int) -> dict[str, Any]:
        """Return the body of a response that is not streamed; see `WireFormat.write`."""
        choices: list[dict[str, Any]] = []
        for index, reply in enumerate(replies):
            message, calls = reply.message, reply.message.tool_calls
            written: dict[str, Any] = {"role": "assistant", "content": message.content or (None if calls else "")}
            written["refusal"] = None
            if message.reasoning is not None:
                written["reasoning_content"] = message.reasoning
            if calls and body.get("functions"):
                written["function_call"] = _written(request, calls[0])["function"]
            elif calls:
                written["tool_calls"] = [_written(request, call) for call in calls]
            choices.append({"index": index, "message": written, **_end(request, body, reply)})
        return {
            "id": f"chatcmpl-{replies[0].id}",
            "object": "chat.completion",
            "created": created,
            "model": body["model"],
            "choices": choices,
            "usage": _usage(replies),
        }

    def stream(self, request: ModelRequest, body: Any, created: int) -> ReplyStream:
        """Return a writer of the events of a response while its replies are sampled; see `WireFormat.stream`."""
        return _ChatStream(request, body, created)

    def error_event(self, error: RequestError) -> bytes:
        """Return the event that ends a stream which has begun, with an error."""
        return event_bytes(self.error(error))


def _modernized(fields: Fields) -> Fields:
    """Return a request with tools in place of functions, and with ids of all calls and results."""
    body = dict(fields.value)
    if functions := fields.items("functions"):
        body["tools"] = [*fields.items("tools"), *({"type": "function", "function": each} for each in functions)]
        choice: Any = fields.get("function_call")
        if isinstance(choice, dict):
            choice = {"type": "function", "function": cast("dict[str, Any]", choice)}
        body["tool_choice"] = fields.get("tool_choice") if choice is None else choice
    ids = CallIds()
    messages = body["messages"] = list(fields.items("messages"))
    for i, value in enumerate(messages):
        message = dict(Fields(value, f"messages[{i}]").value)
        role = message.get("role")
        if role == "assistant":
            if message.get("function_call") is not None and not message.get("tool_calls"):
                message["tool_calls"] = [{"type": "function", "function": message.pop("function_call")}]
            calls = Fields(message, f"messages[{i}]").items("tool_calls")
            if any(isinstance(call, dict) for call in calls):
                message["tool_calls"] = [_identified(call, ids) for call in calls]
        elif role in ("function", "tool"):
            message["role"], name = "tool", message.get("name")
            message["tool_call_id"] = ids.of_result(name, message.get("tool_call_id"))
        else:
            continue
        if message != value:
            messages[i] = message
    return Fields(body)


def _identified(call: Any, ids: CallIds) -> Any:
    """Return a call with an id."""
    if not isinstance(call, dict):
        return call
    given = cast("dict[str, Any]", call)
    function: Any = given.get("function") or given.get("custom")
    name = cast("dict[str, Any]", function).get("name") if isinstance(function, dict) else None
    return {**given, "id": ids.of_call(name, given.get("id"))}


def _received(value: Any, index: int) -> ReceivedMessage:
    """Read a value of `messages` as a message."""
    fields = Fields(value, f"messages[{index}]")
    role, read = fields.text("role"), {"name": fields.text("name")}
    if role not in ("system", "developer", "user", "assistant", "tool"):
        roles = "'system', 'developer', 'user', 'assistant' or 'tool'"
        raise refused(fields.name("role"), f"got {brief(role, 40)}; expected {roles}")
    calls: list[ToolCall] = []
    if role == "tool":
        read["tool_call_id"] = fields.required_text("tool_call_id")
    elif role == "assistant":
        calls = [
            _call(Fields(call, f"{fields.name('tool_calls')}[{i}]"))
            for i, call in enumerate(fields.items("tool_calls"))
        ]
        check_unique([call.id for call in calls], fields.name("tool_calls"))
        reasoning = fields.text("reasoning_content")
        read["reasoning"] = fields.text("reasoning") if reasoning is None else reasoning
    image = "image_url" if role in ("user", "tool") else None
    is_missing = fields.get("content") is None and role in ("assistant", "tool")
    content = "" if is_missing else fields.content("content", _PARTS, image)
    if role == "assistant" and content == "":
        content = fields.text("refusal") or ""
    return ReceivedMessage(valid(Message, fields.path, role=role, content=content, tool_calls=calls, **read), value)


def _written(request: ModelRequest, call: ToolCall) -> dict[str, Any]:
    """Return a call in the form of the tool."""
    tool = request.given_tools.get(call.name)
    if tool is not None and tool.type == "custom":
        return {"id": call.id, "type": "custom", "custom": {"name": tool.name, "input": custom_input(call)}}
    function = {"name": call.name, "arguments": compact(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _call(call: Fields) -> ToolCall:
    if call.one_of("type", ("function", "custom")) == "custom":
        return custom_call(Fields(call.get("custom"), call.name("custom")), call.required_text("id"))
    function = Fields(call.get("function"), call.name("function"))
    arguments = function.get("arguments")
    if not isinstance(arguments, (str, dict)):
        raise not_of_kind(function.name("arguments"), "a string", arguments)
    name, call_id = function.required_text("name"), call.required_text("id")
    return valid(ToolCall, call.path, id=call_id, name=name, arguments=read_arguments(arguments))


@dataclass(eq=False, repr=False)
class _ChatStream(ReplyStream):
    """The chunks of each reply: the role, reasoning, content and calls, in any order, then its end.

    Args: See `WireFormat.stream`.
    """

    _request: ModelRequest
    _body: Any
    _created: int
    _id: str = ""
    _index: int = -1
    _calls: int = 0
    _replies: list[ModelReply] = field(default_factory=list[ModelReply])

    def _start(self, begun: ModelReply) -> Iterator[bytes]:
        self._id, self._index, self._calls = self._id or begun.id, self._index + 1, 0
        yield self._chunk({"role": "assistant", "content": ""})

    def _delta(self, kind: Kind, text: str) -> Iterator[bytes]:
        yield self._chunk({"reasoning_content" if kind == "reasoning" else "content": text})

    def _call(self, index: int, call: ToolCall) -> Iterator[bytes]:
        self._calls += 1
        whole = _written(self._request, call)
        if self._body.get("functions"):
            if not index:
                yield self._chunk({"function_call": whole["function"]})
            return
        type_, key = whole["type"], "input" if whole["type"] == "custom" else "arguments"
        yield self._chunk({"tool_calls": [{"index": index, **whole, type_: {**whole[type_], key: ""}}]})
        for piece in pieces(whole[type_][key]):
            yield self._chunk({"tool_calls": [{"index": index, type_: {key: piece}}]})

    def _finish(self, reply: ModelReply, is_last: bool) -> Iterator[bytes]:
        for index, call in enumerate(reply.message.tool_calls[self._calls :], start=self._calls):
            yield from self._call(index, call)
        yield self._chunk({}, **_end(self._request, self._body, reply))
        self._replies.append(reply)
        if is_last:
            options = Fields(self._body).object("stream_options")
            if options is not None and options.get("include_usage"):
                yield self._chunk(None, usage=_usage(self._replies))
            yield event_bytes("[DONE]")

    def _chunk(self, delta: dict[str, Any] | None, usage: Any = None, **end: Any) -> bytes:
        """Return a chunk with a part of the reply, or with the usage of all replies."""
        chunk = {"id": f"chatcmpl-{self._id}", "object": "chat.completion.chunk", "created": self._created}
        if delta is None:
            return event_bytes({**chunk, "model": self._body["model"], "choices": [], "usage": usage})
        choice = {"index": self._index, "delta": delta, "finish_reason": None, **end}
        return event_bytes({**chunk, "model": self._body["model"], "choices": [choice]})


def _end(request: ModelRequest, body: Any, reply: ModelReply) -> dict[str, Any]:
    """Return the fields of a choice that describe a whole reply."""
    content = token_logprobs(reply) if request.logprobs else None
    logprobs = None if content is None else {"content": content, "refusal": None}
    is_old = reply.finish_reason == "tool_calls" and body.get("functions")
    return {"finish_reason": "function_call" if is_old else reply.finish_reason, "logprobs": logprobs}


def _usage(replies: Sequence[ModelReply]) -> dict[str, Any]:
    """Return the numbers of tokens. As with n > 1 everywhere, the prompt counts once."""
    prompt, sampled = replies[0].prompt_tokens, sum(len(reply.tokens) for reply in replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": replies[0].cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": sum(reply.reasoning_tokens for reply in replies)},
    }
