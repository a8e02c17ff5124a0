"""The conversations that every contender gets, as messages in the OpenAI form. All of it is English prose."""

from functools import cache
from pathlib import Path
from typing import Any, Literal

import real_models
from prose import SEARCH, Prose

from envsdk import Message, Renderer, get_renderer

from .apart import apart

Kind = Literal["tools", "users"]
"""Whether replies call a tool, which answers, or a user answers them."""
Family = Literal["qwen3", "harmony"]
RawMessage = dict[str, Any]

TOOLS = [SEARCH]
REASONING, CONTENT, QUERY, ANSWER = 100, 80, 20, 200
"""The words of a reply's reasoning, its text, and its call's argument; and the words of an answer."""
CHECKED = 10
"""The largest size at which `check_prompt` compares."""
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


def prompt_text(steps: int, kind: Kind, family: Family) -> str:
    """Return the prompt after some steps as envsdk renders it: the same as the official template does."""
    messages = [Message.from_openai(message) for message in conversation(steps, kind)]
    tokens = renderer(family).render(messages, tools=tools(kind), generation_prompt=True).tokens
    return renderer(family).tokenizer.decode(tokens)


def check_prompt(text: str, size: int, kind: Kind, family: Family = "qwen3") -> None:
    """Check that a contender renders the same prompt after step number `size`, at the smallest size.

    The texts are compared: where they are cut into tokens may differ.

    Raises:
        ValueError: If it differs, so that its cost would be that of other work.
    """
    if size > CHECKED:
        return
    texts = text, apart("prompt_text", size + 1, kind, family)
    if texts[0] != texts[1]:
        at = next((i for i, pair in enumerate(zip(*texts, strict=False)) if pair[0] != pair[1]), min(map(len, texts)))
        found, wanted = (each[max(0, at - 20) : at + 60] for each in texts)
        raise ValueError(f"its prompt differs from the template's: {found!r} instead of {wanted!r}")


def long_reply(index: int, calls: int = 2) -> RawMessage:
    """Return a reply of about 1,000 tokens: a reasoning, a text, and calls."""
    words, at = prose().words, index * 1000
    made = [
        {
            "id": f"call{number}",
            "type": "function",
            "function": {"name": "search", "arguments": {"query": words(60, start=at + 700 + 60 * number)}},
        }
        for number in range(calls)
    ]
    reasoning, content = words(500, start=at), words(200, start=at + 500)
    return {"role": "assistant", "reasoning_content": reasoning, "content": content, "tool_calls": made}


@cache
def renderer(family: Family) -> Renderer:
    """Return envsdk's renderer of a family, on its real vocabulary."""
    return get_renderer(family, real_models.FAMILIES[family]()["tokenizer"])


READ = 20
"""The replies that one repetition reads."""


def replies(family: Family) -> list[list[int]]:
    """Return the tokens of replies of about 1,000 tokens with two calls; with one in Harmony, where a call is last."""
    messages = [long_reply(index, 1 if family == "harmony" else 2) for index in range(READ)]
    return [renderer(family).reply(Message.from_openai(message)).tolist() for message in messages]


def peers_replies(family: Family) -> list[list[int]]:
    """Return the same, without loading envsdk's tokenizer into this process."""
    return apart("replies", family)


def gpt_oss_folder() -> Path:
    """Return the folder with gpt-oss's tokenizer.json, which transformers needs.

    Raises:
        FileNotFoundError: If this machine does not have it: no wheel contains it.
    """
    folder = real_models.SHARED / "tokenizers" / "gpt-oss"
    if not (folder / "tokenizer.json").is_file():
        raise FileNotFoundError("gpt-oss's tokenizer.json is only in shared/, which is missing: no wheel has it")
    return folder


def passages(count: int, starts: list[int]) -> list[str]:
    """Return `count` words from each start."""
    return [prose().words(count, start=start) for start in starts]
