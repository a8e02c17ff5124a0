"""The requests of programs as the bodies of the three protocols, and the ids of calls in what is answered."""

import json
from collections.abc import Callable
from typing import Any

from envsdk.gateway._requests import ModelRequest


def _text(raw: dict[str, Any]) -> str:
    content = raw["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def chat_body(request: ModelRequest) -> dict[str, Any]:
    system = [] if request.system is None else [{"role": "system", "content": request.system}]
    messages = [*system, *(received.raw for received in request.messages)]
    return {"messages": messages, "tools": request.tools, "n": request.n}


def chat_ids(reply: dict[str, Any]) -> list[list[str]]:
    return [[call["id"] for call in choice["message"].get("tool_calls") or ()] for choice in reply["choices"]]


def responses_body(request: ModelRequest) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for raw in (received.raw for received in request.messages):
        if raw["role"] == "tool":
            output = {"type": "function_call_output", "call_id": raw["tool_call_id"], "output": _text(raw)}
            items.append(output)
            continue
        reasoning, reply = raw.get("reasoning_content"), raw.get("reply_id")
        named = {"id": f"msg_{reply}"} if reasoning and reply else {}
        if reasoning:
            content = [{"type": "reasoning_text", "text": reasoning}]
            items.append({"type": "reasoning", "id": f"rs_{reply}", "summary": [], "content": content})
        if _text(raw).strip():
            items.append({"role": raw["role"], "content": _text(raw), **named})
        calls = raw.get("tool_calls", ())
        items += [{"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls]
    tools = [{"type": "function", **tool["function"]} for tool in request.tools]
    return {"input": items, "tools": tools, "instructions": request.system, "store": False}


def response_ids(reply: dict[str, Any]) -> list[list[str]]:
    return [[item["call_id"] for item in reply["output"] if item["type"] == "function_call"]]


def messages_body(request: ModelRequest) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for raw in (received.raw for received in request.messages):
        if raw["role"] == "tool":
            if not messages or messages[-1]["role"] != "user" or isinstance(messages[-1]["content"], str):
                messages.append({"role": "user", "content": []})
            result = {"type": "tool_result", "tool_use_id": raw["tool_call_id"], "content": _text(raw)}
            messages[-1]["content"].append(result)
            continue
        uses = [
            {"type": "tool_use", "id": call["id"], "name": name, "input": json.loads(arguments)}
            for call in raw.get("tool_calls", ())
            for name, arguments in [call["function"].values()]
        ]
        thinking = [
            {"type": "thinking", "thinking": raw["reasoning_content"], "signature": f"envsdk_{raw.get('reply_id')}"}
            for _ in range(bool(raw.get("reasoning_content")))
        ]
        text = [{"type": "text", "text": _text(raw)}] if _text(raw).strip() else []
        blocks = [*thinking, *text, *uses]
        messages.append({"role": raw["role"], "content": blocks if thinking or uses else _text(raw)})
    tools = [{"name": tool["function"]["name"], "input_schema": {"type": "object"}} for tool in request.tools]
    system = {} if request.system is None else {"system": request.system}
    return {"messages": messages, "tools": tools, "max_tokens": 10_000, **system}


def message_ids(reply: dict[str, Any]) -> list[list[str]]:
    return [[block["id"] for block in reply["content"] if block["type"] == "tool_use"]]


PROTOCOLS: dict[str, tuple[str, Callable[[ModelRequest], dict[str, Any]], Callable[[Any], list[list[str]]]]] = {
    "chat": ("/chat/completions", chat_body, chat_ids),
    "responses": ("/responses", responses_body, response_ids),
    "anthropic": ("/messages", messages_body, message_ids),
}
"""The route of each protocol, how its bodies are written, and how the ids of the calls of each reply are read."""
