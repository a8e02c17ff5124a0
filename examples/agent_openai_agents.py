"""An agent written with OpenAI's Agents SDK.

Run it with `python examples/agent_openai_agents.py`; `pip install 'envsdk[gateway]' openai-agents` has what it needs.
"""
# pyright: basic, reportMissingImports=false

import agents
from agents.exceptions import AgentsException
from openai import AsyncOpenAI
from prices import SYSTEM, Prices, show

from envsdk.gateway import Endpoint

agents.set_tracing_disabled(True)


class Agent(Prices):
    """An agent with one tool."""

    async def run(self, model: Endpoint) -> float:
        """Run the agent."""
        question = self.draw()

        @agents.function_tool
        def price(item: str) -> str:
            """Look up a price."""
            return self.look_up(item)

        async with AsyncOpenAI(base_url=model.base_url, api_key=model.api_key) as client:
            chat = agents.OpenAIChatCompletionsModel(model.model, client)
            agent = agents.Agent(name="Prices", instructions=SYSTEM, tools=[price], model=chat)
            try:
                result = await agents.Runner.run(agent, question)
            except AgentsException:  # the model called a tool that does not exist
                return 0.0
        return self.grade(result.final_output)


if __name__ == "__main__":
    show(Agent())
