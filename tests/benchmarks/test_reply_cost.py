"""What it costs to read a long reply, for every renderer: the worst of many repetitions of tags, and how it grows."""

import time
from typing import Any

import numpy as np
import pytest
import real_models
from envsdk_renderers._fixed_base import FixedBase
from long_replies import ENDS, MAKERS, STARTS, TOOL, long_reply, units

from envsdk import Message, Renderer, ToolCall
from envsdk.messages import check_calls

SIZE = 1_000_000
SCREENED = 20_000  # long enough for what is not linear to stand out
WORST = 5


def cost(renderer: Renderer, start: str, unit: str, end: str, size: int) -> float:
    """The time that it takes to read a reply, in seconds of this process."""
    tokens = long_reply(renderer, start, unit, size, end)
    began = time.process_time()
    check_calls(renderer.parse(tokens, tools=[TOOL]), [TOOL])
    return time.process_time() - began


@pytest.mark.parametrize("name", MAKERS)
def test_a_reply_is_read_in_linear_time(benchmark: Any, report: Any, name: str) -> None:
    renderer = MAKERS[name]()
    every = [(start, unit, end) for start in STARTS for unit in units() for end in ENDS]
    if not benchmark.enabled:
        benchmark.pedantic(cost, args=(renderer, *every[0], 100), rounds=1)
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


def cost_of_answers(renderer: Renderer, count: int) -> float:
    """The time that it takes to render the results of that many calls of one reply."""
    calls = tuple(ToolCall(name="f", arguments={"a": number}, id=f"call{number:05d}") for number in range(count))
    reply = Message(role="assistant", tool_calls=calls)
    results = [Message(role="tool", content="x", name="f", tool_call_id=call.id) for call in calls]
    tokens, question = renderer.reply(reply), Message(role="user", content="q")
    began = time.process_time()
    renderer.extension(tokens, results, history=[question, reply], tools=[TOOL])
    return time.process_time() - began


def test_many_calls_of_one_reply_are_answered_in_linear_time(benchmark: Any, report: Any) -> None:
    renderer, count = FixedBase(real_models.qwen3_folder()), 800 if benchmark.enabled else 2
    cost_of_answers(renderer, 2)  # what is measured once
    half, whole = (min(cost_of_answers(renderer, size) for _ in range(3)) for size in (count // 2, count))
    benchmark.pedantic(cost_of_answers, args=(renderer, 2), rounds=1)
    if benchmark.enabled:
        report(
            "fixed_base: answers to 800 calls, to 400",
            whole / half,
            "x",
            at_most=2.6,
            note=f"{whole:.2f} s",
        )
