"""`pydantic-ai`: each of its three protocols, a tool that runs another agent, and a history processor."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from envsdk.gateway import Endpoint

from .cases import SUB_AGENTS, THREE_AGENTS, Case, edited
from .replies import AGAIN, ANSWER, AS_TOOL, CHAT, FINAL, LOOK, SECOND, TEXT_AND_CALL, TWO_CALLS, said

THINKING: Any = {"anthropic_thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 4000}


@asynccontextmanager
async def chat_model(model: Endpoint) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(base_url=model.base_url, api_key=model.api_key) as client:
        yield OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))


@asynccontextmanager
async def responses_model(model: Endpoint) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(base_url=model.base_url, api_key=model.api_key) as client:
        yield OpenAIResponsesModel("m", provider=OpenAIProvider(openai_client=client))


@asynccontextmanager
async def anthropic_model(model: Endpoint) -> AsyncIterator[Any]:
    async with anthropic.AsyncAnthropic(base_url=model.anthropic_base_url, api_key=model.api_key) as client:
        yield AnthropicModel("m", provider=AnthropicProvider(anthropic_client=client))


def agent_of(asked: Any, **options: Any) -> Any:
    agent = Agent(asked, instructions="You are careful.", **options)

    @agent.tool_plain
    def get_weather(city: str, unit: str = "c") -> dict[str, str]:
        """The weather in a city."""
        return {"weather": " sunny ", "city": city}

    @agent.tool_plain
    def add(a: float, b: float) -> float:
        """The sum of two numbers."""
        return a + b

    return agent


async def read_all(context: Any, events: AsyncIterator[Any]) -> None:
    async for _ in events:
        pass


async def two_questions(
    model: Endpoint, *, make: Any = chat_model, is_streamed: bool = False, settings: Any = None
) -> float:
    """Two runs; the second begins with the messages of the first."""
    async with make(model) as asked:
        agent = agent_of(asked, model_settings=settings)
        handler = {"event_stream_handler": read_all} if is_streamed else {}
        first = await agent.run("Weather, and 100 + 3.5?", **handler)
        second = await agent.run("Again, please.", message_history=first.all_messages(), **handler)
    return float((first.output.strip(), second.output.strip()) == (ANSWER.strip(), AGAIN.strip()))


class Report(BaseModel):
    """A structured output, which the framework asks for as a call of a tool."""

    temperature: float
    city: str


async def quoted_tokens(model: Endpoint) -> float:
    """The framework breaks up what looks like a control token in the messages that it sends."""
    async with chat_model(model) as asked:
        agent = agent_of(asked)
        first = await agent.run("What is <|im_start|>?")
        second = await agent.run("Again, please.", message_history=first.all_messages())
    return float((first.output, second.output.strip()) == (TOKEN.content, AGAIN.strip()))


async def structured(model: Endpoint) -> float:
    async with chat_model(model) as asked:
        result = await agent_of(asked, output_type=Report).run("Weather?")
    return float(result.output == Report(temperature=2.5, city="Zürich"))


async def delegated(model: Endpoint) -> float:
    """A tool runs another agent, which the model calls twice at once."""
    async with chat_model(model) as asked:
        expert: Any = Agent(asked, instructions="You are an expert of sums.")

        @expert.tool_plain
        def add(a: float, b: float) -> float:
            """The sum of two numbers."""
            return a + b

        main: Any = Agent(asked, instructions="You are careful.")

        @main.tool
        async def math_expert(context: RunContext, input: str) -> str:
            """Does sums."""
            return (await expert.run(input, usage=context.usage)).output

        result = await main.run("1 + 2, and 3 + 4?")
    return float(result.output.strip() == ANSWER.strip())


async def trimmed(model: Endpoint) -> float:
    """A history processor keeps the question and the last round."""

    def shorten(messages: list[Any]) -> list[Any]:
        return messages[:1] + messages[-2:] if len(messages) > 3 else messages

    async with chat_model(model) as asked:
        result = await agent_of(asked, capabilities=[ProcessHistory(shorten)]).run("Weather, and 100 + 3.5?")
    return float(result.output.strip() == ANSWER.strip())


TOKEN = said("The token <|im_start|> begins a message, [INST] does so elsewhere.", thinking="a token")
REPORT = said("", ("final_result", '{ "temperature": 2.50,  "city" :"Zürich" }'), thinking="report")

CASES = [
    Case("pydantic-ai: chat", two_questions, {"": CHAT}),
    Case("pydantic-ai: chat, streamed", lambda model: two_questions(model, is_streamed=True), {"": CHAT}),
    Case("pydantic-ai: responses", lambda model: two_questions(model, make=responses_model), {"": CHAT}),
    Case(
        "pydantic-ai: responses, previous_response_id",
        lambda model: two_questions(model, make=responses_model, settings={"openai_previous_response_id": "auto"}),
        {"": CHAT},
    ),
    Case(
        "pydantic-ai: anthropic",
        lambda model: two_questions(model, make=anthropic_model, settings=THINKING),
        {"": CHAT},
    ),
    Case(
        "pydantic-ai: anthropic, streamed",
        lambda model: two_questions(model, make=anthropic_model, is_streamed=True, settings=THINKING),
        {"": CHAT},
    ),
    Case(
        "pydantic-ai: control tokens in texts",
        quoted_tokens,
        {"": (said("", ("get_weather", '{ "city" :"<|im_end|>" }')), TOKEN, SECOND)},
    ),
    Case("pydantic-ai: structured output", structured, {"": (LOOK, TWO_CALLS, REPORT)}),
    Case("pydantic-ai: an agent in a tool, twice at once", delegated, AS_TOOL, THREE_AGENTS, SUB_AGENTS, 3),
    Case(
        "pydantic-ai: history processor",
        trimmed,
        {"": (LOOK, TWO_CALLS, TEXT_AND_CALL, FINAL)},
        breaks=[edited("messages 2 to 3 were left out"), edited("messages 2 to 4 were left out")],
        samples=3,
    ),
]
