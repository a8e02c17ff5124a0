"""Requests in the three protocols: fixed bodies, those of random programs, and the ids of calls in the answers."""

import json
import time
from collections.abc import Callable
from typing import Any

from envsdk.gateway._requests import ModelRequest

ROUTES = {"chat": "/chat/completions", "responses": "/responses", "anthropic": "/messages"}
"""The route of each protocol, after /v1."""


def body_of(protocol: str, said: Any, **fields: Any) -> dict[str, Any]:
    """The body of a request with these messages, or with a question."""
    messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
    more = {"max_tokens": 100_000} if protocol == "anthropic" else {}
    return {"model": "m", ("input" if protocol == "responses" else "messages"): messages, **more, **fields}


def text_of(protocol: str, reply: dict[str, Any]) -> str:
    """The content of the reply in the body of a response."""
    if protocol == "chat":
        return reply["choices"][0]["message"]["content"]
    if protocol == "responses":
        return next(item for item in reply["output"] if item["type"] == "message")["content"][0]["text"]
    return next(block for block in reply["content"] if block["type"] == "text")["text"]


def check_error(protocol: str, body: dict[str, Any]) -> str:
    """Check that an error has its protocol's form, and return its message."""
    if protocol == "anthropic":
        assert body["type"] == "error" and set(body["error"]) >= {"type", "message"}
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]["message"]


def until(condition: Callable[[], Any], timeout_s: float = 600.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


FUNCTION: dict[str, Any] = {
    "name": "add",
    "description": "Add.",
    "parameters": {"type": "object", "properties": {"a": {}}},
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {
        "model": "m",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "ann"},
            {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "3"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "parallel_tool_calls": False,
        "stop": ["END"],
        "max_tokens": 5,
        "n": 2,
        "logprobs": True,
        "temperature": 0.5,
        "response_format": {"type": "text"},
        "stream": True,
        "stream_options": {"include_usage": True},
        "metadata": {"a": "b"},
    },
    "responses": {
        "model": "m",
        "instructions": "s",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {
                "type": "reasoning",
                "id": "rs_r0",
                "summary": [{"type": "summary_text", "text": "r"}],
                "content": None,
                "encrypted_content": "envsdk_r0",
            },
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_r0",
                "status": "completed",
                "content": [{"type": "output_text", "text": "x", "annotations": []}],
            },
            {"type": "function_call", "id": "fc_r0_0", "call_id": "call_1", "name": "add", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "call_1", "output": "3"},
        ],
        "tools": [{"type": "function", **FUNCTION, "strict": True}],
        "tool_choice": "required",
        "max_output_tokens": 5,
        "include": ["reasoning.encrypted_content"],
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low", "summary": "auto"},
        "store": False,
        "stream": True,
    },
    "responses with other tools": {
        "model": "m",
        "input": [
            {
                "type": "additional_tools",
                "role": "developer",
                "tools": [
                    {"type": "namespace", "name": "ns", "description": "d", "tools": [{"type": "custom", "name": "f"}]}
                ],
            },
            {"type": "message", "role": "user", "content": "Hi"},
            {
                "type": "custom_tool_call",
                "id": "ctc_r0_0",
                "call_id": "c1",
                "name": "f",
                "namespace": "ns",
                "input": "x",
            },
            {
                "type": "local_shell_call",
                "id": "lsh_r0_1",
                "call_id": "c2",
                "action": {"type": "exec", "command": ["a"]},
            },
            {"type": "apply_patch_call", "call_id": "c3", "operation": {"type": "delete_file", "path": "a"}},
            {"type": "tool_search_call", "call_id": "c4", "execution": "client", "arguments": {"query": "x"}},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "x"}]},
            {"type": "local_shell_call_output", "id": "c2", "output": "x"},
            {"type": "apply_patch_call_output", "call_id": "c3", "status": "failed", "output": "x"},
            {"type": "tool_search_output", "call_id": "c4", "tools": [{"type": "function", **FUNCTION}]},
            {"type": "web_search_call", "id": "ws_1", "action": {}},
            {"type": "agent_message", "content": [{"type": "encrypted_content", "encrypted_content": "x"}]},
        ],
        "tools": [
            {"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
            {"type": "local_shell"},
            {"type": "shell", "environment": {"type": "local"}},
            {"type": "apply_patch"},
            {"type": "tool_search", "execution": "client", "parameters": FUNCTION["parameters"]},
            {"type": "mcp", "server_label": "x"},
        ],
    },
    "google": {
        "systemInstruction": {"parts": [{"text": "s"}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Hi"}]},
            {
                "role": "model",
                "parts": [
                    {"text": "r", "thought": True},
                    {"text": "x"},
                    {"functionCall": {"name": "add", "args": {"a": 1}}, "thoughtSignature": "ZW52c2RrX3Iw"},
                ],
            },
            {
                "role": "user",
                "parts": [{"functionResponse": {"name": "add", "response": {"result": 3}}}, {"text": "So"}],
            },
        ],
        "tools": [{"functionDeclarations": [FUNCTION]}, {"googleSearch": {}}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["add"]}},
        "generationConfig": {
            "temperature": 0.5,
            "topK": 40.0,
            "maxOutputTokens": 5,
            "stopSequences": ["END"],
            "candidateCount": 2,
            "responseLogprobs": True,
            "thinkingConfig": {"include_thoughts": True},
        },
        "safetySettings": [{"category": "x", "threshold": "y"}],
    },
    "anthropic": {
        "model": "m",
        "max_tokens": 5,
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "r", "signature": "envsdk_r0"},
                    {"type": "text", "text": "x"},
                    {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "3"}]},
                    {"type": "text", "text": "Go on"},
                ],
            },
        ],
        "tools": [{"name": "add", "description": "Add.", "input_schema": FUNCTION["parameters"]}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "stop_sequences": ["END"],
        "temperature": 0.5,
        "stream": True,
    },
}
"""A request in each protocol, with most of what it may have."""


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
