"""`haystack`: an agent whose messages are stored, and a sub-agent as a tool."""

import json

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret
from shell import API_KEY, BASE_URL, IS_RESUMED, MODEL, RESEARCHER, SESSION, SYSTEM, TASK
from shell import shell as run


def generator() -> OpenAIChatGenerator:
    return OpenAIChatGenerator(model=MODEL, api_base_url=BASE_URL, api_key=Secret.from_token(API_KEY))


shell = tool(run)


@tool
def researcher(task: str) -> str:
    """Let a sub-agent work on a task."""
    agent = Agent(chat_generator=generator(), tools=[shell], system_prompt=RESEARCHER)
    return agent.run([ChatMessage.from_user(task)])["messages"][-1].text or ""


messages = [ChatMessage.from_dict(each) for each in json.loads(SESSION.read_text())] if IS_RESUMED else []
system = [] if IS_RESUMED else [ChatMessage.from_system(SYSTEM)]
agent = Agent(chat_generator=generator(), tools=[shell, researcher])
result = agent.run([*system, *messages, ChatMessage.from_user(TASK)])
print(result["messages"][-1].text)
SESSION.write_text(json.dumps([message.to_dict() for message in result["messages"]]))
