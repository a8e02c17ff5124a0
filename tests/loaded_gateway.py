"""A standalone gateway as a process, in front of a policy that takes its time: what a load test asks.

`python loaded_gateway.py TOKENIZER SECONDS [PROFILE]` prints its URL, and ends at SIGTERM. The content of each reply
is how long the policy took, in microseconds. A profile of the event loop's thread is written to PROFILE.
"""

import asyncio
import cProfile
import sys
import time
from typing import Any

import numpy as np

import envsdk
from envsdk import Action, Message
from envsdk.gateway._management import Gateway, serve
from envsdk.gateway._outside import PlayedSessions
from envsdk.rendering.tokenizers import load_tokenizer


def policy_of(renderer: envsdk.Renderer, seconds: float) -> Any:
    replies: dict[int, Action] = {}

    def reply_of(microseconds: int) -> Action:
        if microseconds not in replies:
            tokens = renderer.reply(Message(role="assistant", content=str(microseconds), reasoning="Hm."))
            replies[microseconds] = Action(tokens, np.full(len(tokens), -0.5, np.float32))
        return replies[microseconds]

    async def policy(prompt: Any, **_: Any) -> Action:
        started = time.perf_counter()
        await asyncio.sleep(seconds)
        return reply_of(round(1e4 * (time.perf_counter() - started)) * 100)

    policy.tokenizer = "any"  # type: ignore[attr-defined]
    return policy


def main() -> None:
    tokenizer = load_tokenizer(sys.argv[1])
    renderer = envsdk.get_renderer("qwen3", tokenizer)
    for tenths in range(1000):
        renderer.reply(Message(role="assistant", content=str(100 * tenths), reasoning="Hm."))
    sessions = PlayedSessions(
        policy_of(renderer, float(sys.argv[2])),
        {"renderer": "qwen3", "tokenizer": tokenizer, "limits": {"max_steps": 10**6}},
    )
    profile = cProfile.Profile() if len(sys.argv) > 3 else None
    if profile is not None:
        profile.enable()
    serve(Gateway(sessions), on_start=lambda url: print(url, flush=True))
    if profile is not None:
        profile.disable()
        profile.dump_stats(sys.argv[3])


if __name__ == "__main__":
    main()
