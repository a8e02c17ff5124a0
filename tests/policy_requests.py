"""Calls of a policy on a server, without an environment."""

import asyncio
from typing import Any

import numpy as np

PROMPT = np.array([11, 22, 33, 44], dtype=np.int32)
STOP = 7


def request(**changes: Any) -> dict[str, Any]:
    """The keyword arguments of a policy's call."""
    given = {
        "episode_id": "e",
        "context": "main",
        "base": "main",
        "role": "main",
        "keep": 0,
        "stop_token_ids": (STOP,),
        "stop": (),
        "max_tokens": 40,
        "sampling": {},
    }
    return given | changes


def ask(policy: Any, on_tokens: Any = None, *, prompt: Any = PROMPT, **changes: Any) -> Any:
    """One reply of a policy, which is closed then."""
    given = {} if on_tokens is None else {"on_tokens": on_tokens}

    async def run() -> Any:
        async with policy:
            return await policy(prompt, **request(**changes), **given)

    return asyncio.run(run())
