"""Assembles a response that was logged as the events of its stream, in any of the three protocols.

Sources: the streams of OpenAI's Chat Completions and Responses and of Anthropic's Messages; vLLM's `token_ids` of each
choice of a chunk, and its `prompt_token_ids` of the first chunk (`return_token_ids`).
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, cast

import pydantic_core

from ..trainers.foreign._values import LoggedValue

# The fields that a chunk repeats or sends once; other strings and lists of chunks are parts of one.
_ONCE = frozenset({"id", "type", "role", "index", "finish_reason", "stop_reason", "prompt_token_ids", "meta_info"})
_ENDED = ("response.completed", "response.incomplete", "response.failed")


def assembled(name: str, events: LoggedValue) -> LoggedValue | None:
    """Return the body of the response that was sent as these events, or None if they end before the reply does.

    Args:
        name: The protocol: `"chat"`, `"responses"` or `"anthropic"`.
        events: The parsed events (chunks) in their order.

    Raises:
        InvalidRecord: If an event is damaged; the message names it and the field.
    """
    found = events.items()
    for event in found:
        if event.get("error").value is not None or event.get("type").value == "error":
            return LoggedValue({"error": event.get("error").value or event.value}, event.where)
    whole = {"chat": _chat, "responses": _responses, "anthropic": _anthropic}[name](found)
    return None if whole is None else LoggedValue(whole, events.where)


# Chat Completions.


def _chat(chunks: Sequence[LoggedValue]) -> dict[str, Any] | None:
    whole: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for key, value in chunk.mapping().items():
            if key != "choices" and whole.get(key) is None:
                whole[key] = value
        for choice in chunk.get("choices").items():
            into = choices.setdefault(choice.get("index").integer() or 0, {"message": {"role": "assistant"}})
            _add(into, LoggedValue({k: v for k, v in choice.mapping().items() if k != "delta"}, choice.where))
            _add(into["message"], choice.get("delta").object())
    if not choices or any(not choice.get("finish_reason") for choice in choices.values()):
        return None
    for choice in choices.values():
        choice["message"].setdefault("content", None if "tool_calls" in choice["message"] else "")
    return {**whole, "choices": [choices[index] for index in sorted(choices)]}


def _add(whole: dict[str, Any], part: LoggedValue) -> None:
    """Add the fields of a chunk to those of the chunks before it."""
    for key, value in part.mapping().items():
        if value is None:
            continue
        before = whole.get(key)
        if key in _ONCE or isinstance(value, (bool, int, float)):
            whole[key] = before or deepcopy(value)
        elif before is not None and type(before) is not type(value):
            raise part.get(key).invalid(f"a {type(before).__name__}, as in the chunks before it")
        elif isinstance(value, dict):
            _add(whole.setdefault(key, {}), part.get(key))
        elif isinstance(value, list):  # the items with an `index`, the calls, come in parts
            items: list[Any] = whole.setdefault(key, [])
            for item in part.get(key).items():
                index = _index_in(item.value)
                known = None if index is None else next((entry for entry in items if _index_in(entry) == index), None)
                if known is None:
                    items.append(deepcopy(item.value))
                else:
                    _add(known, item)
        else:
            whole[key] = value if before is None else before + value


def _index_in(item: Any) -> Any:
    return cast("dict[str, Any]", item).get("index") if isinstance(item, dict) else None


# Responses.


def _responses(events: Sequence[LoggedValue]) -> dict[str, Any] | None:
    """Return the response of the last event. Its output may be missing there: each item has its own event."""
    last = next((event for event in reversed(events) if event.get("type").value in _ENDED), None)
    if last is None:
        return None
    response = last.get("response")
    done = [event.get("item").mapping() for event in events if event.get("type").value == "response.output_item.done"]
    return {**response.mapping(), "output": response.get("output").value or done}


# Anthropic Messages.


def _anthropic(events: Sequence[LoggedValue]) -> dict[str, Any] | None:
    whole: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    inputs: dict[int, str] = {}
    for event in events:
        kind = event.get("type").value
        if kind == "message_start":
            whole = deepcopy(dict(event.get("message").mapping()))
        elif kind == "content_block_start":
            blocks[_index(event)] = deepcopy(dict(event.get("content_block").mapping()))
        elif kind == "content_block_delta":
            index, delta = _index(event), event.get("delta")
            if index not in blocks:
                raise event.get("index").invalid("the index of a block that an earlier event starts")
            if delta.get("type").value == "input_json_delta":
                inputs[index] = inputs.get(index, "") + (delta.get("partial_json").text() or "")
            else:
                texts = {k: v for k, v in delta.mapping().items() if k in ("text", "thinking", "signature")}
                _add(blocks[index], LoggedValue(texts, delta.where))
        elif kind == "content_block_stop" and inputs.get(_index(event)):
            text = inputs[_index(event)]
            try:
                blocks[_index(event)]["input"] = pydantic_core.from_json(text, allow_partial=True)  # a reply may be cut
            except ValueError as error:
                raise event.invalid(f"the end of a block whose input is JSON, which {text!r:.80} is not") from error
        elif kind == "message_delta":
            _add(whole, event.get("delta"))
    if not whole or not whole.get("stop_reason"):
        return None
    return {**whole, "content": [blocks[index] for index in sorted(blocks)]}


def _index(event: LoggedValue) -> int:
    index = event.get("index").integer()
    if index is None:
        raise event.get("index").invalid("the index of a block")
    return index
