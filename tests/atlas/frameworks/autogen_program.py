"""`autogen`: an assistant whose state is stored, and a sub-agent as a tool."""

import asyncio
import json

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.tools import AgentTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from shell import API_KEY, BASE_URL, IS_RESUMED, MODEL, RESEARCHER, SESSION, SYSTEM, TASK, shell

INFO = {"vision": False, "function_calling": True, "json_output": True, "structured_output": True, "family": "unknown"}


async def main() -> None:
    client = OpenAIChatCompletionClient(model=MODEL, base_url=BASE_URL, api_key=API_KEY, model_info=INFO)
    options = {"model_client": client, "max_tool_iterations": 9}
    researcher = AssistantAgent("researcher", tools=[shell], system_message=RESEARCHER, **options)
    agent = AssistantAgent("worker", tools=[shell, AgentTool(researcher)], system_message=SYSTEM, **options)
    if IS_RESUMED:
        await agent.load_state(json.loads(SESSION.read_text()))
    print((await agent.run(task=TASK)).messages[-1].to_text())
    SESSION.write_text(json.dumps(await agent.save_state()))


asyncio.run(main())
