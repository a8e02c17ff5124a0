"""OpenAI Responses (https://platform.openai.com/docs/api-reference/responses).

- Reasoning is the `content` of a reasoning item, as of open models. Its `summary` has the same text if the request asks
  for a summary (`reasoning.summary`), because some clients read only that.
- The ids of the items contain the id of their reply, and so does `encrypted_content`: this is how a reply is recognized
  that comes back as `input`.
- A response is kept for `previous_response_id` and item references unless `store` is false.
- A reply is one message. So the items of a conversation that follow each other as a reply's do (reasoning, a message,
  calls) are read as one message, unless their ids are of different replies.
- `instructions`, as everywhere, hold for one request only.
- For tools that are not functions, see `_tools`. The tools of `additional_tools` are tools of the request; those that a
  tool search found are in its result, and may be called. A message between agents is a message of the user.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, cast

from ..._visible import brief
from ...errors import RequestError
from ...messages import ImagePart, Message, ToolCall
from .._requests import GivenTool, ModelReply, ModelRequest, ReceivedMessage
from ._fields import Fields, check_unique, content_of, json_bytes, refused, valid
from ._memory import SessionMemory, StoredResponse
from ._openai_format import OpenAIFormat
from ._tools import CALLS, PREFIXES, read_call, read_output, read_tool, write_call
from ._wire import (
    SIGNED,
    Kind,
    ReplyStream,
    event_bytes,
    pieces,
    read_format,
    signed,
    split_system,
    token_logprobs,
)

_ENCRYPTED = "reasoning.encrypted_content"
_Part: TypeAlias = Literal["summary", "reasoning", "content"]
_PART_EVENTS: dict[_Part, tuple[str, str]] = {  # a part is added and done; its text grows and is done
    "summary": ("reasoning_summary_part", "reasoning_summary_text"),
    "reasoning": ("content_part", "reasoning_text"),
    "content": ("content_part", "output_text"),
}
_CALL_EVENTS = {
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
}
_LOGPROBS = "message.output_text.logprobs"
_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_RANKS = {"reasoning": 0, "message": 1, **dict.fromkeys(CALLS, 2)}
_OUTPUTS = {f"{call}_output" for call in CALLS} | {"tool_search_output"}
_LEFT_OUT = frozenset(
    (
        *("code_interpreter_call", "compaction", "compaction_summary", "computer_call", "computer_call_output"),
        *("configuration_update", "context_compaction", "file_search_call", "ghost_snapshot", "image_generation_call"),
        *("mcp_approval_request", "mcp_approval_response", "mcp_call", "mcp_list_tools", "program", "program_output"),
        "web_search_call",
    )
)
"""The items that a vendor's server made, ran or can read, and that are left out."""


@dataclass(frozen=True, slots=True)
class ResponsesRequest(ModelRequest):
    """A request, and the conversation that is stored for it, with the system messages of `input`."""

    conversation: Sequence[ReceivedMessage] = ()


class Responses(OpenAIFormat):
    """OpenAI Responses."""

    name = "responses"
    is_nested = False
    of_server = ("context_management",)
    unsupported: ClassVar[Mapping[str, str]] = {
        "background": "background responses are not supported: leave it out, and wait for the response",
        "conversation": "named conversations are not supported: use previous_response_id",
        "prompt": "stored prompts are not supported: give `instructions` and `input`",
    }

    def read(self, body: Any, headers: Mapping[str, str], memory: SessionMemory | None = None) -> ModelRequest:
        """Read a request; see `WireFormat.read`."""
        memory = SessionMemory() if memory is None else memory
        fields = self._fields(body, "input")
        text = fields.object("text")
        schema = None if text is None else read_format(text.object("format"))
        fields.one_of("truncation", ("auto", "disabled"))
        fields.get("store", bool)
        reasoning = fields.object("reasoning")
        if reasoning is not None:
            reasoning.one_of("summary", ("auto", "concise", "detailed"))
        named = fields.text("previous_response_id")
        previous = StoredResponse(()) if named is None else memory.response(named)
        if previous is None:
            reason = (
                f"the response {brief(named)} is not known: it was not stored, belongs to another session, or was "
                "forgotten; give the whole conversation as `input`"
            )
            field = "previous_response_id"
            raise RequestError(f"{field}: {reason}", code="previous_response_not_found", field=field)
        given, received, tools, searched = self._input(fields, memory)
        conversation = [*previous.messages, *received]
        system, messages = split_system(conversation, fields.text("instructions"))
        shared = self._shared(
            {**fields.value, "input": given},
            headers,
            self._choice(fields),
            self._read_tools(fields, memory, self._tool, tools),
            schema,
        )
        shared["given_tools"] |= {tool.schema["function"]["name"]: tool for tool in searched if tool.schema is not None}
        return ResponsesRequest(
            messages=messages,
            system=system,
            max_tokens=fields.limit("max_output_tokens"),
            stop=fields.stops("stop"),
            sampling=self._sampling(fields),
            logprobs=_LOGPROBS in fields.items("include"),
            previous=None if named is None else named.removeprefix("resp_"),
            conversation=conversation,
            **shared,
        )

    def write(self, request: ModelRequest, body: Any, replies: Sequence[ModelReply], created: int) -> dict[str, Any]:
        """Return the body of a response that is not streamed; see `WireFormat.write`."""
        [reply] = replies
        is_cut, fields = reply.finish_reason == "length", Fields(body)
        sampled = len(reply.tokens)
        return {
            "id": f"resp_{reply.id}",
            "object": "response",
            "created_at": created,
            "status": "incomplete" if is_cut else "completed",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": fields.text("instructions"),
            "max_output_tokens": request.max_tokens,
            "model": body["model"],
            "output": _output(body, request, reply),
            "parallel_tool_calls": fields.get("parallel_tool_calls", bool) is not False,
            "previous_response_id": fields.text("previous_response_id"),
            "store": fields.get("store", bool) is not False,
            "temperature": request.sampling.get("temperature"),
            "text": {"format": {"type": "text"}},
            "tool_choice": fields.get("tool_choice") or "auto",
            "tools": [
                {"parameters": None, "strict": False, **tool} if tool["type"] == "function" else tool
                for tool in fields.items("tools")
            ],
            "top_p": request.sampling.get("top_p"),
            "truncation": fields.text("truncation") or "disabled",
            "metadata": {},
            "usage": {
                "input_tokens": reply.prompt_tokens,
                "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
                "output_tokens": sampled,
                "output_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
                "total_tokens": reply.prompt_tokens + sampled,
            },
        }

    def stream(self, request: ModelRequest, body: Any, created: int) -> ReplyStream:
        """Return a writer of the events of a reply while it is sampled; see `WireFormat.stream`."""
        return _ResponseStream(self, request, body, created)

    def error_event(self, error: RequestError) -> bytes:
        """Return the event that ends a stream which has begun, with an error."""
        found = self.error(error)["error"]
        flat = {"code": found["code"] or found["type"], "message": found["message"], "param": found["param"]}
        return event_bytes({"type": "error", "sequence_number": 0, **flat, "error": found}, "error")

    def remember(
        self, request: ModelRequest, replies: Sequence[ModelReply], memory: SessionMemory, created: int
    ) -> None:
        """Keep a response for `previous_response_id` and `GET /responses/{id}`, unless `store` is false."""
        if not isinstance(request, ResponsesRequest) or request.body.get("store") is False:
            return
        response = self.write(request, request.body, replies, created)
        messages = [*request.conversation, _reply_of(response["output"], "output")]
        memory.keep(response["id"], StoredResponse(messages, body=response))

    def _input(
        self, fields: Fields, memory: SessionMemory
    ) -> tuple[Any, list[ReceivedMessage], list[GivenTool], list[GivenTool]]:
        """Return the input, its messages, the tools among its items, and the tools that a search of tools found.

        A left out item is among the tools as one without a schema.
        """
        given = fields.get("input")
        if isinstance(given, str):
            json_bytes(given, "input")
            return given, [ReceivedMessage(valid(Message, "input", role="user", content=given), given)], [], []
        if not fields.items("input"):
            raise refused("input", "it is required: give a string, or at least one item")
        values, places = memory.read(self.name, "input", fields.items("input"), _place_of)
        items: list[tuple[int, Any, ItemPlace]] = []
        holders: list[tuple[int, Any, ItemPlace]] = []
        left_out: list[GivenTool] = []
        for index, (value, place) in enumerate(zip(values, places, strict=True)):
            item = value
            if place.type == "item_reference":
                reference = Fields(value, f"input[{index}]")
                named = reference.required_text("id")
                item = memory.item(named)
                if item is None:
                    reason = "it was not stored, or was forgotten; give the item itself"
                    raise refused(reference.name("id"), f"no item {brief(named)} is known: {reason}")
                place = _place_of(item, index)
            if place.type in _LEFT_OUT:
                left_out.append(GivenTool(None, place.type))
                continue
            if place.type in ("additional_tools", "tool_search_output"):
                holders.append((index, item, place))
            if place.type != "additional_tools":
                items.append((index, item, place))
        starts, groups = _grouped(items)
        _, received = memory.read(self.name, "replies", groups, lambda value, index: _received(value, starts[index]))

        def tools_of(value: Any, index: int) -> list[GivenTool]:
            holder = Fields(value, f"input[{holders[index][0]}]")
            tools = [Fields(tool, f"{holder.name('tools')}[{i}]") for i, tool in enumerate(holder.items("tools"))]
            return [given for tool in tools for given in read_tool(tool, is_nested=False)]

        _, found = memory.read(self.name, "tools of items", [value for _, value, _ in holders], tools_of)
        added, searched = left_out, list[GivenTool]()
        for (_, _, place), tools in zip(holders, found, strict=True):
            (added if place.type == "additional_tools" else searched).extend(tools)
        return values, received, added, searched


class ItemPlace(NamedTuple):
    """The place of an item of a conversation.

    Attributes:
        type: The item's type; empty if it is not a string.
        rank: The place of its type in a reply; None for an item that is not part of a reply.
        link: The id of the reply that it is part of, if it has one.
    """

    type: str
    rank: int | None
    link: str | None


def _place_of(value: Any, index: int, where: str = "input") -> ItemPlace:
    """Return the place of an item of a list; a message and a reference may leave out their type.

    Raises:
        RequestError: If the item is not an object.
    """
    item = Fields(value, f"{where}[{index}]").value
    kind = item.get("type")
    if kind is None:
        kind = "message" if "role" in item else "item_reference" if list(item) == ["id"] else None
    kind = kind if isinstance(kind, str) else ""
    rank = _RANKS.get(kind)
    if kind == "message" and item.get("role") != "assistant":
        rank = None
    encrypted, named = item.get("encrypted_content"), item.get("id")
    link = signed(encrypted) if isinstance(encrypted, str) else None
    if link is None and isinstance(named, str):
        prefix, _, rest = named.partition("_")
        rest = rest.rpartition("_")[0] if prefix in PREFIXES else rest
        link = rest or None if prefix in ("rs", "msg", *PREFIXES) else None
    return ItemPlace(kind, rank, link)


def _grouped(items: Sequence[tuple[int, Any, ItemPlace]]) -> tuple[list[int], list[Any]]:
    """Put the items of each reply into a list.

    Args:
        items: The index of each item, the item, and its place.

    Returns:
        The index of the first item of each value, and the values: lists of items, and single items.
    """
    starts: list[int] = []
    values: list[Any] = []
    reply: list[Any] = []
    link, last = None, 0
    for i, value, place in items:
        if place.rank is None:
            reply = []
        else:
            continues = place.rank > last or (place.rank == last and place.rank != _RANKS["message"])
            if place.link is not None and link is not None:
                continues = place.link == link
            if reply and continues:
                reply.append(value)
                link, last = link or place.link, place.rank
                continue
            reply = [value]
            link, last = place.link, place.rank
        starts.append(i)
        values.append(reply or value)
    return starts, values


def _received(value: Any, index: int) -> ReceivedMessage:
    """Return the message that an item, or a list of items of a reply, holds; `index` is that of the first item."""
    if isinstance(value, list):
        return _reply_of(cast("list[Any]", value), "input", index)
    item, type_ = Fields(value, f"input[{index}]"), _place_of(value, index).type
    if type_ in _OUTPUTS:
        if type_ in ("function_call_output", "custom_tool_call_output"):
            call, content = item.required_text("call_id"), item.content("output", _PARTS, "input_image")
        else:
            call, content = read_output(item, type_)
        return ReceivedMessage(valid(Message, item.path, role="tool", tool_call_id=call, content=content), value)
    if type_ == "agent_message":
        content = item.content("content", {**_PARTS, "encrypted_content": "encrypted_content"})
        return ReceivedMessage(valid(Message, item.path, role="user", content=content), value)
    if type_ == "message":
        role = item.text("role")
        if role not in ("user", "system", "developer"):
            expected = "'user', 'assistant', 'system' or 'developer'"
            raise refused(item.name("role"), f"got {brief(role, 40)}; expected {expected}")
        content = item.content("content", _PARTS, "input_image" if role == "user" else None)
        return ReceivedMessage(valid(Message, item.path, role=role, content=content), value)
    raise refused(item.name("type"), f"items of type {brief(item.get('type'), 60)} are not supported")


def _reply_of(items: Sequence[Mapping[str, Any]], where: str, start: int = 0) -> ReceivedMessage:
    """Combine the items of a reply into a message.

    Args:
        items: The items.
        where: The list that contains them.
        start: The index of the first one.
    """
    reasoning: list[str] = []
    texts: list[str | ImagePart] = []
    calls: list[ToolCall] = []
    links: list[str | None] = []
    for i, value in enumerate(items, start):
        item, place = Fields(value, f"{where}[{i}]"), _place_of(value, i, where)
        links.append(place.link)
        if place.type == "reasoning":
            for key, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
                parts = [Fields(part, f"{item.name(key)}[{i}]") for i, part in enumerate(item.items(key))]
                for part in parts:
                    if part.text("type") not in (None, kind, "text"):
                        raise refused(part.name("type"), f"expected {kind!r}")
                reasoning += [part.text("text") or "" for part in parts]
                if parts:  # the summary has the same text
                    break
        elif place.type == "message":
            content = item.content("content", _PARTS) if item.get("content") is not None else ""
            parts = [content] if isinstance(content, str) else content
            texts += [part["text"] if isinstance(part, dict) else part for part in parts]
        else:
            calls.append(read_call(item, CALLS[place.type]))
    path = f"{where}[{start}]"
    check_unique([call.id for call in calls], path)
    read = valid(
        Message,
        path,
        role="assistant",
        content=content_of(texts),
        reasoning="\n\n".join(reasoning) if reasoning else None,
        tool_calls=calls,
    )
    return ReceivedMessage(read, items[0] if len(items) == 1 else items, next(filter(None, links), None))


def _output(body: Any, request: ModelRequest, reply: ModelReply) -> list[dict[str, Any]]:
    """Return the items of a response."""
    fields = Fields(body)
    found = reply.message
    items: list[dict[str, Any]] = []
    if found.reasoning:
        asked, text = fields.object("reasoning"), {"text": found.reasoning}
        is_summarized = asked is not None and asked.text("summary")
        item: dict[str, Any] = {
            "id": f"rs_{reply.id}",
            "type": "reasoning",
            "summary": [{"type": "summary_text", **text}] if is_summarized else [],
            "content": [{"type": "reasoning_text", **text}],
        }
        if _ENCRYPTED in fields.items("include"):
            item["encrypted_content"] = SIGNED + reply.id
        items.append(item)
    if found.content or not found.tool_calls:
        part: dict[str, Any] = {"type": "output_text", "text": found.content, "annotations": []}
        part["logprobs"] = (token_logprobs(reply) if request.logprobs else None) or []
        items.append({"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "content": [part]})
    for index, call in enumerate(found.tool_calls):
        items.append(write_call(call, request.given_tools.get(call.name), reply.id, index))
    last = "incomplete" if reply.finish_reason == "length" else "completed"
    return [{**item, "status": last if item is items[-1] else "completed"} for item in items]


@dataclass(eq=False, repr=False)
class _ResponseStream(ReplyStream):
    """The events of a response: reasoning and text as they arrive, then the calls.

    Args: See `WireFormat.stream`.
    """

    _wire: Responses
    _request: ModelRequest
    _body: Any
    _created: int
    _numbers: "count[int]" = field(default_factory=count)
    _items: int = 0
    _part: _Part = "content"

    def _start(self, begun: ModelReply) -> Iterator[bytes]:
        self._begun = replace(begun, message=Message(role="assistant"), finish_reason="stop")
        whole = self._wire.write(self._request, self._body, [self._begun], self._created)
        started: dict[str, Any] = {
            **whole,
            "status": "in_progress",
            "incomplete_details": None,
            "output": [],
            "usage": None,
        }
        yield self._event("created", response=started)
        yield self._event("in_progress", response=started)

    def _switch(self, closed: Kind | None, opened: Kind | None, reply: ModelReply | None) -> Iterator[bytes]:
        if closed is not None:
            if reply is None:  # another item follows
                item = self._item(closed, "".join(self._sent[closed]))
            else:
                item = _output(self._body, self._request, reply)[self._items - 1]
            if self._part == "summary":
                yield from self._end_part("summary", item["summary"][0])
                yield self._begin_part("reasoning", item["content"][0])
                for piece in pieces(item["content"][0]["text"]):
                    yield self._in_part("reasoning", "delta", delta=piece)
            yield from self._end_part(closed, item["content"][0])
            yield self._event("output_item.done", output_index=self._items - 1, item=item)
        if opened is not None:
            item = self._item(opened, "x")
            yield self._added(item)
            is_summarized = opened == "reasoning" and bool(item["summary"])
            self._part = "summary" if is_summarized else opened
            yield self._begin_part(self._part, item["summary" if is_summarized else "content"][0])

    def _delta(self, kind: Kind, text: str) -> Iterator[bytes]:
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "content" else {}
        yield self._in_part(self._part, "delta", delta=text, **logprobs)

    def _finish(self, reply: ModelReply, is_last: bool) -> Iterator[bytes]:
        whole = self._wire.write(self._request, self._body, [reply], self._created)
        for item in whole["output"][self._items :]:
            yield self._added(item)
            if item["type"] == "message":  # without content
                yield self._begin_part("content", item["content"][0])
                yield from self._end_part("content", item["content"][0])
            elif item["type"] in _CALL_EVENTS:
                event, key = _CALL_EVENTS[item["type"]]
                here = {"item_id": item["id"], "output_index": self._items - 1}
                for piece in pieces(item[key]):
                    yield self._event(f"{event}.delta", **here, delta=piece)
                yield self._event(f"{event}.done", **here, name=item["name"], **{key: item[key]})
            yield self._event("output_item.done", output_index=self._items - 1, item=item)
        yield self._event("incomplete" if reply.finish_reason == "length" else "completed", response=whole)

    def _item(self, kind: Kind, text: str) -> dict[str, Any]:
        """Return the item of reasoning or content that is not the last one."""
        message = Message(role="assistant", content="x").model_copy(update={kind: text})
        items = _output(self._body, self._request, replace(self._begun, message=message))
        return {**items[0], "status": "completed"}

    def _added(self, item: dict[str, Any]) -> bytes:
        self._items += 1
        self._id = item["id"]
        empty: dict[str, Any] = {
            key: type(item[key])() for key in ("summary", "content", "arguments", "input") if key in item
        }
        begun: dict[str, Any] = {**item, **empty, "status": "in_progress"}
        return self._event("output_item.added", output_index=self._items - 1, item=begun)

    def _begin_part(self, kind: _Part, part: dict[str, Any]) -> bytes:
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "content" else {}
        return self._in_part(kind, "added", part={**part, "text": "", **logprobs})

    def _end_part(self, kind: _Part, part: dict[str, Any]) -> Iterator[bytes]:
        logprobs: dict[str, Any] = {"logprobs": part["logprobs"]} if kind == "content" else {}
        yield self._in_part(kind, "done", text=part["text"], **logprobs)
        yield self._in_part(kind, "done", part=part)

    def _in_part(self, kind: _Part, stage: str, **fields: Any) -> bytes:
        """Return the event of a stage of a part of the last item, or of its text."""
        part, text = _PART_EVENTS[kind]
        index = "summary_index" if kind == "summary" else "content_index"
        place = {"item_id": self._id, "output_index": self._items - 1, index: 0}
        return self._event(f"{part if 'part' in fields else text}.{stage}", **place, **fields)

    def _event(self, name: str, /, **fields: Any) -> bytes:
        type_ = f"response.{name}"
        return event_bytes({"type": type_, "sequence_number": next(self._numbers), **fields}, type_)
