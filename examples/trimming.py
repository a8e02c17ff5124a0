"""Compare the training cost of an agent program that drops old messages with that of a history policy.

The program asks one question at a time. It sends all messages, or leaves the oldest ones out, as memories and trimmers
of frameworks do. Every change of the past is a break: the next request begins a new sample, with a new prompt.

Run it with `python examples/trimming.py`; `pip install 'envsdk[gateway]' openai` has what it needs.
"""

from contextlib import closing
from typing import Any

import openai

import envsdk
from envsdk import EnvConfig, Message, Trajectory, diagnostics
from envsdk.gateway import Endpoint, ProgramEnv

QUESTIONS = 24
SYSTEM: Any = {"role": "system", "content": "You add numbers. Answer with the sum."}


class Sums(ProgramEnv):
    """Add numbers, one question after the other."""

    class Config(EnvConfig):
        """Options of the program: with more than `most` messages, it keeps the newest `kept`."""

        most: int = 1000
        kept: int = 1000

    async def run(self, model: Endpoint) -> float:
        """Ask the questions, and return the share of right answers."""
        messages: list[Any] = []
        right = 0
        async with openai.AsyncOpenAI(base_url=model.base_url, api_key=model.api_key) as client:
            for _ in range(QUESTIONS):
                self.numbers = [int(number) for number in self.np_random.integers(100, 1000, 4)]
                messages.append({"role": "user", "content": " + ".join(map(str, self.numbers))})
                if len(messages) > self.config.most:
                    messages = messages[-self.config.kept :]
                reply = await client.chat.completions.create(model=model.model, messages=[SYSTEM, *messages])
                answer = reply.choices[0].message.content
                messages.append({"role": "assistant", "content": answer})
                right += answer == str(sum(self.numbers))
        return right / QUESTIONS

    def reference_reply(self) -> Message:
        """Add one number after the other."""
        sums = [sum(self.numbers[: i + 1]) for i in range(len(self.numbers))]
        thoughts = [f"{a} and {b} are {c}." for a, b, c in zip(sums, self.numbers[1:], sums[1:], strict=False)]
        return Message(role="assistant", reasoning=" ".join(thoughts), content=str(sums[-1]))


SETTINGS: dict[str, dict[str, Any]] = {
    "all messages, keep": {},
    "the last 7 messages, keep": {"most": 7, "kept": 7},
    "beyond 25 messages the last 7, keep": {"most": 25, "kept": 7},
    "all messages, compact every 8 steps": {"history": "compact:every=8"},
    "all messages, budget of 700 tokens": {"history": "budget:max_tokens=700"},
}


def played(settings: dict[str, Any]) -> Trajectory:
    """Play an episode with the reference policy in place of a model: the number of tokens is the same."""
    with closing(Sums(renderer="qwen3", tokenizer="embedded", **settings)) as env:
        return envsdk.rollout(env, "reference", seed=0)


def row(trajectory: Trajectory) -> list[int]:
    """Return the numbers of breaks, samples, tokens of the longest prompt, observed tokens and tokens to train."""
    cost = diagnostics.cost(trajectory)
    longest = max(len(prompt) for _, prompt, _ in trajectory.prompts())
    return [len(trajectory.breaks), cost.samples, longest, cost.observed, cost.as_samples, cost.as_tree]


def main() -> None:
    """Print a table."""
    print("| program, history | breaks | samples | longest prompt | observed | trained as samples | as a tree |")
    print("|---|---|---|---|---|---|---|")
    for name, settings in SETTINGS.items():
        print(f"| {name} |", " | ".join(f"{number:,}" for number in row(played(settings))), "|")
    first, *_ = played(SETTINGS["the last 7 messages, keep"]).breaks
    print(f"the first break: {first.reason}: {first.detail}; {first.dropped} tokens dropped, {first.kept} kept")


if __name__ == "__main__":
    main()
