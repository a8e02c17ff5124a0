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
from typing import Any

from openai.types.responses import (
    Response,
)

from ...errors import RequestError
from ...messages import Message, ToolSchema
from .._requests import ModelReply, ModelRequest, ReceivedMessage
from ._fields import Fields, json_bytes, refused, tool_schema, valid
from ._live import ReplyStream
from ._memory import SessionMemory, StoredConversation
from ._openai_format import (
    NO_GRAMMAR,
    OpenAIFormat,
    check_top_logprobs,
    described,
    read_choice,
    read_sampling,
    refuse_given,
)
from ._response_items import grouped, place_of, received_of, reply_of, resolved
from ._response_output import ResponseStream, output_items
from ._wire import LARGEST, event_bytes, joined, split_system

_LOGPROBS = "message.output_text.logprobs"
_UNSUPPORTED = {
    "background": "a response is not made in the background: leave it out, and wait for the response",
    "conversation": "conversations are not stored under names: use previous_response_id",
    "prompt": "there are no stored prompts: give `instructions` and `input`",
}


@dataclass(frozen=True, slots=True)
class _Request(ModelRequest):
    """A request, and the conversation that is stored for it, with the system messages of `input`."""

    conversation: StoredConversation | None = None


class Responses(OpenAIFormat):
    """OpenAI Responses."""

    name = "responses"

    def read(self, body: Any, headers: Mapping[str, str], memory: SessionMemory | None = None) -> ModelRequest:
        """Return what a request asks for; see `WireFormat.read`."""
        memory = SessionMemory() if memory is None else memory
        fields = self._fields(body, lists=["input"])
        refuse_given(fields, _UNSUPPORTED)
        _check_form(fields)
        check_top_logprobs(fields)
        previous = _previous(fields, memory)
        given, received = self._input(fields, memory)
        conversation = StoredConversation(received, previous)
        system, messages = split_system(conversation.messages())
        instructions = fields.text("instructions")
        named = fields.text("previous_response_id")
        return _Request(
            **self._request(
                Fields({**fields.value, "input": given}),
                headers,
                messages=messages,
                system=joined([*([instructions] if instructions else []), *system]),
                tools=self._read_tools(fields, memory),
                tool_choice=read_choice(fields, None),
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
        response = _response(request, body, reply, created)
        return Response.model_validate(response).model_dump(mode="json", exclude_unset=True, by_alias=True)

    def stream(self, request: ModelRequest, body: Any, created: int) -> ReplyStream:
        """Return what writes the events of a reply while it is sampled; see `WireFormat.stream`."""
        return ResponseStream(request, body, lambda reply: self.write(request, body, [reply], created))

    def error_event(self, error: RequestError) -> bytes:
        """Return the event that ends a stream which has begun, with an error."""
        error_ = described(error)
        flat = {"code": error_["code"] or error_["type"], "message": error_["message"], "param": error_["param"]}
        return event_bytes({"type": "error", "sequence_number": 0, **flat, "error": error_}, "error")

    def count(self, tokens: int) -> dict[str, Any]:
        """Return the body of a response to `POST /responses/input_tokens`."""
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def remember(
        self, request: ModelRequest, replies: Sequence[ModelReply], memory: SessionMemory, created: int
    ) -> None:
        """Keep a response for `previous_response_id` and `GET /responses/{id}`, unless `store` is false."""
        if not isinstance(request, _Request) or request.conversation is None or request.body.get("store") is False:
            return
        [reply] = replies
        response = _response(request, request.body, reply, created)
        conversation, said = request.conversation, reply_of(response["output"], "output")
        stored = StoredConversation([*conversation.received, said], conversation.previous)
        memory.responses.add(response["id"], stored, response)

    def retrieve(self, id: str, memory: SessionMemory) -> dict[str, Any]:
        """Return the body of a response to `GET /responses/{id}`.

        Raises:
            RequestError: If there is no such response (any more).
        """
        response = memory.responses.response(id)
        if response is None:
            raise RequestError(f"Response with id {id!r:.80} not found.", 404, "not_found_error")
        return Response.model_validate(response).model_dump(mode="json", exclude_unset=True, by_alias=True)

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
            raise refused("input", "it is required: give a text, or at least one item")
        values, places = memory.read(self.name, "input", fields.items("input"), place_of)
        pairs = zip(values, places, strict=True)
        starts, groups = grouped([resolved(value, place, i, memory) for i, (value, place) in enumerate(pairs)])
        _, received = memory.read(self.name, "replies", groups, lambda value, index: received_of(value, starts[index]))
        return values, received

    def _tool(self, value: Any, index: int) -> ToolSchema:
        tool = Fields(value, f"tools[{index}]")
        if tool.text("type") != "function":
            raise refused(tool.name("type"), f"got {tool.text('type')!r:.40}; only 'function' is supported")
        return tool_schema(tool, "parameters")


def _check_form(fields: Fields) -> None:
    """Check the fields that shape a response, and refuse a form that a reply cannot be made to have."""
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


def _previous(fields: Fields, memory: SessionMemory) -> StoredConversation | None:
    named = fields.text("previous_response_id")
    if named is None:
        return None
    conversation = memory.responses.conversation(named)
    if conversation is None:
        reason = (
            f"the response {named!r:.80} is not known: it was not stored, is of another session, or was forgotten; "
            "give the whole conversation as `input`"
        )
        field = "previous_response_id"
        raise RequestError(f"{field}: {reason}", code="previous_response_not_found", field=field)
    return conversation


def _response(request: ModelRequest, body: Any, reply: ModelReply, created: int) -> dict[str, Any]:
    is_cut = reply.finish_reason == "length"
    fields = Fields(body)
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
        "tool_choice": _written_choice(request),
        "tools": [{"type": "function", "parameters": None, "strict": False, **t["function"]} for t in request.tools],
        "top_p": request.sampling.get("top_p"),
        "truncation": fields.text("truncation") or "disabled",
        "metadata": {},
        "usage": _usage(reply),
    }


def _written_choice(request: ModelRequest) -> Any:
    choice = request.tool_choice
    return choice if isinstance(choice, str) else {"type": "function", **choice}


def _usage(reply: ModelReply) -> dict[str, Any]:
    sampled = len(reply.tokens)
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + sampled,
    }
