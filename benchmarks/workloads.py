"""The conversations that every contender gets, as messages in the OpenAI form. All of it is English prose."""

from functools import cache
from typing import Any, Literal

from prose import SEARCH, Prose

Kind = Literal["tools", "users"]
"""Whether replies call a tool, which answers, or a user answers them."""
RawMessage = dict[str, Any]

TOOLS = [SEARCH]
REASONING, CONTENT, QUERY, ANSWER = 100, 80, 20, 200
"""The words of a reply's reasoning, its text, and its call's argument; and the words of an answer."""
SYSTEM, QUESTION = "Think first.", "Find out all about it."


@cache
def prose() -> Prose:
    """Return the text, read once."""
    return Prose()


def tools(kind: Kind) -> list[Any]:
    """Return the tools of a conversation."""
    return TOOLS if kind == "tools" else []


def start() -> list[RawMessage]:
    """Return the messages before the first reply."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]


def reply(step: int, kind: Kind) -> RawMessage:
    """Return the reply of a step, of 200 words: 100 are reasoning; with tools, 20 are the argument of a call."""
    words, at = prose().words, step * (REASONING + CONTENT + QUERY)
    message = {"role": "assistant", "reasoning_content": words(REASONING, start=at)}
    text, query = words(CONTENT, start=at + REASONING), words(QUERY, start=at + REASONING + CONTENT)
    if kind == "users":
        return {**message, "content": f"{text} {query}"}
    call = {"name": "search", "arguments": {"query": query}}
    return {**message, "content": text, "tool_calls": [{"id": call_id(step), "type": "function", "function": call}]}


def answer(step: int, kind: Kind) -> RawMessage:
    """Return the answer to the reply of a step, of 200 words: the tool's, or the user's."""
    text = prose().words(ANSWER, start=step * ANSWER + 77)
    if kind == "users":
        return {"role": "user", "content": text}
    return {"role": "tool", "content": text, "tool_call_id": call_id(step), "name": "search"}


def call_id(step: int) -> str:
    """Return the id of a step's call."""
    return f"call{step}"


def conversation(steps: int, kind: Kind) -> list[RawMessage]:
    """Return a conversation whose next message is the reply of step number `steps`."""
    messages = start()
    for step in range(steps):
        messages += [reply(step, kind), answer(step, kind)]
    return messages
