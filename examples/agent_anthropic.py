"""An agent written with the package `anthropic`.

Run it with `python examples/agent_anthropic.py`; `pip install 'envsdk[gateway]' anthropic` has what it needs.
"""

from typing import Any

import anthropic
from prices import SYSTEM, Prices, show

from envsdk.gateway import Endpoint

SCHEMA = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
TOOL: Any = {"name": "price", "description": "Look up a price.", "input_schema": SCHEMA}


class Agent(Prices):
    """Asks until the model calls no tool."""

    async def run(self, model: Endpoint) -> float:
        """Run the agent."""
        messages: list[Any] = [{"role": "user", "content": self.draw()}]
        async with anthropic.AsyncAnthropic(base_url=model.anthropic_base_url, api_key=model.api_key) as client:
            while True:
                reply = await client.messages.create(
                    model=model.model, system=SYSTEM, messages=messages, tools=[TOOL], max_tokens=100
                )
                messages.append({"role": "assistant", "content": reply.content})
                results: list[Any] = []
                for block in reply.content:
                    if block.type == "tool_use":
                        result = self.look_up(block.input.get("item"))
                        results.append({"type": "tool_result", "tool_use_id": block.id, "content": result})
                if not results:
                    return self.grade("".join(block.text for block in reply.content if block.type == "text"))
                messages.append({"role": "user", "content": results})


if __name__ == "__main__":
    show(Agent())
