"""`langchain` and `langgraph`: agents in three protocols, trimmed and summarized histories, and a sub-agent."""

from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import (
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    SummarizationMiddleware,
    before_model,
)
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, RemoveMessage, SystemMessage, trim_messages
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import ToolNode, tools_condition

from envsdk.gateway import Endpoint

from .cases import SUB_AGENTS, THREE_AGENTS, Case, edited, own
from .replies import AGAIN, ANSWER, AS_TOOL, CHAT, FINAL, LOOK, TEXT_AND_CALL, TWO_CALLS, said

FIRST, SECOND = HumanMessage("Weather, and 100 + 3.5?"), HumanMessage("Again, please.")


@tool
def get_weather(city: str, unit: str = "c") -> str:
    """The weather in a city."""
    return f" sunny in {city} \n"


@tool
def add(a: float, b: float) -> dict:
    """The sum of two numbers."""
    return {"sum": a + b}


TOOLS = [get_weather, add]


def chat_model(model: Endpoint, **options: Any) -> Any:
    return ChatOpenAI(model="m", base_url=model.base_url, api_key=model.api_key, **options)


def responses_model(model: Endpoint, **options: Any) -> Any:
    return chat_model(model, use_responses_api=True, **options)


def anthropic_model(model: Endpoint) -> Any:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    return ChatAnthropic(
        model="m", base_url=model.anthropic_base_url, api_key=model.api_key, thinking=thinking, max_tokens=4000
    )


def text_of(message: Any) -> str:
    return message.text.strip()


def two_questions(
    model: Endpoint, *, make: Any = chat_model, is_streamed: bool = False, middleware: Any = (), **options: Any
) -> float:
    """`create_agent` with a checkpoint: the second question is put to the same thread."""
    agent = create_agent(
        make(model, **options),
        TOOLS,
        system_prompt="You are careful.",
        middleware=middleware,
        checkpointer=InMemorySaver(),
    )
    config: Any = {"configurable": {"thread_id": "1"}, "recursion_limit": 60}
    answers = []
    for question in (FIRST, SECOND):
        if is_streamed:
            for _ in agent.stream({"messages": [question]}, config, stream_mode="messages"):
                pass
        else:
            agent.invoke({"messages": [question]}, config)
        answers.append(text_of(agent.get_state(config).values["messages"][-1]))
    return float(answers == [ANSWER.strip(), AGAIN.strip()])


def trimmed(model: Endpoint) -> float:
    """A graph of its own, whose node sends the system message and the last messages that fit (`trim_messages`)."""
    asked = chat_model(model).bind_tools(TOOLS)

    def call_model(state: Any) -> Any:
        shown = trim_messages(
            state["messages"],
            strategy="last",
            max_tokens=5,
            token_counter=len,
            include_system=True,
            allow_partial=False,
        )
        return {"messages": [asked.invoke(shown)]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", call_model)
    graph.add_node("tools", ToolNode(TOOLS))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    state = graph.compile().invoke({"messages": [SystemMessage("You are careful."), FIRST]})
    return float(text_of(state["messages"][-1]) == ANSWER.strip())


@before_model
def keep_first_and_last(state: Any, runtime: Any) -> Any:
    """Keep the question and the last three messages, for good."""
    messages = state["messages"]
    if len(messages) <= 4:
        return None
    return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), messages[0], *messages[-3:]]}


def removed(model: Endpoint) -> float:
    return two_questions(model, middleware=[keep_first_and_last])


def cleared(model: Endpoint) -> float:
    """Old results of tools are replaced by a placeholder."""
    return two_questions(model, middleware=[ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=10, keep=1)])])


def summarized(model: Endpoint) -> float:
    """Old messages are replaced by a summary, for which the framework asks the same model."""
    summarizer = SummarizationMiddleware(chat_model(model), trigger=("messages", 7), keep=("messages", 3))
    return two_questions(model, middleware=[summarizer])


def delegated(model: Endpoint) -> float:
    """A tool runs another agent; both calls of it run in threads, at once."""
    expert = create_agent(chat_model(model), [add], system_prompt="You are an expert of sums.")

    @tool
    def math_expert(input: str) -> str:
        """Does sums."""
        return text_of(expert.invoke({"messages": [HumanMessage(input)]})["messages"][-1])

    main = create_agent(chat_model(model), [math_expert], system_prompt="You are careful.")
    return float(
        text_of(main.invoke({"messages": [HumanMessage("1 + 2, and 3 + 4?")]})["messages"][-1]) == ANSWER.strip()
    )


SUMMARIES = (
    said("The user asked for the weather and for a sum; the weather was sunny.", thinking="sum up"),
    said("The user asked for the weather, which was sunny, and for a sum, which was 103.5.", thinking="again"),
)

CASES = [
    Case("langchain: chat", two_questions, {"": CHAT}),
    Case("langchain: chat, streamed", lambda model: two_questions(model, is_streamed=True), {"": CHAT}),
    Case("langchain: responses", lambda model: two_questions(model, make=responses_model), {"": CHAT}),
    Case(
        "langchain: responses, previous_response_id",
        lambda model: two_questions(model, make=responses_model, use_previous_response_id=True),
        {"": CHAT},
    ),
    Case(
        "langchain: responses, not stored",
        lambda model: two_questions(
            model,
            make=responses_model,
            output_version="v1",
            store=False,
            include=["reasoning.encrypted_content"],
        ),
        {"": CHAT},
    ),
    Case("langchain: anthropic", lambda model: two_questions(model, make=anthropic_model), {"": CHAT}),
    Case(
        "langchain: anthropic, streamed",
        lambda model: two_questions(model, make=anthropic_model, is_streamed=True),
        {"": CHAT},
    ),
    Case(
        "langgraph: trim_messages",
        trimmed,
        {"": (LOOK, TWO_CALLS, TEXT_AND_CALL, FINAL)},
        breaks=[edited("messages 1 to 2 were left out")] * 2,
        samples=3,
    ),
    Case(
        "langchain: messages removed",
        removed,
        {"": CHAT},
        breaks=[edited("messages 2 to 3 were left out")] * 3,
        samples=4,
    ),
    Case(
        "langchain: results cleared",
        cleared,
        {"": CHAT},
        breaks=[edited("message 3 (tool) differs"), edited("message 6 (tool) differs")],
        samples=3,
    ),
    Case(
        "langchain: summarized",
        summarized,
        {"Context Extraction Assistant": SUMMARIES, "": CHAT},
        {"main": "main", "main/side-1": "side", "main/side-2": "side"},
        [
            own("main/side-1"),
            edited("compacted: messages 1 to 3 were replaced by 1"),
            own("main/side-2"),
            edited("compacted: messages 1 to 4 were replaced by 1"),
        ],
        samples=5,
    ),
    Case("langchain: an agent in a tool, twice at once", delegated, AS_TOOL, THREE_AGENTS, SUB_AGENTS, 3),
]
