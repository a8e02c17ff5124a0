"""`agno`: an agent, and a team whose leader delegates."""

from agno.agent import Agent
from agno.db.json import JsonDb
from agno.models.openai.like import OpenAILike
from agno.team import Team
from shell import API_KEY, BASE_URL, MODEL, RESEARCHER, SYSTEM, TASK, shell

options = {
    "model": OpenAILike(id=MODEL, base_url=BASE_URL, api_key=API_KEY),
    "db": JsonDb(db_path=".agent"),
    "session_id": "session",
    "add_history_to_context": True,
    "telemetry": False,
}
if "sub-agent" in TASK:
    member = Agent(name="researcher", model=options["model"], tools=[shell], instructions=RESEARCHER, telemetry=False)
    agent = Team(members=[member], instructions=SYSTEM, **options)
else:
    agent = Agent(tools=[shell], instructions=SYSTEM, **options)
print(agent.run(TASK).content)
