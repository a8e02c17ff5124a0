"""`crewai`: an agent with a task, and one that delegates to a coworker."""

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from shell import API_KEY, BASE_URL, MODEL, RESEARCHER, SYSTEM, TASK
from shell import shell as run

llm = LLM(model=f"openai/{MODEL}", base_url=BASE_URL, api_key=API_KEY)
shell = tool("shell")(run)
delegates = "sub-agent" in TASK
agents = [Agent(role="Worker", goal=SYSTEM, backstory=SYSTEM, llm=llm, tools=[shell], allow_delegation=delegates)]
if delegates:
    agents.append(Agent(role="Researcher", goal=RESEARCHER, backstory=RESEARCHER, llm=llm, tools=[shell]))
task = Task(description=TASK, expected_output="What was asked for.", agent=agents[0])
print(Crew(agents=agents, tasks=[task]).kickoff())
