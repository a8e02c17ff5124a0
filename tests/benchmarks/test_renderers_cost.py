"""What a delta costs in a renderer that another library writes, beside that library."""

import time
from collections.abc import Callable
from statistics import median

import openai_harmony as oh
import pytest
import real_models
from envsdk_renderers._harmony import Harmony

from envsdk import Message


@pytest.fixture(scope="module")
def harmony() -> Harmony:
    return Harmony(real_models.gpt_oss_tokenizer())


def timed(function: Callable[[str], None], text: str) -> float:
    start = time.perf_counter()
    function(text)
    return time.perf_counter() - start


def test_a_delta_of_harmony_costs_little_more_than_the_librarys_rendering(benchmark, report, prose, harmony):
    reply = harmony.reply(Message(role="assistant", tool_calls=[{"name": "look", "arguments": {}}]))
    texts = [prose.words(200, start=200 * i) for i in range(400)]

    def by_the_library(text: str) -> None:
        author = oh.Author.new(oh.Role.TOOL, "functions.look")
        message = (
            oh.Message.from_author_and_content(author, text).with_channel("commentary").with_recipient("assistant")
        )
        harmony.encoding.render(message)

    def by_us(text: str) -> None:
        harmony.extend(reply, [Message(role="tool", name="look", content=text)])

    times = {f: [timed(f, text) for text in texts[: 400 if benchmark.enabled else 2]] for f in (by_the_library, by_us)}
    benchmark.pedantic(by_us, args=(texts[0],), rounds=3)
    if benchmark.enabled:
        ratio = median(times[by_us]) / median(times[by_the_library])
        microseconds = 1e6 * median(times[by_us])
        report(
            "harmony: delta of a tool result of 200 words",
            ratio,
            "x the library",
            at_most=1.5,
            note=f"{microseconds:.0f} µs",
        )
