"""`openai-agents`: an agent with a session in a database, and a sub-agent as a tool; through Responses."""

from agents import Agent, Runner, SQLiteSession, function_tool
from shell import MODEL, RESEARCHER, SYSTEM, TASK
from shell import shell as run

shell = function_tool(run)
helper = Agent("helper", instructions=RESEARCHER, tools=[shell], model=MODEL)
researcher = helper.as_tool("researcher", "Let a sub-agent work on a task.")
agent = Agent("worker", instructions=SYSTEM, tools=[shell, researcher], model=MODEL)
session = SQLiteSession("session", ".agent/session.db")
print(Runner.run_sync(agent, TASK, session=session, max_turns=60).final_output)
