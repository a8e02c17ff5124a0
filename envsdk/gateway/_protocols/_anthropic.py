"""Anthropic Messages (https://docs.anthropic.com/en/api/messages), with `count_tokens`.

- A reply has a `thinking` block only if the request's `thinking` is given and not `disabled`, because programs that did
  not ask for it expect text first. The model's effort is not controlled by it: `budget_tokens` is ignored. The block's
  signature identifies the reply.
- `input` has to be an object. The text that a model sampled instead of one is sent as `{"INVALID_JSON": text}`, and
  read back as this text.
- `is_error` of a tool's result is ignored: the content is what the model sees.
- The tools `bash`, `text_editor` and `memory`, which the program runs, are functions with their documented arguments.
  Other tools with a type, MCP servers, and the blocks of their calls and results are left out: they run on the vendor's
  server. A `tool_reference` is text, and a tool with `defer_loading` is a tool from the beginning.
- A conversation that ends with an assistant message (prefill) is answered with what follows that message.
- A document is its title, its context and its text. PDF files are not read.
- A message thread (`thread`, which the package's tool runner uses) keeps its messages, system prompt and tools in the
  session, as `previous_response_id` of Responses does. A thread may be continued from any of its replies.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any, ClassVar, cast

from ..._visible import brief
from ...errors import RequestError
from ...images import Image
from ...messages import ImagePart, Message, ToolCall
from .._requests import INVALID_JSON, GivenTool, ModelReply, ModelRequest, ReceivedMessage
from ._fields import Fields, check_unique, content_of, not_of_kind, read_image, refused, tool_schema, valid
from ._memory import SessionMemory, StoredResponse
from ._tools import function, vendor_tool
from ._wire import (
    SIGNED,
    Kind,
    ReplyStream,
    WireFormat,
    compact,
    event_bytes,
    pieces,
    prefilled,
    read_format,
    signed,
    split_system,
)

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
_ERRORS = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_STRING, _INTEGER = {"type": "string"}, {"type": "integer"}
_EDITS: Mapping[str, Any] = {
    **dict.fromkeys(("path", "file_text", "old_str", "new_str", "insert_text"), _STRING),
    "insert_line": _INTEGER,
    "view_range": {"type": "array", "items": _INTEGER},
}
_EDITING = ["view", "create", "str_replace", "insert"]
_CLIENT_TOOLS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bash": ("Run a command in a bash session.", {"command": _STRING, "restart": {"type": "boolean"}}),
    "text_editor": ("View, create and edit files.", {"command": {**_STRING, "enum": _EDITING}, **_EDITS}),
    "memory": (
        "View, create, edit, delete and rename files of memory.",
        {
            "command": {**_STRING, "enum": [*_EDITING, "delete", "rename"]},
            **_EDITS,
            **dict.fromkeys(("old_path", "new_path"), _STRING),
        },
    ),
}
"""The tools that the program runs, by their type without its version: a description, and their properties."""
_TOO_LONG = "prompt is too long"  # agents recognize these words and compact
_MESSAGE = "msg_"
_THREAD_NOT_FOUND = "thread_not_found"  # at this code, the package sends the whole conversation again


@dataclass(frozen=True, slots=True)
class AnthropicRequest(ModelRequest):
    """A request, and the messages of its thread, with the system message; None if it has none."""

    thread: Sequence[ReceivedMessage] | None = None


class Anthropic(WireFormat):
    """Anthropic Messages."""

    name = "anthropic"
    unsupported: ClassVar[Mapping[str, str]] = {}
    of_server = ("mcp_servers", "context_management", "container")

    def read(self, body: Any, headers: Mapping[str, str], memory: SessionMemory | None = None) -> ModelRequest:
        """Read a request; see `WireFormat.read`."""
        request = self.read_count(body, headers, memory)
        if request.body.get("max_tokens") is None:
            raise refused("max_tokens", "it is required: give an integer")
        return prefilled(request, f"messages[{len(request.body['messages']) - 1}]")

    def read_count(self, body: Any, headers: Mapping[str, str], memory: SessionMemory | None = None) -> ModelRequest:
        """Return the request whose tokens are to be counted; `max_tokens` is not required."""
        memory = SessionMemory() if memory is None else memory
        fields = self._fields(body, "messages")
        config = fields.object("output_config")
        schema = read_format(fields.object("output_format"))  # its name before output_config
        if config is not None and config.get("format") is not None:
            schema = read_format(config.object("format"))
        if fields.get("compaction") is not None:
            raise refused("compaction", "the gateway does not summarize: ask for a summary in the prompt")
        _shown_thinking(fields)
        given = fields.items("messages")
        if not given:
            raise refused("messages", "it is required: give at least one message")
        values, read = memory.read(self.name, "messages", given, _received)
        named, previous = _continued(fields, memory)
        more = [
            vendor_tool(Fields(block, f"messages[{i}].content[{k}]"), block["type"])
            for i, value in enumerate(values)
            if isinstance(value["content"], list)
            for k, block in enumerate(value["content"])
            if _is_of_server(block)
        ]
        if previous is not None:
            more += [GivenTool(tool, name=tool["function"]["name"]) for tool in previous.tools]
        tools = self._read_tools(fields, memory, _tool, more)
        system_blocks = [] if fields.get("system") is None else _blocks_of(fields, "system")
        texts = [_text_of(block, "system") for block in system_blocks]
        opening = [ReceivedMessage(Message(role="system", content=text)) for text in texts]
        before: Sequence[ReceivedMessage] = () if previous is None else previous.messages
        conversation = [*before, *opening, *chain.from_iterable(read)]
        system, messages = split_system(conversation)
        shared = self._shared({**fields.value, "messages": values}, headers, _choice(fields), tools, schema)
        choice = fields.object("tool_choice")
        if choice is not None and choice.get("disable_parallel_tool_use"):
            shared["is_parallel"] = False
        return AnthropicRequest(
            messages=messages,
            system=system,
            max_tokens=fields.limit("max_tokens"),
            stop=fields.stops("stop_sequences"),
            sampling=self._sampling(fields, hottest=1),
            previous=None if named is None else named.removeprefix(_MESSAGE),
            thread=None if fields.object("thread") is None else conversation,
            **shared,
        )

    def counted(self, tokens: int) -> dict[str, Any]:
        """Return the body of a response with the number of tokens of a prompt."""
        return {"input_tokens": tokens}

    def write(self, request: ModelRequest, body: Any, replies: Sequence[ModelReply], created: int) -> dict[str, Any]:
        """Return the body of a response that is not streamed; see `WireFormat.write`."""
        [reply] = replies
        end, usage = _end(reply)
        return {**_begun(body, reply), "content": _written(body, reply), **end, "usage": usage}

    def stream(self, request: ModelRequest, body: Any, created: int) -> ReplyStream:
        """Return a writer of the events of a reply while it is sampled; see `WireFormat.stream`."""
        return _AnthropicStream(body, _shown_thinking(Fields(body)))

    def remember(
        self, request: ModelRequest, replies: Sequence[ModelReply], memory: SessionMemory, created: int
    ) -> None:
        """Keep the conversation of a thread."""
        if not isinstance(request, AnthropicRequest) or request.thread is None:
            return
        [reply] = replies
        value = {"role": "assistant", "content": _written(request.body, reply)}
        [read] = _received(value, 0)
        messages = [*request.thread, ReceivedMessage(read.message, value, reply.id)]
        memory.keep(_MESSAGE + reply.id, StoredResponse(messages, request.tools))

    def error(self, error: RequestError) -> dict[str, Any]:
        """Return the body of a response with an error."""
        type_ = _ERRORS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
        is_too_long = error.code == "context_length_exceeded" and _TOO_LONG not in str(error)
        text = f"{_TOO_LONG}: {error}" if is_too_long else str(error)
        details = {"details": {"error_code": error.code}} if error.code == _THREAD_NOT_FOUND else {}
        return {"type": "error", "error": {"type": type_, "message": text, **details}}

    def models(self, name: str, created: int) -> dict[str, Any]:
        """Return the body of the list of models."""
        since = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        model = {"id": name, "display_name": name, "type": "model", "created_at": since, "lifecycle": "active"}
        return {"data": [model], "has_more": False, "first_id": name, "last_id": name}


# Requests.


def _continued(fields: Fields, memory: SessionMemory) -> tuple[str | None, StoredResponse | None]:
    """Return the id of the reply from which a request continues its thread, and the conversation up to it."""
    thread = fields.object("thread")
    if thread is None:
        return None, None
    thread.required_text("type")
    if thread.one_of("type", ("create", "continue")) == "create":
        return None, None
    named = thread.required_text("previous_message_id")
    conversation = memory.response(named)
    if conversation is None:
        reason = "it belongs to another session, or was forgotten; create a thread with the whole conversation"
        field = thread.name("previous_message_id")
        raise RequestError(f"{field}: the message {brief(named)} is not known: {reason}", 404, _THREAD_NOT_FOUND, field)
    for key in ("system", "tools"):
        if fields.get(key):
            raise refused(key, "a thread keeps its original value: leave the field out, or create a thread")
    return named, conversation


def _shown_thinking(fields: Fields) -> str:
    """Return how a request wants to see thinking: `"shown"`, `"omitted"` (the signature only) or `"disabled"`."""
    thinking = fields.object("thinking")
    if thinking is None:
        return "disabled"
    if thinking.one_of("type", ("enabled", "adaptive", "between_tools", "disabled")) in (None, "disabled"):
        return "disabled"
    return "omitted" if thinking.text("display") == "omitted" else "shown"


def _choice(fields: Fields) -> str | dict[str, Any]:
    """Return the choice of a tool; see `ModelRequest.tool_choice`."""
    choice = fields.object("tool_choice")
    if choice is None:
        return "auto"
    choice.get("disable_parallel_tool_use", bool)
    kind = choice.one_of("type", (*_CHOICES, "tool"))
    if kind is None:
        raise refused(choice.name("type"), "it is required")
    return {"name": choice.required_text("name")} if kind == "tool" else _CHOICES[kind]


def _tool(value: Any, index: int) -> list[GivenTool]:
    """Return a tool, with its schema if the program runs it."""
    tool = Fields(value, f"tools[{index}]")
    type_ = tool.text("type")
    if type_ not in (None, "custom"):
        kind, _, version = type_.rpartition("_")
        if kind not in _CLIENT_TOOLS or not version.isdecimal():
            return [vendor_tool(tool, type_)]
        description, properties = _CLIENT_TOOLS[kind]
        name = tool.required_text("name")
        return [GivenTool(function(name, description, "command", **properties), name=name)]
    if tool.get("input_schema") is None:
        raise refused(tool.name("input_schema"), "it is required")
    return [GivenTool(tool_schema(tool, "input_schema"), name=tool.required_text("name"))]


def _is_of_server(block: Any) -> bool:
    """Return whether a block is a call of a tool of the vendor's server, or its result."""
    type_ = cast("dict[str, Any]", block).get("type") if isinstance(block, dict) else None
    is_result = isinstance(type_, str) and type_.endswith("_tool_result")
    return is_result or type_ in ("server_tool_use", "mcp_tool_use")


def _received(value: Any, index: int) -> Sequence[ReceivedMessage]:
    """Return the messages that a value of `messages` holds: a list of blocks may be one message or several."""
    fields = Fields(value, f"messages[{index}]")
    match role := fields.text("role"):
        case "user":
            return [ReceivedMessage(received, value) for received in _user(fields)]
        case "assistant":
            received, link = _assistant(fields)
            return [ReceivedMessage(received, value, link)]
        case "system":
            texts = [_text_of(block, "system messages") for block in _blocks_of(fields, "content")]
            return [ReceivedMessage(valid(Message, fields.path, role=role, content=content_of(texts)), value)]
        case _:
            raise refused(fields.name("role"), f"got {brief(role, 40)}; expected 'user', 'assistant' or 'system'")


def _user(fields: Fields) -> list[Message]:
    """Return the messages in a user message: one for each tool's result, and one for text and images between them."""
    blocks = _blocks_of(fields, "content")
    if not blocks:
        raise refused(fields.name("content"), "expected a string, or at least one block")
    check_unique([b.text("tool_use_id") for b in blocks if b.text("type") == "tool_result"], fields.name("content"))
    messages: list[Message] = []
    parts: list[str | ImagePart] = []
    for block in [*blocks, None]:
        if block is not None and block.text("type") != "tool_result":
            parts.append(_part_of(block, "user messages"))
            continue
        if parts:
            messages.append(valid(Message, fields.path, role="user", content=content_of(parts)))
            parts = []
        if block is not None:
            block.get("is_error", bool)
            call = block.required_text("tool_use_id")
            given = [] if block.get("content") is None else _blocks_of(block, "content")
            content = content_of([_part_of(part, "results of tools") for part in given])
            messages.append(valid(Message, block.path, role="tool", tool_call_id=call, content=content))
    return messages


def _assistant(fields: Fields) -> tuple[Message, str | None]:
    """Return an assistant message, and the id of the reply that its thinking identifies, if it is only one."""
    thinking: list[str] = []
    texts: list[str] = []
    calls: list[ToolCall] = []
    links: set[str | None] = set()
    for block in _blocks_of(fields, "content"):
        if _is_of_server(block.value):
            continue
        match block.text("type"):
            case "thinking":
                thinking.append(block.text("thinking") or "")
                links.add(signed(block.text("signature")))
            case "redacted_thinking":
                links.add(signed(block.text("data")))
            case "tool_use":
                given = block.object("input")
                if given is None:
                    raise refused(block.name("input"), "it is required: give an object")
                arguments: Any = given.value
                if arguments.keys() == {INVALID_JSON} and isinstance(arguments[INVALID_JSON], str):
                    arguments = arguments[INVALID_JSON]
                call_id, name = block.required_text("id"), block.required_text("name")
                calls.append(valid(ToolCall, block.path, id=call_id, name=name, arguments=arguments))
            case _:
                texts.append(_text_of(block, "assistant messages"))
    check_unique([call.id for call in calls], fields.name("content"))
    reasoning = "\n\n".join(filter(None, thinking)) or None
    content = content_of(texts)
    read = valid(Message, fields.path, role="assistant", content=content, reasoning=reasoning, tool_calls=calls)
    links.discard(None)
    return read, links.pop() if len(links) == 1 else None


def _blocks_of(fields: Fields, key: str) -> list[Fields]:
    """Return the blocks of a content, which may be a string."""
    given = fields.get(key)
    if isinstance(given, str):
        return [Fields({"type": "text", "text": given}, fields.name(key))]
    if not isinstance(given, list):
        raise not_of_kind(fields.name(key), "a string or a list of blocks", given)
    return [Fields(block, f"{fields.name(key)}[{i}]") for i, block in enumerate(fields.items(key))]


def _part_of(block: Fields, where: str) -> "str | ImagePart":
    """Return the text or the image of a block."""
    if block.text("type") != "image":
        return _text_of(block, where)
    source = block.object("source")
    if source is None:
        raise refused(block.name("source"), "it is required")
    if (kind := source.text("type")) != "base64":
        reason = f"got {brief(kind, 40)}; only 'base64' is supported: nothing is fetched, and no files are stored here"
        raise refused(source.name("type"), reason)
    source.text("media_type")
    return read_image(source, "data", Image.from_base64)


def _text_of(block: Fields, where: str) -> str:
    """Return the text of a block; for another type, the error names `where` it is."""
    if block.text("type") == "tool_reference":
        return f"The tool {block.required_text('tool_name')} is available."
    if block.text("type") == "search_result":
        texts = [one.required_text("text") for one in _blocks_of(block, "content")]
        return "\n".join(filter(None, [block.text("title"), block.text("source"), *texts]))
    if block.text("type") == "document":
        source = block.object("source")
        kind = None if source is None else source.text("type")
        if source is None or kind not in ("text", "content"):
            raise refused(block.name("source"), f"a source of type {brief(kind, 40)} is not supported: give the text")
        blocks = [] if kind == "text" else _blocks_of(source, "content")
        texts = [source.text("data"), *(one.required_text("text") for one in blocks)]
        return "\n".join(filter(None, [block.text("title"), block.text("context"), *texts]))
    if block.text("type") != "text":
        raise refused(block.path, f"a block of type {brief(block.text('type'), 40)} is not supported in {where}")
    if (text := block.text("text")) is None:
        raise refused(block.name("text"), "it is required")
    return text


# Responses.


def _written(body: Any, reply: ModelReply) -> list[dict[str, Any]]:
    """Return the content of a response."""
    blocks: list[dict[str, Any]] = []
    shown = _shown_thinking(Fields(body))
    if reply.message.reasoning and shown != "disabled":
        thinking = reply.message.reasoning if shown == "shown" else ""
        blocks.append({"type": "thinking", "thinking": thinking, "signature": SIGNED + reply.id})
    if reply.message.content:
        blocks.append({"type": "text", "text": reply.message.content})
    for call in reply.message.tool_calls:
        given = {INVALID_JSON: call.arguments} if isinstance(call.arguments, str) else call.arguments
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": given})
    return blocks


@dataclass(eq=False, repr=False)
class _AnthropicStream(ReplyStream):
    """The events of one reply: thinking and text as they arrive, then the calls.

    Args:
        body: The JSON body of the request.
        shown: How the request wants to see thinking; see `_shown_thinking`.
    """

    _body: Any
    _shown: str
    _blocks: int = 0

    def _start(self, begun: ModelReply) -> Iterator[bytes]:
        self._signature = SIGNED + begun.id
        yield self._event("message_start", message=_begun(self._body, begun))
        yield self._event("ping")

    def _switch(self, closed: Kind | None, opened: Kind | None, reply: ModelReply | None) -> Iterator[bytes]:
        is_shown = self._shown != "disabled"
        if closed == "reasoning" and is_shown:
            yield self._delta_event("signature_delta", signature=self._signature)
        if closed == "content" or (closed == "reasoning" and is_shown):
            yield self._event("content_block_stop", index=self._blocks - 1)
        if opened == "content":
            yield self._block({"type": "text", "text": ""})
        elif opened == "reasoning" and is_shown:
            yield self._block({"type": "thinking", "thinking": "", "signature": ""})

    def _delta(self, kind: Kind, text: str) -> Iterator[bytes]:
        if kind == "content":
            yield self._delta_event("text_delta", text=text)
        elif self._shown == "shown":
            yield self._delta_event("thinking_delta", thinking=text)

    def _finish(self, reply: ModelReply, is_last: bool) -> Iterator[bytes]:
        for block in _written(self._body, reply)[self._blocks :]:
            yield self._block({**block, "input": {}})
            for piece in pieces(compact(block["input"])):
                yield self._delta_event("input_json_delta", partial_json=piece)
            yield self._event("content_block_stop", index=self._blocks - 1)
        end, usage = _end(reply)
        yield self._event("message_delta", delta=end, usage=usage)
        yield self._event("message_stop")

    def _block(self, block: dict[str, Any]) -> bytes:
        """Return the event that begins a block."""
        self._blocks += 1
        return self._event("content_block_start", index=self._blocks - 1, content_block=block)

    def _delta_event(self, type: str, /, **part: str) -> bytes:
        """Return the event of a part of the last block."""
        return self._event("content_block_delta", index=self._blocks - 1, delta={"type": type, **part})

    def _event(self, type: str, /, **fields: Any) -> bytes:
        return event_bytes({"type": type, **fields}, type)


def _begun(body: Any, reply: ModelReply) -> dict[str, Any]:
    """Return a response before its first block."""
    return {
        "id": _MESSAGE + reply.id,
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**_end(reply)[1], "output_tokens": 0},
    }


def _end(reply: ModelReply) -> tuple[dict[str, Any], dict[str, int]]:
    """Return why a reply ended, and its usage."""
    reason = _REASONS[reply.finish_reason]
    sequence = reply.stop_sequence if reason == "end_turn" else None
    end = {"stop_reason": reason if sequence is None else "stop_sequence", "stop_sequence": sequence}
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": reply.cached_tokens}
    new = reply.prompt_tokens - reply.cached_tokens  # without those that were read from the cache
    return end, {"input_tokens": new, "output_tokens": len(reply.tokens), **cached}
