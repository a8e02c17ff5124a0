"""A small task for agent programs: state the price of an item, which a tool looks up.

`agent_openai.py`, `agent_anthropic.py`, `agent_openai_agents.py` and `agent_pydantic_ai.py` have the same agent for it
in four frameworks, and `train_agent.py` trains each of them.
"""

import envsdk
from envsdk import EnvConfig, Limits, Message, ToolCall
from envsdk.gateway import ProgramEnv

ITEMS = ("pen", "book", "lamp")
PRICES = range(2, 6)
SYSTEM = "You know no prices. Look them up."


class Prices(ProgramEnv):
    """Say what an item costs. A program that looks it up in `prices` is right."""

    class Config(EnvConfig):
        """The options of the task."""

        share_of_guesses: float = 0.0
        """The share of replies in which the reference policy guesses a price instead of looking it up."""

    default_limits = Limits(max_steps=3)
    reward_range = (0.0, 1.0)

    def draw(self) -> str:
        """Draw the prices, and return a question."""
        self.prices = {item: int(self.np_random.choice(PRICES)) for item in ITEMS}
        self.item = str(self.np_random.choice(ITEMS))
        return f"What is the price of a {self.item}?"

    def look_up(self, item: object) -> str:
        """Return a price, as the tool does. The model may call it with anything."""
        return f"{self.prices[item]} euros" if isinstance(item, str) and item in self.prices else "No such item."

    def grade(self, answer: str | None) -> float:
        """Score the answer."""
        return float(answer == f"{self.prices[self.item]} euros")

    def reference_reply(self) -> Message:
        """Look the price up, and then state it; or guess."""
        *_, last = self.messages()
        if last.role == "tool":
            return Message(role="assistant", content=last.content)
        if self.np_random.random() < self.config.share_of_guesses:
            return Message(role="assistant", content=f"{self.np_random.choice(PRICES)} euros")
        return Message(role="assistant", tool_calls=(ToolCall(name="price", arguments={"item": self.item}),))


def show(agent: Prices) -> None:
    """Play one episode with the reference policy as the model, and print the conversation."""
    trajectory = envsdk.rollout(agent, "reference", seed=0)
    for message in trajectory.contexts["main"].messages:
        print(f"{message.role}: {message.content or [call.arguments for call in message.tool_calls]}")
    print(f"reward {trajectory.reward:g}, {len(trajectory.steps)} requests, {len(trajectory.samples())} sample")
