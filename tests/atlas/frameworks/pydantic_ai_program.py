"""`pydantic-ai`: an agent whose messages are stored, and a sub-agent as a tool."""

from pydantic_ai import Agent, ModelMessagesTypeAdapter
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from shell import API_KEY, BASE_URL, IS_RESUMED, MODEL, RESEARCHER, SESSION, SYSTEM, TASK, shell

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE_URL, api_key=API_KEY))
helper = Agent(model, tools=[shell], instructions=RESEARCHER)


async def researcher(task: str) -> str:
    """Let a sub-agent work on a task."""
    return (await helper.run(task)).output


agent = Agent(model, tools=[shell, researcher], instructions=SYSTEM)
history = ModelMessagesTypeAdapter.validate_json(SESSION.read_bytes()) if IS_RESUMED else []
result = agent.run_sync(TASK, message_history=history)
print(result.output)
SESSION.write_bytes(result.all_messages_json())
