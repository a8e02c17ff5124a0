"""The `anthropic` package: a loop of calls, and its own tool runner."""

import json
from typing import Any

import anthropic

from envsdk.gateway import Endpoint

from .cases import Case
from .replies import AGAIN, ANSWER, CHAT, FINAL, LOOK, TEXT_AND_CALL, TOOLS, TWO_CALLS, call

QUESTIONS = ("Weather, and 100 + 3.5?", "Again, please.")
OPTIONS: Any = {
    "model": "m",
    "max_tokens": 4000,
    "system": [{"type": "text", "text": "You are careful.", "cache_control": {"type": "ephemeral"}}],
    "tools": [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]} for tool in TOOLS
    ],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
}


def results(content: Any) -> list[Any]:
    return [
        {"type": "tool_result", "tool_use_id": block.id, "content": call(block.name, json.dumps(block.input))}
        for block in content
        if block.type == "tool_use"
    ]


def with_cache_mark(messages: list[Any]) -> list[Any]:
    """Mark the end of the last message, as clients do that let the server cache what precedes it."""
    *before, last = messages
    content = [{"type": "text", "text": last["content"]}] if isinstance(last["content"], str) else last["content"]
    return [
        *before,
        {**last, "content": [*content[:-1], {**content[-1], "cache_control": {"type": "ephemeral"}}]},
    ]


def chat(model: Endpoint, *, is_streamed: bool = False) -> float:
    """Two questions. What a message contains is sent back as it came; the cache mark moves on with each request."""
    answers = []
    messages: list[Any] = []
    with anthropic.Anthropic(base_url=model.anthropic_base_url, api_key=model.api_key) as client:
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            while True:
                request = {**OPTIONS, "messages": with_cache_mark(messages)}
                if is_streamed:
                    with client.messages.stream(**request) as stream:
                        reply = stream.get_final_message()
                else:
                    reply = client.messages.create(**request)
                messages.append({"role": "assistant", "content": reply.content})
                if reply.stop_reason != "tool_use":
                    break
                messages.append({"role": "user", "content": results(reply.content)})
            answers.append("".join(block.text for block in reply.content if block.type == "text").strip())
    return float(answers == [ANSWER.strip(), AGAIN.strip()])


async def chat_async(model: Endpoint, *, is_streamed: bool = False) -> float:
    """The same with the asynchronous client; only the text and the calls are sent back."""
    answers = []
    messages: list[Any] = []
    async with anthropic.AsyncAnthropic(base_url=model.anthropic_base_url, api_key=model.api_key) as client:
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            while True:
                if is_streamed:
                    async with client.messages.stream(messages=messages, **OPTIONS) as stream:
                        reply = await stream.get_final_message()
                else:
                    reply = await client.messages.create(messages=messages, **OPTIONS)
                content = [block for block in reply.content if block.type in ("text", "tool_use")]
                messages.append({"role": "assistant", "content": content})
                if reply.stop_reason != "tool_use":
                    break
                messages.append({"role": "user", "content": results(reply.content)})
            answers.append("".join(block.text for block in reply.content if block.type == "text").strip())
    return float(answers == [ANSWER.strip(), AGAIN.strip()])


def tool_runner(model: Endpoint) -> float:
    """The package runs the tools itself."""

    @anthropic.beta_tool
    def get_weather(city: str, unit: str = "c") -> str:
        """The weather in a city."""
        return f" sunny in {city} \n"

    @anthropic.beta_tool
    def add(a: float, b: float) -> str:
        """The sum of two numbers."""
        return str(a + b)

    with anthropic.Anthropic(base_url=model.anthropic_base_url, api_key=model.api_key) as client:
        runner = client.beta.messages.tool_runner(
            model="m",
            max_tokens=4000,
            tools=[get_weather, add],
            messages=[{"role": "user", "content": QUESTIONS[0]}],
            thinking={"type": "enabled", "budget_tokens": 1024},
        )
        last = runner.until_done()
    return float("".join(block.text for block in last.content if block.type == "text").strip() == ANSWER.strip())


CASES = [
    Case("anthropic: messages", chat, {"": CHAT}),
    Case("anthropic: messages, streamed", lambda model: chat(model, is_streamed=True), {"": CHAT}),
    Case("anthropic: messages, async, without thinking blocks", chat_async, {"": CHAT}),
    Case(
        "anthropic: messages, async, streamed, without thinking blocks",
        lambda model: chat_async(model, is_streamed=True),
        {"": CHAT},
    ),
    Case("anthropic: tool runner", tool_runner, {"": (LOOK, TWO_CALLS, TEXT_AND_CALL, FINAL)}),
]
