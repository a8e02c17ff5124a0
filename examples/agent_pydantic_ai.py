"""An agent written with Pydantic AI.

Run it with `python examples/agent_pydantic_ai.py`; `pip install 'envsdk[gateway]' pydantic-ai` has what it needs.
"""
# pyright: basic, reportMissingImports=false

from openai import AsyncOpenAI
from prices import SYSTEM, Prices, show
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from envsdk.gateway import Endpoint


class Agent(Prices):
    """An agent with one tool."""

    async def run(self, model: Endpoint) -> float:
        """Run the agent."""
        question = self.draw()
        async with AsyncOpenAI(base_url=model.base_url, api_key=model.api_key) as client:
            chat = OpenAIChatModel(model.model, provider=OpenAIProvider(openai_client=client))
            agent = PydanticAgent(chat, instructions=SYSTEM)

            @agent.tool_plain
            def price(item: str) -> str:
                """Look up a price."""
                return self.look_up(item)

            try:
                result = await agent.run(question)
            except UnexpectedModelBehavior:  # the model called a tool that does not exist, again and again
                return 0.0
        return self.grade(result.output)


if __name__ == "__main__":
    show(Agent())
