"""The `openai-agents` framework: tools, a handoff, and an agent as a tool."""

from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
    handoff,
    set_tracing_disabled,
)
from agents.extensions import handoff_filters
from openai import AsyncOpenAI

from envsdk.gateway import Endpoint

from .cases import SUB_AGENTS, THREE_AGENTS, TWO_AGENTS, Case, own
from .replies import AGAIN, ANSWER, AS_TOOL, CHAT, LOOK, said

set_tracing_disabled(True)


@function_tool
def get_weather(city: str, unit: str = "c") -> str:
    """The weather in a city."""
    return f" sunny in {city} \n"


@function_tool
def add(a: float, b: float) -> str:
    """The sum of two numbers."""
    return str(a + b)


def client(model: Endpoint) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=model.base_url, api_key=model.api_key)


def chat_model(asked: AsyncOpenAI) -> Any:
    return OpenAIChatCompletionsModel("m", asked)


def responses_model(asked: AsyncOpenAI) -> Any:
    return OpenAIResponsesModel("m", asked)


def main_agent(asked: Any, **options: Any) -> Any:
    return Agent(
        **{"name": "Main", "instructions": "You are careful.", "tools": [get_weather, add], **options}, model=asked
    )


def is_answer(text: Any, expected: str = ANSWER) -> bool:
    return str(text).strip() == expected.strip()


async def two_questions(
    model: Endpoint, *, make: Any = chat_model, is_streamed: bool = False, **settings: Any
) -> float:
    """Two runs; the second begins with what the first left."""
    async with client(model) as asked:
        agent = main_agent(make(asked), model_settings=ModelSettings(parallel_tool_calls=True, **settings))
        if is_streamed:
            first = Runner.run_streamed(agent, "Weather, and 100 + 3.5?")
            async for _ in first.stream_events():
                pass
        else:
            first = await Runner.run(agent, "Weather, and 100 + 3.5?")
        again = [*first.to_input_list(), {"role": "user", "content": "Again, please."}]
        second = await Runner.run(agent, again)
    return float(is_answer(first.final_output) and is_answer(second.final_output, AGAIN))


async def session(model: Endpoint) -> float:
    """Two runs that share a session, which the framework keeps."""
    async with client(model) as asked:
        agent, kept = main_agent(chat_model(asked)), SQLiteSession("s")
        first = await Runner.run(agent, "Weather, and 100 + 3.5?", session=kept)
        second = await Runner.run(agent, "Again, please.", session=kept)
        kept.close()
    return float(is_answer(first.final_output) and is_answer(second.final_output, AGAIN))


async def stored(model: Endpoint) -> float:
    """Two runs that name the response before (`previous_response_id`)."""
    async with client(model) as asked:
        agent = main_agent(responses_model(asked))
        first = await Runner.run(agent, "Weather, and 100 + 3.5?", auto_previous_response_id=True)
        second = await Runner.run(agent, "Again, please.", previous_response_id=first.last_response_id)
    return float(is_answer(first.final_output) and is_answer(second.final_output, AGAIN))


EXPERT = "You are an expert of sums."


def expert_agent(asked: AsyncOpenAI) -> Any:
    return Agent(name="Math Expert", instructions=EXPERT, tools=[add], model=chat_model(asked))


async def handed_over(model: Endpoint, *, filter: Any = None, config: RunConfig | None = None) -> float:
    """The main agent hands the conversation over to another one, which ends it."""
    async with client(model) as asked:
        main = main_agent(chat_model(asked), handoffs=[handoff(expert_agent(asked), input_filter=filter)])
        result = await Runner.run(main, "Weather, and 1 + 2?", run_config=config)
    return float(is_answer(result.final_output))


async def expert_as_tool(model: Endpoint) -> float:
    """The main agent calls another one twice at once, as a tool."""
    async with client(model) as asked:
        tool = expert_agent(asked).as_tool("math_expert", "Does sums")
        main = main_agent(chat_model(asked), tools=[get_weather, tool])
        result = await Runner.run(main, "1 + 2, and 3 + 4?")
    return float(is_answer(result.final_output))


HANDOVER = {
    "": (LOOK, said("", ("transfer_to_math_expert", "{ }"), thinking="hand over")),
    EXPERT: (said(" The expert says \n", ("add", '{"b":2,"a":1}'), thinking="sum"), said(ANSWER, thinking="done ")),
}

CASES = [
    Case("openai-agents: chat", two_questions, {"": CHAT}),
    Case("openai-agents: chat, streamed", lambda model: two_questions(model, is_streamed=True), {"": CHAT}),
    Case("openai-agents: chat, session", session, {"": CHAT}),
    Case("openai-agents: responses", lambda model: two_questions(model, make=responses_model), {"": CHAT}),
    Case(
        "openai-agents: responses, streamed",
        lambda model: two_questions(model, make=responses_model, is_streamed=True),
        {"": CHAT},
    ),
    Case(
        "openai-agents: responses, not stored",
        lambda model: two_questions(
            model, make=responses_model, store=False, response_include=["reasoning.encrypted_content"]
        ),
        {"": CHAT},
    ),
    Case("openai-agents: responses, previous_response_id", stored, {"": CHAT}),
    Case(
        "openai-agents: handoff",
        handed_over,
        HANDOVER,
        TWO_AGENTS,
        [("main/agent-1", "switch handoff", "from main")],
        samples=2,
    ),
    Case(
        "openai-agents: handoff without the calls",
        lambda model: handed_over(model, filter=handoff_filters.remove_all_tools),
        HANDOVER,
        TWO_AGENTS,
        [own("main/agent-1")],
        samples=2,
    ),
    Case(
        "openai-agents: handoff with the history in one message",
        lambda model: handed_over(model, config=RunConfig(nest_handoff_history=True)),
        HANDOVER,
        TWO_AGENTS,
        [own("main/agent-1")],
        samples=2,
    ),
    Case("openai-agents: agent as a tool, twice at once", expert_as_tool, AS_TOOL, THREE_AGENTS, SUB_AGENTS, 3),
]
