"""OpenAI Responses (https://platform.openai.com/docs/api-reference/responses).

- Reasoning is the `content` of a reasoning item, as of open models. Its `summary` has the same text if the request asks
  for a summary (`reasoning.summary`), because some clients read only that.
- The ids of the items contain the id of their reply, and so does `encrypted_content`: this is how a reply is recognized
  that comes back as `input`.
- A response is kept for `previous_response_id` and item references unless `store` is false.
- A reply is one message. So the items of a conversation that follow each other as a reply's do (reasoning, a message,
  calls) are read as one message, unless their ids are of different replies.
- `instructions`, as everywhere, hold for one request only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from openai.types.responses import Response

from ...errors import RequestError
from ...messages import ImagePart, Message, ToolCall, read_arguments
from .._requests import ModelReply, ModelRequest, ReceivedMessage
from ._fields import Fields, check_unique, content_of, json_bytes, not_of_kind, refused, valid
from ._memory import SessionMemory, StoredConversation
from ._openai_format import NO_GRAMMAR, OpenAIFormat, check_supported, described, read_sampling
from ._response_output import ResponseStream, output_items
from ._wire import LARGEST, ReplyStream, event_bytes, signed, split_system, validated

_LOGPROBS = "message.output_text.logprobs"
_UNSUPPORTED = {
    "background": "background responses are not supported: leave it out, and wait for the response",
    "conversation": "named conversations are not supported: use previous_response_id",
    "prompt": "stored prompts are not supported: give `instructions` and `input`",
}
_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_RANKS = {"reasoning": 0, "message": 1, "function_call": 2}


@dataclass(frozen=True, slots=True)
class ResponsesRequest(ModelRequest):
    """A request, and the conversation that is stored for it, with the system messages of `input`."""

    conversation: StoredConversation | None = None


class Responses(OpenAIFormat):
    """OpenAI Responses."""

    name = "responses"
    function_field = None

    def read(self, body: Any, headers: Mapping[str, str], memory: SessionMemory | None = None) -> ModelRequest:
        """Read a request; see `WireFormat.read`."""
        memory = SessionMemory() if memory is None else memory
        fields = self._fields(body, "input")
        check_supported(fields, _UNSUPPORTED)
        text = fields.object("text")
        form = None if text is None else text.object("format")
        if form is not None and form.text("type") != "text":
            raise refused("text.format", f"{form.text('type')!r:.40} is not supported: {NO_GRAMMAR}")
        fields.one_of("truncation", ("auto", "disabled"))
        fields.boolean("store")
        fields.boolean("parallel_tool_calls")
        reasoning = fields.object("reasoning")
        if reasoning is not None:
            reasoning.one_of("summary", ("auto", "concise", "detailed"))
        named = fields.text("previous_response_id")
        previous = None if named is None else memory.responses.conversation(named)
        if named is not None and previous is None:
            reason = (
                f"the response {named!r:.80} is not known: it was not stored, belongs to another session, or was "
                "forgotten; give the whole conversation as `input`"
            )
            field = "previous_response_id"
            raise RequestError(f"{field}: {reason}", code="previous_response_not_found", field=field)
        given, received = self._input(fields, memory)
        conversation = StoredConversation(received, previous)
        system, messages = split_system(conversation.messages(), fields.text("instructions"))
        return ResponsesRequest(
            **self._request(
                Fields({**fields.value, "input": given}),
                headers,
                messages=messages,
                system=system,
                tools=self._read_tools(fields, memory),
                tool_choice=self._choice(fields),
                max_tokens=fields.integer("max_output_tokens", 1, LARGEST),
                stop=fields.stops("stop"),
                sampling=read_sampling(fields),
                logprobs=_LOGPROBS in fields.items("include"),
                previous=None if named is None else named.removeprefix("resp_"),
            ),
            conversation=conversation,
        )

    def write(self, request: ModelRequest, body: Any, replies: Sequence[ModelReply], created: int) -> dict[str, Any]:
        """Return the body of a response that is not streamed; see `WireFormat.write`."""
        [reply] = replies
        return validated(Response, _response(request, body, reply, created))

    def stream(
        self, request: ModelRequest, body: Any, created: int, index: int = 0, id: str | None = None
    ) -> ReplyStream:
        """Return a writer of the events of a reply while it is sampled; see `WireFormat.stream`."""
        return ResponseStream(request, body, lambda reply: self.write(request, body, [reply], created))

    def error_event(self, error: RequestError) -> bytes:
        """Return the event that ends a stream which has begun, with an error."""
        error_ = described(error)
        flat = {"code": error_["code"] or error_["type"], "message": error_["message"], "param": error_["param"]}
        return event_bytes({"type": "error", "sequence_number": 0, **flat, "error": error_}, "error")

    def remember(
        self, request: ModelRequest, replies: Sequence[ModelReply], memory: SessionMemory, created: int
    ) -> None:
        """Keep a response for `previous_response_id` and `GET /responses/{id}`, unless `store` is false."""
        if (
            not isinstance(request, ResponsesRequest)
            or request.conversation is None
            or request.body.get("store") is False
        ):
            return
        [reply] = replies
        response = _response(request, request.body, reply, created)
        conversation, said = request.conversation, _reply_of(response["output"], "output")
        stored = StoredConversation([*conversation.received, said], conversation.previous)
        memory.responses.add(response["id"], stored, response)

    def retrieve(self, id: str, memory: SessionMemory) -> dict[str, Any]:
        """Return the body of a response to `GET /responses/{id}`.

        Raises:
            RequestError: If the response is not known (any more).
        """
        response = memory.responses.response(id)
        if response is None:
            raise RequestError(f"Response with id {id!r:.80} not found.", 404, "not_found_error")
        return validated(Response, response)

    def delete(self, id: str, memory: SessionMemory) -> dict[str, Any]:
        """Forget a response, and return the body of a response to `DELETE /responses/{id}`; see `retrieve`."""
        self.retrieve(id, memory)
        memory.responses.delete(id)
        return {"id": id, "object": "response", "deleted": True}

    def _input(self, fields: Fields, memory: SessionMemory) -> tuple[Any, list[ReceivedMessage]]:
        """Return the input, and its messages."""
        given = fields.get("input")
        if isinstance(given, str):
            json_bytes(given, "input")
            return given, [ReceivedMessage(valid(Message, "input", role="user", content=given), given)]
        if not fields.items("input"):
            raise refused("input", "it is required: give a string, or at least one item")
        values, places = memory.read(self.name, "input", fields.items("input"), _place_of)
        items: list[tuple[Any, ItemPlace]] = []
        for index, (value, place) in enumerate(zip(values, places, strict=True)):
            item = value
            if place.type == "item_reference":
                reference = Fields(value, f"input[{index}]")
                named = reference.required_text("id")
                item = memory.responses.item(named)
                if item is None:
                    reason = "it was not stored, or was forgotten; give the item itself"
                    raise refused(reference.name("id"), f"no item {named!r:.80} is known: {reason}")
            items.append((item, place if item is value else _place_of(item, index)))
        starts, groups = _grouped(items)
        _, received = memory.read(self.name, "replies", groups, lambda value, index: _received(value, starts[index]))
        return values, received


class ItemPlace(NamedTuple):
    """The place of an item of a conversation.

    Attributes:
        type: The item's type.
        rank: The place of its type in a reply; None for an item that is not part of a reply.
        link: The id of the reply that it is part of, if it has one.
    """

    type: Any
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
    rank = _RANKS.get(kind) if isinstance(kind, str) else None
    if kind == "message" and item.get("role") != "assistant":
        rank = None
    encrypted, named = item.get("encrypted_content"), item.get("id")
    link = signed(encrypted) if isinstance(encrypted, str) else None
    if link is None and isinstance(named, str):
        prefix, _, rest = named.partition("_")
        rest = rest.rpartition("_")[0] if prefix == "fc" else rest
        link = rest or None if prefix in ("rs", "msg", "fc") else None
    return ItemPlace(kind, rank, link)


def _grouped(items: Sequence[tuple[Any, ItemPlace]]) -> tuple[list[int], list[Any]]:
    """Put the items of each reply into a list.

    Returns:
        The index of the first item of each value, and the values: lists of items, and single items.
    """
    starts: list[int] = []
    values: list[Any] = []
    reply: list[Any] = []
    link, last = None, 0
    for i, (value, place) in enumerate(items):
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
    if type_ == "function_call_output":
        read = {"tool_call_id": item.required_text("call_id"), "content": item.content("output", _PARTS, "input_image")}
        return ReceivedMessage(valid(Message, item.path, role="tool", **read), value)
    if type_ == "message":
        role = item.text("role")
        if role not in ("user", "system", "developer"):
            expected = "'user', 'assistant', 'system' or 'developer'"
            raise refused(item.name("role"), f"got {role!r:.40}; expected {expected}")
        content = item.content("content", _PARTS, "input_image" if role == "user" else None)
        return ReceivedMessage(valid(Message, item.path, role=role, content=content), value)
    raise refused(item.name("type"), f"items of type {type_!r:.60} are not supported")


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
            reasoning += _thinking(item)
        elif place.type == "message":
            content = item.content("content", _PARTS) if item.get("content") is not None else ""
            parts = [content] if isinstance(content, str) else content
            texts += [part["text"] if isinstance(part, dict) else part for part in parts]
        else:
            arguments = item.get("arguments")
            if not isinstance(arguments, str):
                raise not_of_kind(item.name("arguments"), "a string", arguments)
            named = {"name": item.required_text("name"), "id": item.required_text("call_id")}
            calls.append(valid(ToolCall, item.path, **named, arguments=read_arguments(arguments)))
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


def _thinking(item: Fields) -> list[str]:
    """Return the strings of a reasoning item: its content, or else its summary."""
    for key, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
        parts = [Fields(part, f"{item.name(key)}[{i}]") for i, part in enumerate(item.items(key))]
        for part in parts:
            if part.text("type") not in (None, kind, "text"):
                raise refused(part.name("type"), f"expected {kind!r}")
        if texts := [part.text("text") or "" for part in parts]:
            return texts
    return []


def _response(request: ModelRequest, body: Any, reply: ModelReply, created: int) -> dict[str, Any]:
    is_cut, fields, choice = reply.finish_reason == "length", Fields(body), request.tool_choice
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
        "output": output_items(body, request, reply),
        "parallel_tool_calls": fields.boolean("parallel_tool_calls") is not False,
        "previous_response_id": fields.text("previous_response_id"),
        "store": fields.boolean("store") is not False,
        "temperature": request.sampling.get("temperature"),
        "text": {"format": {"type": "text"}},
        "tool_choice": choice if isinstance(choice, str) else {"type": "function", **choice},
        "tools": [{"type": "function", "parameters": None, "strict": False, **t["function"]} for t in request.tools],
        "top_p": request.sampling.get("top_p"),
        "truncation": fields.text("truncation") or "disabled",
        "metadata": {},
        "usage": {
            "input_tokens": reply.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.prompt_tokens + sampled,
        },
    }
