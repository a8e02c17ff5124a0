"""A program that holds several conversations at the same time, and what holds for its episode under any policy."""

import asyncio
import re
from typing import Any

import openai
import soundness

from envsdk import Trajectory, load_tokenizer
from envsdk.gateway import Endpoint, ProgramEnv

TOKENIZER = load_tokenizer("embedded")


class Conversations(ProgramEnv):
    """Conversations of two requests each, each with its own system message.

    Attributes:
        heard: The replies of each conversation.
    """

    def __init__(self, width: int = 3, **options: Any) -> None:
        super().__init__(**options)
        self.width = width
        self.heard: list[list[Any]] = []

    async def run(self, model: Endpoint) -> float:
        self.heard = await converse(model.base_url, model.api_key, self.width)
        return 1.0


async def converse(base_url: str, api_key: str, width: int) -> list[list[Any]]:
    """Hold the conversations, and return the replies of each."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=600) as client:

        async def conversation(number: int) -> list[Any]:
            said: list[Any] = [{"role": "system", "content": f"You are agent {number}."}]
            heard: list[Any] = []
            for question in ("What is to be done?", "And what comes next?"):
                said.append({"role": "user", "content": question})
                reply = await client.chat.completions.create(model="m", messages=said, max_completion_tokens=24)
                heard.append(reply.choices[0].message)
                said.append(heard[-1].model_dump(exclude_none=True))
                said += [
                    {"role": "tool", "tool_call_id": call.id, "content": "done"} for call in heard[-1].tool_calls or ()
                ]
            return heard

        return await asyncio.gather(*map(conversation, range(width)))


def check(trajectory: Trajectory, width: int) -> None:
    """Check that each conversation is a context of two steps, which had its own system message in its prompts."""
    if all(log.is_trainable for log in trajectory.contexts.values()):
        soundness.check(trajectory)
    assert trajectory.status == "terminated" or trajectory.stop_reason == "truncated", trajectory.error
    assert len(trajectory.contexts) == width and len(trajectory.steps) == 2 * width
    assert not [break_ for break_ in trajectory.breaks if break_.kind == "rewrite"]
    agents: dict[str, set[str]] = {}
    for step, prompt, _ in trajectory.prompts():
        text = TOKENIZER.decode(prompt)
        agents.setdefault(step.context, set()).update(re.findall(r"You are agent (\d+)\.", text))
    assert sorted(map(sorted, agents.values())) == sorted([str(number)] for number in range(width))
