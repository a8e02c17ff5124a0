"""The output of a response in OpenAI Responses, and the events that stream it."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, get_args

from openai.types.responses import (
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseFunctionCallArgumentsDoneEvent,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseReasoningSummaryPartAddedEvent,
    ResponseReasoningSummaryPartDoneEvent,
    ResponseReasoningSummaryTextDeltaEvent,
    ResponseReasoningSummaryTextDoneEvent,
    ResponseReasoningTextDeltaEvent,
    ResponseReasoningTextDoneEvent,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
)
from pydantic import BaseModel

from ..requests import ModelReply, ModelRequest
from .fields import Fields
from .openai_format import token_logprobs
from .wire import arguments_text, event_bytes, pieces, signature

ENCRYPTED = "reasoning.encrypted_content"


def output_items(body: Any, request: ModelRequest, reply: ModelReply) -> list[dict[str, Any]]:
    """Return the output of a response."""
    fields = Fields(body)
    found = reply.message
    items: list[dict[str, Any]] = []
    if found.reasoning:
        items.append(_reasoning_item(fields, reply))
    if found.content or not found.tool_calls:
        part: dict[str, Any] = {"type": "output_text", "text": found.content, "annotations": []}
        part["logprobs"] = (token_logprobs(reply) if request.logprobs else None) or []
        items.append({"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "content": [part]})
    for index, call in enumerate(found.tool_calls):
        called = {"call_id": call.id, "name": call.name, "arguments": arguments_text(call)}
        items.append({"id": f"fc_{reply.id}_{index}", "type": "function_call", **called})
    last = "incomplete" if reply.finish_reason == "length" else "completed"
    return [{**item, "status": last if item is items[-1] else "completed"} for item in items]


def _reasoning_item(fields: Fields, reply: ModelReply) -> dict[str, Any]:
    asked = fields.object("reasoning")
    text = reply.message.reasoning
    item: dict[str, Any] = {"id": f"rs_{reply.id}", "type": "reasoning", "summary": []}
    if asked is not None and asked.text("summary"):
        item["summary"] = [{"type": "summary_text", "text": text}]
    item["content"] = [{"type": "reasoning_text", "text": text}]
    if ENCRYPTED in fields.items("include"):
        item["encrypted_content"] = signature(reply)
    return item


def item_events(item: dict[str, Any], index: int, numbers: "count[int]") -> Iterator[bytes]:
    """Yield the events of an item of the output."""
    at = {"item_id": item["id"], "output_index": index}
    empty: dict[str, Any] = {key: type(item[key])() for key in ("summary", "content", "arguments") if key in item}
    begun: dict[str, Any] = {**item, **empty, "status": "in_progress"}
    yield event(ResponseOutputItemAddedEvent, numbers, output_index=index, item=begun)
    match item["type"]:
        case "reasoning":
            yield from _summary_events(item["summary"], at, numbers)
            yield from _part_events(item["content"][0], at, numbers)
        case "message":
            yield from _part_events(item["content"][0], at, numbers)
        case _:
            for piece in pieces(item["arguments"]):
                yield event(ResponseFunctionCallArgumentsDeltaEvent, numbers, **at, delta=piece)
            whole = {"name": item["name"], "arguments": item["arguments"]}
            yield event(ResponseFunctionCallArgumentsDoneEvent, numbers, **at, **whole)
    yield event(ResponseOutputItemDoneEvent, numbers, output_index=index, item=item)


def _summary_events(summary: Sequence[dict[str, Any]], at: Mapping[str, Any], numbers: "count[int]") -> Iterator[bytes]:
    for index, part in enumerate(summary):
        here = {**at, "summary_index": index}
        yield event(ResponseReasoningSummaryPartAddedEvent, numbers, **here, part={**part, "text": ""})
        for piece in pieces(part["text"]):
            yield event(ResponseReasoningSummaryTextDeltaEvent, numbers, **here, delta=piece)
        yield event(ResponseReasoningSummaryTextDoneEvent, numbers, **here, text=part["text"])
        yield event(ResponseReasoningSummaryPartDoneEvent, numbers, **here, part=part)


def _part_events(part: dict[str, Any], at: Mapping[str, Any], numbers: "count[int]") -> Iterator[bytes]:
    """Yield the events of the text of a message, or of reasoning."""
    here = {**at, "content_index": 0}
    is_text = part["type"] == "output_text"
    delta, done = (
        (ResponseTextDeltaEvent, ResponseTextDoneEvent)
        if is_text
        else (ResponseReasoningTextDeltaEvent, ResponseReasoningTextDoneEvent)
    )
    logprobs: dict[str, Any] = {"logprobs": []} if is_text else {}
    yield event(ResponseContentPartAddedEvent, numbers, **here, part={**part, "text": "", **logprobs})
    for piece in pieces(part["text"]):
        yield event(delta, numbers, **here, delta=piece, **logprobs)
    all_logprobs = {"logprobs": part["logprobs"]} if is_text else {}
    yield event(done, numbers, **here, text=part["text"], **all_logprobs)
    yield event(ResponseContentPartDoneEvent, numbers, **here, part=part)


def event(kind: type[BaseModel], numbers: "count[int]", **fields: Any) -> bytes:
    """Return an event, whose type is that of its class.

    The response in an event is valid already, and is not validated again.
    """
    [type_] = get_args(kind.model_fields["type"].annotation)
    event = {"type": type_, "sequence_number": next(numbers), **fields}
    if "response" not in fields:
        event = kind.model_validate(event).model_dump(mode="json", exclude_unset=True, by_alias=True)
    return event_bytes(event, type_)
