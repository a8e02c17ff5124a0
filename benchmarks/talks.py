"""The episodes of the rollouts: 200 steps, in which a user answers each reply, and nothing is dropped.

A reply has 20 words of reasoning and 55 of text, and an answer has 75: about 200 tokens a step.

One episode is rolled out from its first step. Many begin in their middle: all steps of 256 episodes take contenders
whose cost grows with the episode half an hour, and what they do in a few seconds are the first steps, the cheapest.
Where the cost of a step grows linearly, a step in the middle costs what the steps cost on average.
"""

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from functools import cache
from typing import Any, NamedTuple

from .apart import apart

STEPS = 200
REASONING, CONTENT, ANSWER = 20, 55, 75
SYSTEM, QUESTION = "Think first.", "Find out all about it."
KINDS = {"scripted policy": 0.0, "20 ms policy": 0.02}
EPISODES = {"1 episode": 1, "256 episodes": 256}
SIZES = tuple(f"{kind}, {episodes}" for kind in KINDS for episodes in EPISODES)
VARIANTS = 50
"""How many different replies and answers there are."""
STOP_S = 8.0
"""When a rollout is stopped, finished or not."""


class Size(NamedTuple):
    """What a size means: the seconds that the policy takes, the episodes, and the steps that were taken before."""

    seconds: float
    episodes: int
    before: int


def parsed(size: str) -> Size:
    """Return what a size means."""
    kind, name = size.split(", ")
    episodes = EPISODES[name]
    return Size(KINDS[kind], episodes, STEPS // 2 if episodes > 1 else 0)


@cache
def texts() -> list[list[str]]:
    """Return the reasoning, the texts and the answers."""
    parts = ((REASONING, 0), (CONTENT, REASONING), (ANSWER, 7))
    return [apart("passages", count, [131 * step + start for step in range(VARIANTS)]) for count, start in parts]


def thought(step: int) -> str:
    """Return the reasoning of a reply."""
    return texts()[0][step % VARIANTS]


def said(step: int) -> str:
    """Return the text of a reply."""
    return texts()[1][step % VARIANTS]


def answered(step: int) -> str:
    """Return what the user answers to the reply of a step."""
    return texts()[2][step % VARIANTS]


def begun(steps: int) -> list[dict[str, str]]:
    """Return the messages before the reply of a step, in the OpenAI form."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    for step in range(steps):
        messages.append({"role": "assistant", "reasoning_content": thought(step), "content": said(step)})
        messages.append({"role": "user", "content": answered(step)})
    return messages


def reply_text(step: int) -> str:
    """Return a reply as Qwen3 writes it, up to its stop token."""
    return f"<think>\n{thought(step)}\n</think>\n\n{said(step)}"


class Script:
    """The tokens of all replies, and a counter of the steps that were asked for.

    Args:
        encode: Encodes a reply, its stop token included.
    """

    def __init__(self, encode: Any) -> None:
        self.replies = [encode(step) for step in range(VARIANTS)]
        self.asked = 0
        self.clock = time.process_time
        self.not_counted = 1
        self.started: float | None = None

    def next(self, step: int) -> Any:
        """Return the reply of a step of any episode."""
        self.asked += 1
        if self.asked == self.not_counted:
            self.started = self.clock()
        return self.replies[step % VARIANTS]


def seconds_per_step(rollout: Coroutine[Any, Any, Any], script: Script, size: Size) -> float:
    """Run a rollout until it is done, or for `STOP_S` seconds; return the seconds of a step.

    If the policy takes no time, CPU time is measured, and else wall-clock time.

    Args:
        rollout: The rollout. What it does before as many replies as it has episodes does not count: they begin.
        script: What its policy replies.
        size: The size.
    """

    async def within() -> None:
        running = asyncio.ensure_future(rollout)
        while script.started is None and not running.done():
            await asyncio.wait([running], timeout=0.01)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(running, STOP_S)

    script.clock = time.perf_counter if size.seconds else time.process_time
    script.not_counted = size.episodes
    asyncio.run(within())
    if script.started is None or script.asked == script.not_counted:
        raise TimeoutError(f"only {script.asked} steps of {size.episodes} episodes were taken")
    return (script.clock() - script.started) / (script.asked - script.not_counted)
