"""What it costs to read a long reply, for every renderer: the worst of many repetitions of tags, and how it grows."""

import time
from typing import Any

import numpy as np
import pytest
from long_replies import MAKERS, STARTS, TOOL, long_reply, units

from envsdk import Renderer
from envsdk.messages import check_calls

SIZE = 1_000_000
SCREENED = 20_000  # long enough for what is not linear to stand out
WORST = 5


def cost(renderer: Renderer, start: str, unit: str, size: int) -> float:
    """The time that it takes to read a reply, in seconds of this process."""
    tokens = long_reply(renderer, start, unit, size)
    began = time.process_time()
    check_calls(renderer.parse(tokens, tools=[TOOL]), [TOOL])
    return time.process_time() - began


@pytest.mark.parametrize("name", MAKERS)
def test_a_reply_is_read_in_linear_time(benchmark: Any, report: Any, name: str) -> None:
    renderer = MAKERS[name]()
    every = [(start, unit) for start in STARTS for unit in units()]
    if not benchmark.enabled:
        cost(renderer, *every[0], 100)
        return
    chosen = [every[i] for i in np.random.default_rng(0).choice(len(every), 1500, replace=False)]
    screened = sorted(chosen, key=lambda case: cost(renderer, *case, SCREENED), reverse=True)[: 3 * WORST]
    half = {case: cost(renderer, *case, SIZE // 2) for case in screened}
    hardest = sorted(half, key=lambda case: half[case], reverse=True)[:WORST]
    whole = {case: min(cost(renderer, *case, SIZE) for _ in range(2)) for case in hardest}
    case = max(whole, key=lambda case: whole[case])
    ratio = max(whole[case] / half[case] for case in hardest)
    report(f"{name}: 1 MB of the hardest repetition", whole[case], "s", at_most=0.5, note=repr("".join(case)))
    report(f"{name}: the same, 1 MB to 0.5 MB", ratio, "x", at_most=2.6)
    benchmark.pedantic(cost, args=(renderer, *case, SIZE), rounds=1)
