"""Replies that envsdk reads."""

from time import process_time

import numpy as np

from benchmarks.contender import Repetition, contender
from benchmarks.workloads import READ, Family, renderer, replies, tools

NOTE = "`Renderer.parse`, which also reports what is wrong with a reply"


def reading(family: Family) -> Repetition:
    """Return the reading of replies of a family."""
    parse, offered = renderer(family).parse, tools("tools")
    given = [np.array(tokens, np.int32) for tokens in replies(family)]

    def reads() -> float:
        start = process_time()
        for tokens in given:
            parse(tokens, tools=offered)
        return (process_time() - start) / READ

    return reads


@contender("reply", "envsdk", note=NOTE)
def qwen3(size: int) -> Repetition:
    """Replies of Qwen3."""
    return reading("qwen3")


@contender("harmony-reply", "envsdk", note=NOTE)
def harmony(size: int) -> Repetition:
    """Replies of gpt-oss."""
    return reading("harmony")
