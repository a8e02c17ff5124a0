"""Calls of a policy on a server, without an environment."""

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
