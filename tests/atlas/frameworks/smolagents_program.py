"""`smolagents`: an agent that calls tools, and a managed agent."""

from shell import API_KEY, BASE_URL, MODEL, RESEARCHER, TASK
from shell import shell as run
from smolagents import OpenAIModel, ToolCallingAgent, tool

model = OpenAIModel(model_id=MODEL, api_base=BASE_URL, api_key=API_KEY)
shell = tool(run)
helper = ToolCallingAgent([shell], model, name="researcher", description=RESEARCHER, verbosity_level=0)
managed = [helper] if "sub-agent" in TASK else []
print(ToolCallingAgent([shell], model, managed_agents=managed, verbosity_level=0).run(TASK))
