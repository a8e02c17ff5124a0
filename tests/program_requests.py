"""Requests of programs, and a session whose model answers what a test says."""

import copy
import json
from collections.abc import Sequence
from itertools import count
from typing import Any

from envsdk import Message, ToolCall
from envsdk.gateway._conversations import Continues, Conversations, Opens, Repeats
from envsdk.gateway._requests import ModelReply, ModelRequest, ReceivedMessage

SYSTEM = "You are a careful agent."
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("look", "add")]
OTHER_TOOLS = [{"type": "function", "function": {"name": "math", "parameters": {}}}]


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any = "", *calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {}), **more}


def result(call: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": text}


def as_sent(message: Message) -> dict[str, Any]:
    """A reply as a client sends it back unchanged, as JSON."""
    data = message.to_openai()
    for call in data.get("tool_calls", ()):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return data


def to_request(
    messages: Sequence[dict[str, Any]],
    *,
    system: str | None = SYSTEM,
    tools: Sequence[Any] = TOOLS,
    links: dict[int, str] | None = None,
    **fields: Any,
) -> ModelRequest:
    messages = copy.deepcopy(list(messages))  # every request is parsed anew
    received = [
        ReceivedMessage(
            Message.from_openai({key: value for key, value in message.items() if key != "reply_id"}),
            message,
            (links or {}).get(i),
        )
        for i, message in enumerate(messages)
    ]
    fields["headers"] = {name.lower(): value for name, value in fields.get("headers", {}).items()}
    body = {"messages": messages, "system": system, "tools": list(tools)}
    return ModelRequest(received, system=system, tools=list(tools), body=body, **fields)


class Session:
    """A session whose model answers what the test says."""

    def __init__(self, **options: Any) -> None:
        self.conversations = Conversations(**options)
        self._ids = count(1)

    def place(self, messages: Sequence[dict[str, Any]], **options: Any) -> Continues | Opens | Repeats:
        self.request = to_request(messages, **options)
        return self.conversations.place(self.request)

    def reply(
        self, text: str = "", calls: Sequence[tuple[str, dict[str, Any]]] = (), reasoning: str = "Why? Because."
    ) -> Message:
        made = [ToolCall(name=name, arguments=given, id=f"call_{next(self._ids):06d}") for name, given in calls]
        return Message(role="assistant", content=text, tool_calls=tuple(made), reasoning=reasoning)

    def answer(self, *messages: Message, request: ModelRequest | None = None) -> None:
        replies = [ModelReply(f"reply_{next(self._ids):06d}", message, "stop", 0, ()) for message in messages]
        self.last_id = replies[0].id
        self.conversations.answer(request or self.request, replies)

    def ask(self, messages: Sequence[dict[str, Any]], text: str = "", calls: Any = (), **options: Any) -> Message:
        """Place a request and answer it."""
        self.placed = self.place(messages, **options)
        message = self.reply(text, calls)
        self.answer(message)
        return message
