"""The output of a response in OpenAI Responses, and the events that stream it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any, Literal, TypeAlias

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

from ...messages import Message
from .._requests import ModelReply, ModelRequest
from ._fields import Fields
from ._openai_format import token_logprobs
from ._wire import SIGNED, Kind, ReplyStream, compact, pieces, typed_event

ENCRYPTED = "reasoning.encrypted_content"
_Part: TypeAlias = Literal["summary", "reasoning", "content"]
_PART_EVENTS: dict[_Part, tuple[Any, Any, Any, Any]] = {  # a part is added, grows, its text is done, and it is done
    "summary": (
        ResponseReasoningSummaryPartAddedEvent,
        ResponseReasoningSummaryTextDeltaEvent,
        ResponseReasoningSummaryTextDoneEvent,
        ResponseReasoningSummaryPartDoneEvent,
    ),
    "reasoning": (
        ResponseContentPartAddedEvent,
        ResponseReasoningTextDeltaEvent,
        ResponseReasoningTextDoneEvent,
        ResponseContentPartDoneEvent,
    ),
    "content": (
        ResponseContentPartAddedEvent,
        ResponseTextDeltaEvent,
        ResponseTextDoneEvent,
        ResponseContentPartDoneEvent,
    ),
}


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
            item["encrypted_content"] = SIGNED + reply.id
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
        self._part: _Part = "content"

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

    def _switch(self, closed: Kind | None, opened: Kind | None, reply: ModelReply | None) -> Iterator[bytes]:
        if closed is not None:
            if reply is None:  # another item follows
                item = self._item(closed, "".join(self._sent[closed]))
            else:
                item = output_items(self._body, self._request, reply)[self._items - 1]
            if self._part == "summary":
                yield from self._end_part("summary", item["summary"][0])
                yield self._begin_part("reasoning", item["content"][0])
                for piece in pieces(item["content"][0]["text"]):
                    yield self._in_part("reasoning", 1, delta=piece)
            yield from self._end_part(closed, item["content"][0])
            yield self._event(ResponseOutputItemDoneEvent, output_index=self._items - 1, item=item)
        if opened is not None:
            item = self._item(opened, "x")
            yield self._added(item)
            is_summarized = opened == "reasoning" and bool(item["summary"])
            self._part = "summary" if is_summarized else opened
            yield self._begin_part(self._part, item["summary" if is_summarized else "content"][0])

    def _delta(self, kind: Kind, text: str) -> Iterator[bytes]:
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "content" else {}
        yield self._in_part(self._part, 1, delta=text, **logprobs)

    def _finish(self, reply: ModelReply) -> Iterator[bytes]:
        whole = self._write(reply)
        for item in whole["output"][self._items :]:
            yield self._added(item)
            if item["type"] == "message":  # without content
                yield self._begin_part("content", item["content"][0])
                yield from self._end_part("content", item["content"][0])
            else:
                here = {"item_id": item["id"], "output_index": self._items - 1}
                for piece in pieces(item["arguments"]):
                    yield self._event(ResponseFunctionCallArgumentsDeltaEvent, **here, delta=piece)
                called = {"name": item["name"], "arguments": item["arguments"]}
                yield self._event(ResponseFunctionCallArgumentsDoneEvent, **here, **called)
            yield self._event(ResponseOutputItemDoneEvent, output_index=self._items - 1, item=item)
        is_cut = reply.finish_reason == "length"
        yield self._event(ResponseIncompleteEvent if is_cut else ResponseCompletedEvent, response=whole)

    def _item(self, kind: Kind, text: str) -> dict[str, Any]:
        """Return the item of reasoning or content that is not the last one."""
        message = Message(role="assistant", content="x").model_copy(update={kind: text})
        items = output_items(self._body, self._request, replace(self._begun, message=message))
        return {**items[0], "status": "completed"}

    def _added(self, item: dict[str, Any]) -> bytes:
        self._items += 1
        self._id = item["id"]
        empty: dict[str, Any] = {key: type(item[key])() for key in ("summary", "content", "arguments") if key in item}
        begun: dict[str, Any] = {**item, **empty, "status": "in_progress"}
        return self._event(ResponseOutputItemAddedEvent, output_index=self._items - 1, item=begun)

    def _begin_part(self, kind: _Part, part: dict[str, Any]) -> bytes:
        return self._in_part(kind, 0, part={**part, "text": "", **({"logprobs": []} if kind == "content" else {})})

    def _end_part(self, kind: _Part, part: dict[str, Any]) -> Iterator[bytes]:
        logprobs: dict[str, Any] = {"logprobs": part["logprobs"]} if kind == "content" else {}
        yield self._in_part(kind, 2, text=part["text"], **logprobs)
        yield self._in_part(kind, 3, part=part)

    def _in_part(self, kind: _Part, stage: int, **fields: Any) -> bytes:
        """Return the event of a stage of a part of the last item."""
        index = "summary_index" if kind == "summary" else "content_index"
        place = {"item_id": self._id, "output_index": self._items - 1, index: 0}
        return self._event(_PART_EVENTS[kind][stage], **place, **fields)

    def _event(self, kind: Any, **fields: Any) -> bytes:
        return typed_event(kind, sequence_number=next(self._numbers), **fields)
