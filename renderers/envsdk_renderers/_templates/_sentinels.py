"""The sentinel messages with which a chat template is probed.

A sentinel is a word that means nothing to any template. It begins with `STEM`, which content never contains (see
`Mask`), so wherever it occurs in a rendering, a probe wrote it.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from envsdk.messages import Message, ToolCall, ToolSchema

from ._mask import PROBE_NAME, STEM

Previous: TypeAlias = Literal["text", "reasoned", "call", "two calls", "tool"]
Following: TypeAlias = Literal["user", "tool", "tools", "tool then user", "system"]

PREVIOUS: tuple[Previous, ...] = ("text", "reasoned", "call", "two calls", "tool")
FOLLOWING: tuple[Following, ...] = ("user", "tool", "tools", "tool then user", "system")
REPLY, REASONING, CALL_CONTENT = f"{STEM}replyzq", f"{STEM}reasonzq", f"{STEM}saidzq"
"""The last word of a sentinel reply, its reasoning, and its content next to calls."""
KEY = f"{STEM.lower()}key"
QUESTION = f"{STEM}questionzq"
FIRST_CALL = f"{STEM}firstzq"
PROBE_TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": PROBE_NAME,
        "description": f"{STEM}descriptionzq",
        "parameters": {
            "type": "object",
            "properties": {KEY: {"type": "string", "description": f"{STEM}parameterzq"}},
            "required": [KEY],
        },
    },
}


def slot(index: int) -> str:
    """Return the sentinel in place of the content of message `index` of the next messages."""
    return f"{STEM}{index}slotzq"


def earlier_reply(number: int) -> str:
    """Return the last word of an earlier reply; replies with different numbers have calls with different ids."""
    return f"{STEM}past{number}zq"


def user(text: str = QUESTION) -> Message:
    """Return a user's message."""
    return Message(role="user", content=text)


def reply_of(
    names: Sequence[str] = (),
    *,
    reasoning: str | None = None,
    sentinel: str = REPLY,
    ids: Sequence[str | None] = (),
    call_content: str = "",
) -> Message:
    """Return an assistant's message that ends with the sentinel: as its text, or as the last argument of its calls.

    Args:
        names: The names of the functions that it calls.
        reasoning: Its reasoning.
        sentinel: The sentinel.
        ids: The ids of its calls.
        call_content: Its content if it calls functions.
    """
    values = [FIRST_CALL] * (len(names) - 1) + [sentinel]
    calls = [
        ToolCall(name=name, arguments={KEY: value}, id=ids[index] if ids else None)
        for index, (name, value) in enumerate(zip(names, values, strict=True) if names else ())
    ]
    content = call_content if names else sentinel
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=tuple(calls))


def results(reply: Message, count: int, first: int = 0) -> list[Message]:
    """Return results of a reply's calls, each with a slot as its content."""
    calls = reply.tool_calls or (ToolCall(name=PROBE_NAME),)
    answered = [calls[min(index, len(calls) - 1)] for index in range(count)]
    return [Message(role="tool", content=slot(first + i), name=call.name) for i, call in enumerate(answered)]


def exchange(previous: Previous, following: Following) -> tuple[Message, list[Message]]:
    """Return the reply and the next messages of a pair."""
    is_tool = following.startswith("tool")
    count = 2 if previous == "two calls" else 1 if previous == "call" else 0
    if is_tool and previous in ("reasoned", "tool"):
        count = 2 if following == "tools" else 1
    reply = reply_of([PROBE_NAME] * count, reasoning=REASONING if previous == "reasoned" else None)
    answers = results(reply, 2 if following == "tools" else 1) if is_tool else []
    if following in ("user", "tool then user"):
        answers.append(user(slot(len(answers))))
    if following == "system":
        answers = [Message(role="system", content=slot(0))]
    return reply, answers
