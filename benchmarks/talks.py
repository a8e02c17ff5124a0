"""The episodes of the rollouts: 200 steps, in which a user answers each reply, and nothing is dropped.

A reply has 20 words of reasoning and 55 of text, and an answer has 75: about 200 tokens a step.
"""

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from functools import cache
from typing import Any

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
"""When a rollout is stopped, finished or not: what the cost of a step grows with favors whoever is stopped early."""


def parsed(size: str) -> tuple[float, int]:
    """Return the seconds that the policy of a size takes, and the number of episodes."""
    kind, episodes = size.split(", ")
    return KINDS[kind], EPISODES[episodes]


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
        self.started = 0.0

    def next(self, step: int) -> Any:
        """Return the reply of a step of any episode."""
        if not self.asked:
            self.started = self.clock()
        self.asked += 1
        return self.replies[step % VARIANTS]


def seconds_per_step(rollout: Coroutine[Any, Any, Any], script: Script, policy_s: float) -> float:
    """Run a rollout until it is done, or for `STOP_S` seconds; return the seconds of a step.

    Args:
        rollout: The rollout. What it does before its first reply does not count.
        script: What its policy replies.
        policy_s: How long the policy takes. If it takes no time, CPU time is measured, and else wall-clock time.
    """

    async def within() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(rollout, STOP_S)

    script.clock = time.perf_counter if policy_s else time.process_time
    asyncio.run(within())
    return (script.clock() - script.started) / script.asked
