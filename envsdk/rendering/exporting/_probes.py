"""The conversations that are measured, and the words that mark their slots in a rendered text."""

from typing import Any

from ...messages import Message, ToolCall

SYSTEM, QUERY, CONTENT, REASONING, NEXT = (
    f"Wvq{name}qvW" for name in ("system", "query", "content", "thought", "next")
)
TOOLS, CALLS = "WvqtoolsqvW", "WvqcallsqvW"
"""The words for the list of tools, and for the calls of a reply, in a measured text."""
NAMES, KEYS, VALUES = (tuple(f"Wvq{kind}{i}qvW" for i in range(2)) for kind in ("name", "key", "value"))
PROBE, BLANK = "\n \n text \n \n", " \n"
"""Texts that show how whitespace is written, and whether a text of only whitespace counts as one."""
ROLES = ("user", "assistant", "tool", "system")
"""The roles of a message that comes next; an assistant's message with calls begins like any other of it."""
ENDS = ("end", "prompt")
"""The ends that may come next instead of a message: nothing, or the generation prompt."""
REPLIES = frozenset({"assistant", "calls"})
"""The kinds of replies: a text, and calls."""


def query() -> Message:
    """Return the question before a reply."""
    return Message(role="user", content=QUERY)


def probe_call(index: int) -> ToolCall:
    """Return a call with one argument, 0 or 1."""
    return ToolCall(name=NAMES[index], arguments={KEYS[index]: VALUES[index]}, id=f"call0000{index}")


def past(kind: str, name: str) -> list[Message]:
    """Return a conversation that ends with a message of a kind, after which `name` can come."""
    count = 2 if (kind, name) == ("tool", "tool") else 1
    calls = Message(role="assistant", tool_calls=tuple(probe_call(0) for _ in range(count)))
    match kind:
        case "user":
            return [Message(role="user", content=CONTENT)]
        case "assistant":
            return [query(), Message(role="assistant", content=CONTENT)]
        case "calls":
            return [query(), calls]
        case "tool":
            return [query(), calls, Message(role="tool", content=CONTENT, tool_call_id="call00000", name=NAMES[0])]
        case _:
            return [query(), Message(role="assistant", content="a"), Message(role="system", content=CONTENT)]


def next_message(name: Any) -> Message:
    """Return a message of a role that comes next."""
    is_tool = name == "tool"
    return Message(
        role=name,
        content=NEXT,
        tool_call_id="call00000" if is_tool else None,
        name=NAMES[0] if is_tool else None,
    )
