"""An agent written with the package `openai`.

Run it with `python examples/agent_openai.py`; `pip install 'envsdk[gateway]' openai` has what it needs.
"""

import json
from typing import Any

import openai
from prices import SYSTEM, Prices, show

from envsdk.gateway import Endpoint

PARAMETERS = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
TOOL: Any = {
    "type": "function",
    "function": {"name": "price", "description": "Look up a price.", "parameters": PARAMETERS},
}


class Agent(Prices):
    """Asks until the model calls no tool."""

    async def run(self, model: Endpoint) -> float:
        """Run the agent."""
        messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": self.draw()}]
        async with openai.AsyncOpenAI(base_url=model.base_url, api_key=model.api_key) as client:
            while True:
                reply = await client.chat.completions.create(model=model.model, messages=messages, tools=[TOOL])
                message = reply.choices[0].message
                messages.append(message)
                if not message.tool_calls:
                    return self.grade(message.content)
                for call in message.tool_calls:
                    if call.type == "function":
                        result = self.look_up(json.loads(call.function.arguments).get("item"))
                        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


if __name__ == "__main__":
    show(Agent())
