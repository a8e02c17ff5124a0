"""The output of a response in OpenAI Responses, and the events that stream it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any, get_args

from openai.types.responses import (
    ResponseCompletedEvent,
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseCreatedEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseFunctionCallArgumentsDoneEvent,
    ResponseIncompleteEvent,
    ResponseInProgressEvent,
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

from ...messages import Message
from .._requests import ModelReply, ModelRequest
from ._fields import Fields
from ._openai_format import token_logprobs
from ._wire import Kind, ReplyStream, compact, event_bytes, pieces, signature, validated

ENCRYPTED = "reasoning.encrypted_content"
_LOGPROBS: dict[Kind, dict[str, list[Any]]] = {"reasoning": {}, "content": {"logprobs": []}}


def output_items(body: Any, request: ModelRequest, reply: ModelReply) -> list[dict[str, Any]]:
    """Return the output of a response."""
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
        if ENCRYPTED in fields.items("include"):
            item["encrypted_content"] = signature(reply)
        items.append(item)
    if found.content or not found.tool_calls:
        part: dict[str, Any] = {"type": "output_text", "text": found.content, "annotations": []}
        part["logprobs"] = (token_logprobs(reply) if request.logprobs else None) or []
        items.append({"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "content": [part]})
    for index, call in enumerate(found.tool_calls):
        called = {"call_id": call.id, "name": call.name, "arguments": compact(call.arguments)}
        items.append({"id": f"fc_{reply.id}_{index}", "type": "function_call", **called})
    last = "incomplete" if reply.finish_reason == "length" else "completed"
    return [{**item, "status": last if item is items[-1] else "completed"} for item in items]


class ResponseStream(ReplyStream):
    """The events of a response: reasoning and text as they arrive, then the calls.

    Args:
        request: The request.
        body: Its JSON body.
        write: Returns the response of a reply.
    """

    def __init__(self, request: ModelRequest, body: Any, write: Callable[[ModelReply], dict[str, Any]]) -> None:
        super().__init__()
        self._request, self._body, self._write = request, body, write
        self._numbers = count()
        self._items: int = 0

    def _start(self, begun: ModelReply) -> Iterator[bytes]:
        self._begun = replace(begun, message=Message(role="assistant"), finish_reason="stop")
        whole = self._write(self._begun)
        started: dict[str, Any] = {
            **whole,
            "status": "in_progress",
            "incomplete_details": None,
            "output": [],
            "usage": None,
        }
        yield self._event(ResponseCreatedEvent, response=started)
        yield self._event(ResponseInProgressEvent, response=started)

    def _begin(self, kind: Kind) -> Iterator[bytes]:
        item = self._item(kind, "x")
        yield self._added(item)
        self._summary = kind == "reasoning" and item["summary"]
        if self._summary:
            part = {**self._summary[0], "text": ""}
            yield self._event(ResponseReasoningSummaryPartAddedEvent, **self._at, summary_index=0, part=part)
        else:
            yield self._part_added(kind, item["content"][0])

    def _delta(self, kind: Kind, text: str) -> Iterator[bytes]:
        if kind == "reasoning" and self._summary:
            yield self._event(ResponseReasoningSummaryTextDeltaEvent, **self._at, summary_index=0, delta=text)
        else:
            yield self._part_delta(kind, text)

    def _close(self, kind: Kind, reply: ModelReply | None) -> Iterator[bytes]:
        if reply is None:  # another item follows
            item = self._item(kind, "".join(self._sent[kind]))
        else:
            item = output_items(self._body, self._request, reply)[self._items - 1]
        part = item["content"][0]
        if kind == "reasoning" and self._summary:
            (summary,) = item["summary"]
            here = {**self._at, "summary_index": 0}
            yield self._event(ResponseReasoningSummaryTextDoneEvent, **here, text=summary["text"])
            yield self._event(ResponseReasoningSummaryPartDoneEvent, **here, part=summary)
            yield self._part_added(kind, part)
            for piece in pieces(part["text"]):
                yield self._part_delta(kind, piece)
        yield from self._part_done(kind, part)
        yield self._event(ResponseOutputItemDoneEvent, output_index=self._items - 1, item=item)

    def _finish(self, reply: ModelReply) -> Iterator[bytes]:
        whole = self._write(reply)
        for item in whole["output"][self._items :]:
            yield self._added(item)
            if item["type"] == "message":  # without text
                yield self._part_added("content", item["content"][0])
                yield from self._part_done("content", item["content"][0])
            else:
                for piece in pieces(item["arguments"]):
                    yield self._event(ResponseFunctionCallArgumentsDeltaEvent, **self._at, delta=piece)
                called = {"name": item["name"], "arguments": item["arguments"]}
                yield self._event(ResponseFunctionCallArgumentsDoneEvent, **self._at, **called)
            yield self._event(ResponseOutputItemDoneEvent, output_index=self._items - 1, item=item)
        is_cut = reply.finish_reason == "length"
        yield self._event(ResponseIncompleteEvent if is_cut else ResponseCompletedEvent, response=whole)

    def _item(self, kind: Kind, text: str) -> dict[str, Any]:
        """Return the item of a reasoning or text that is not the last one."""
        message = Message(role="assistant", content="x").model_copy(update={kind: text})
        items = output_items(self._body, self._request, replace(self._begun, message=message))
        return {**items[0], "status": "completed"}

    def _added(self, item: dict[str, Any]) -> bytes:
        self._items += 1
        self._id = item["id"]
        empty: dict[str, Any] = {key: type(item[key])() for key in ("summary", "content", "arguments") if key in item}
        begun: dict[str, Any] = {**item, **empty, "status": "in_progress"}
        return self._event(ResponseOutputItemAddedEvent, output_index=self._items - 1, item=begun)

    def _part_added(self, kind: Kind, part: dict[str, Any]) -> bytes:
        begun = {**part, "text": "", **_LOGPROBS[kind]}
        return self._event(ResponseContentPartAddedEvent, **self._at, content_index=0, part=begun)

    def _part_delta(self, kind: Kind, text: str) -> bytes:
        delta = ResponseTextDeltaEvent if kind == "content" else ResponseReasoningTextDeltaEvent
        return self._event(delta, **self._at, content_index=0, delta=text, **_LOGPROBS[kind])

    def _part_done(self, kind: Kind, part: dict[str, Any]) -> Iterator[bytes]:
        here = {**self._at, "content_index": 0}
        done = ResponseTextDoneEvent if kind == "content" else ResponseReasoningTextDoneEvent
        yield self._event(done, **here, text=part["text"], **{key: part[key] for key in _LOGPROBS[kind]})
        yield self._event(ResponseContentPartDoneEvent, **here, part=part)

    @property
    def _at(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._items - 1}

    def _event(self, kind: type[BaseModel], **fields: Any) -> bytes:
        """Return an event, whose type is that of its class. The response in an event is valid already."""
        [type_] = get_args(kind.model_fields["type"].annotation)
        event = {"type": type_, "sequence_number": next(self._numbers), **fields}
        return event_bytes(event if "response" in fields else validated(kind, event), type_)
