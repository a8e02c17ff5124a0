"""`strands`: an agent with a session in files, and a sub-agent as a tool."""

from shell import API_KEY, BASE_URL, MODEL, RESEARCHER, SYSTEM, TASK
from shell import shell as run
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.session.file_session_manager import FileSessionManager

model = OpenAIModel(client_args={"base_url": BASE_URL, "api_key": API_KEY}, model_id=MODEL)
shell = tool(run)


@tool
def researcher(task: str) -> str:
    """Let a sub-agent work on a task.

    Args:
        task: The task.
    """
    return str(Agent(model=model, tools=[shell], system_prompt=RESEARCHER, callback_handler=None)(task))


session = FileSessionManager(session_id="session", storage_dir=".agent")
agent = Agent(
    model=model,
    tools=[shell, researcher],
    system_prompt=SYSTEM,
    session_manager=session,
    agent_id="main",
    callback_handler=None,
)
print(agent(TASK))
