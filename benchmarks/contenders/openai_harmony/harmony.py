"""OpenAI's own library for gpt-oss: it renders the whole conversation at each step, and reads replies."""

import json
import os
from collections.abc import Iterator
from time import process_time
from typing import Any

import openai_harmony as oh
import real_models

from benchmarks.contender import Repetition, contender
from benchmarks.workloads import QUESTION, READ, SYSTEM, RawMessage, answer, check_prompt, peers_replies, reply, tools

PACKAGES = ("openai-harmony",)


def encoding() -> oh.HarmonyEncoding:
    """Return the library's encoding of gpt-oss, of a file that it would else download."""
    os.environ.setdefault("TIKTOKEN_ENCODINGS_BASE", str(real_models.o200k_folder()))
    return oh.load_harmony_encoding(oh.HarmonyEncodingName.HARMONY_GPT_OSS)


def beginning() -> list[oh.Message]:
    """Return the system message, the developer's with its tools, and the question."""
    functions = [tool["function"] for tool in tools("tools")]
    description: Any = oh.ToolDescription  # its parameters have no types
    described = [description.new(each["name"], each["description"], each["parameters"]) for each in functions]
    developer = oh.DeveloperContent.new().with_instructions(SYSTEM).with_function_tools(described)
    return [
        oh.Message.from_role_and_content(
            oh.Role.SYSTEM, oh.SystemContent.new().with_conversation_start_date("2025-08-05")
        ),
        oh.Message.from_role_and_content(oh.Role.DEVELOPER, developer),
        oh.Message.from_role_and_content(oh.Role.USER, QUESTION),
    ]


def written(given: RawMessage) -> Iterator[oh.Message]:
    """Yield a reply, or the answer of a tool, as the library's messages."""
    if given["role"] == "tool":
        author = oh.Author.new(oh.Role.TOOL, f"functions.{given['name']}")
        answered = oh.Message.from_author_and_content(author, given["content"])
        yield answered.with_channel("commentary").with_recipient("assistant")
        return
    assistant = oh.Role.ASSISTANT
    yield oh.Message.from_role_and_content(assistant, given["reasoning_content"]).with_channel("analysis")
    yield oh.Message.from_role_and_content(assistant, given["content"]).with_channel("commentary")
    for call in given["tool_calls"]:
        function = call["function"]
        called = oh.Message.from_role_and_content(assistant, json.dumps(function["arguments"]))
        called = called.with_channel("commentary").with_recipient(f"functions.{function['name']}")
        yield called.with_content_type("<|constrain|>json")


@contender(
    "harmony-tool-turns",
    "openai-harmony",
    packages=PACKAGES,
    note="`render_conversation_for_completion` of the conversation, whose messages are its own objects from the start; "
    "without reading the reply",
)
def render(size: int) -> Repetition:
    """Render the whole conversation."""
    messages = beginning()
    for step in range(size + 1):
        messages += [*written(reply(step, "tools")), *written(answer(step, "tools"))]
    whole, library = oh.Conversation.from_messages(messages), encoding()
    tokens = library.render_conversation_for_completion(whole, oh.Role.ASSISTANT)
    check_prompt(library.decode_utf8(tokens), size, "tools", "harmony")

    def rendered() -> None:
        library.render_conversation_for_completion(whole, oh.Role.ASSISTANT)

    return rendered


@contender(
    "harmony-reply",
    "openai-harmony",
    packages=PACKAGES,
    note="`parse_messages_from_completion_tokens`; the arguments of the call stay text",
)
def read(size: int) -> Repetition:
    """Read replies."""
    given, library = peers_replies("harmony"), encoding()

    def reads() -> float:
        start = process_time()
        for tokens in given:
            library.parse_messages_from_completion_tokens(tokens, oh.Role.ASSISTANT)
        return (process_time() - start) / READ

    return reads
