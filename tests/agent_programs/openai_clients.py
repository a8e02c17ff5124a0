"""The `openai` package: a loop of calls, as its documentation writes it."""

from typing import Any

import openai
from openai.lib.streaming.chat import ChatCompletionStreamState

from envsdk.gateway import Endpoint

from .cases import Case
from .replies import AGAIN, ANSWER, CHAT, TOOLS, call

TOOLS_OF_CHAT: Any = [{"type": "function", "function": tool} for tool in TOOLS]
TOOLS_OF_RESPONSES: Any = [{"type": "function", "strict": False, **tool} for tool in TOOLS]
FIRST: Any = [{"role": "system", "content": "You are careful."}, {"role": "user", "content": "Weather, and 100 + 3.5?"}]
SECOND = {"role": "user", "content": "Again, please."}
OPTIONS: Any = {"model": "m", "tools": TOOLS_OF_CHAT}


def client(model: Endpoint) -> openai.OpenAI:
    return openai.OpenAI(base_url=model.base_url, api_key=model.api_key)


def results(calls: Any) -> list[Any]:
    return [
        {"role": "tool", "tool_call_id": one.id, "content": call(one.function.name, one.function.arguments)}
        for one in calls
    ]


def chat(model: Endpoint, *, ask: Any) -> float:
    """Two questions, in Chat Completions: the client appends the message objects that it gets."""
    with client(model) as asked:
        messages = [*FIRST]
        answers = []
        for question in (None, SECOND):
            messages += [question] if question else []
            while True:
                message = ask(asked, messages)
                messages.append(message)
                if not message.tool_calls:
                    break
                messages += results(message.tool_calls)
            answers.append(message.content)
    return float([text.strip() for text in answers] == [ANSWER.strip(), AGAIN.strip()])


def plain(asked: openai.OpenAI, messages: Any) -> Any:
    return asked.chat.completions.create(messages=messages, **OPTIONS).choices[0].message


def streamed(asked: openai.OpenAI, messages: Any) -> Any:
    with asked.chat.completions.stream(messages=messages, **OPTIONS) as stream:
        return stream.get_final_completion().choices[0].message


async def chat_async(model: Endpoint, *, ask: Any) -> float:
    """The same with the asynchronous client."""
    async with openai.AsyncOpenAI(base_url=model.base_url, api_key=model.api_key) as asked:
        messages = [*FIRST]
        answers = []
        for question in (None, SECOND):
            messages += [question] if question else []
            while True:
                message = await ask(asked, messages)
                messages.append(message)
                if not message.tool_calls:
                    break
                messages += results(message.tool_calls)
            answers.append(message.content)
    return float([text.strip() for text in answers] == [ANSWER.strip(), AGAIN.strip()])


async def plain_async(asked: openai.AsyncOpenAI, messages: Any) -> Any:
    return (await asked.chat.completions.create(messages=messages, **OPTIONS)).choices[0].message


async def chunks_async(asked: openai.AsyncOpenAI, messages: Any) -> Any:
    """`stream=True`, put together chunk by chunk."""
    state = ChatCompletionStreamState()
    stream = await asked.chat.completions.create(
        messages=messages, stream=True, stream_options={"include_usage": True}, **OPTIONS
    )
    async for chunk in stream:
        state.handle_chunk(chunk)
    return state.get_final_completion().choices[0].message


def responses(model: Endpoint, *, is_stored: bool, is_streamed: bool = False) -> float:
    """Two questions, in Responses: stored ones name the one before, others bring the whole input with each request."""
    options: Any = {"model": "m", "instructions": "You are careful.", "tools": TOOLS_OF_RESPONSES}
    history: list[Any] = []
    answers = []
    previous = None
    with client(model) as asked:
        for question in (FIRST[1], SECOND):
            added: list[Any] = [question]
            while True:
                history += added
                if is_stored:
                    request = {**options, "input": added, "previous_response_id": previous}
                else:
                    include = ["reasoning.encrypted_content"]
                    request = {**options, "input": history, "store": False, "include": include}
                if is_streamed:
                    with asked.responses.stream(**{k: v for k, v in request.items() if v is not None}) as stream:
                        response = stream.get_final_response()
                else:
                    response = asked.responses.create(**request)
                previous = response.id
                history += response.output
                calls = [item for item in response.output if item.type == "function_call"]
                if not calls:
                    break
                added = [
                    {"type": "function_call_output", "call_id": one.call_id, "output": call(one.name, one.arguments)}
                    for one in calls
                ]
            answers.append(response.output_text.strip())
    return float(answers == [ANSWER.strip(), AGAIN.strip()])


async def responses_async(model: Endpoint) -> float:
    """The asynchronous client, in chunks; only the last response's output is sent back, without its reasoning."""
    options: Any = {"model": "m", "instructions": "You are careful.", "tools": TOOLS_OF_RESPONSES, "store": False}
    history: list[Any] = []
    answers = []
    async with openai.AsyncOpenAI(base_url=model.base_url, api_key=model.api_key) as asked:
        for question in (FIRST[1], SECOND):
            history.append(question)
            while True:
                async for event in await asked.responses.create(input=history, stream=True, **options):
                    if event.type == "response.completed":
                        response = event.response
                history += [item for item in response.output if item.type != "reasoning"]
                calls = [item for item in response.output if item.type == "function_call"]
                if not calls:
                    break
                history += [
                    {"type": "function_call_output", "call_id": one.call_id, "output": call(one.name, one.arguments)}
                    for one in calls
                ]
            answers.append(response.output_text.strip())
    return float(answers == [ANSWER.strip(), AGAIN.strip()])


CASES = [
    Case("openai: chat", lambda model: chat(model, ask=plain), {"": CHAT}),
    Case("openai: chat, streamed", lambda model: chat(model, ask=streamed), {"": CHAT}),
    Case("openai: chat, async", lambda model: chat_async(model, ask=plain_async), {"": CHAT}),
    Case("openai: chat, async, in chunks", lambda model: chat_async(model, ask=chunks_async), {"": CHAT}),
    Case("openai: responses, stored", lambda model: responses(model, is_stored=True), {"": CHAT}),
    Case(
        "openai: responses, stored, streamed",
        lambda model: responses(model, is_stored=True, is_streamed=True),
        {"": CHAT},
    ),
    Case("openai: responses, not stored", lambda model: responses(model, is_stored=False), {"": CHAT}),
    Case(
        "openai: responses, not stored, streamed",
        lambda model: responses(model, is_stored=False, is_streamed=True),
        {"": CHAT},
    ),
    Case("openai: responses, async, in chunks, without reasoning", responses_async, {"": CHAT}),
]
