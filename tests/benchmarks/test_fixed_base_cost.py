"""What a delta costs where a chat template is measured, beside encoding its text."""

import time
from collections.abc import Callable
from statistics import median

import pytest
import real_models
from envsdk_renderers._fixed_base import FixedBase

from envsdk import Message

EXCHANGE = [Message(role="user", content="And then?"), Message(role="assistant", content="Then it goes on.")]
CALL = Message(role="assistant", tool_calls=[{"name": "search", "arguments": {"query": "x"}}])
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Search the library.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    }
    for name in ("search", "look_up", "read", "write")
]


@pytest.fixture(scope="module")
def renderer() -> FixedBase:
    return FixedBase(real_models.qwen3_folder())


def timed(function: Callable[[str], object], text: str) -> float:
    start = time.perf_counter()
    function(text)
    return time.perf_counter() - start


def deltas(renderer: FixedBase, history: list[Message], role: str) -> Callable[[str], object]:
    """Renders what a text of that role adds behind the last reply."""
    reply = renderer.reply(history[-1])
    given = {"history": history, "tools": TOOLS if role == "tool" else ()}
    return lambda text: renderer.extension(reply, [Message(role=role, content=text)], **given)


@pytest.mark.parametrize("role", ["user", "tool"])
def test_a_delta_of_fixed_base_costs_little_more_than_its_text(benchmark, report, prose, renderer, role):
    texts = [prose.words(200, start=200 * index) for index in range(800)]
    last = CALL if role == "tool" else EXCHANGE[1]
    short = deltas(renderer, [EXCHANGE[0], last], role)
    long = deltas(renderer, [*EXCHANGE * 2000, EXCHANGE[0], last], role)
    functions = {"encode": renderer.tokenizer.encode, "short": short, "long": long}
    for function in functions.values():
        function(prose.words(200, start=7))  # the fixed base is rendered once
    rounds = texts if benchmark.enabled else texts[:2]
    times = {name: [] for name in functions}
    for index, text in enumerate(rounds):
        name = list(functions)[index % 3]
        times[name].append(timed(functions[name], text))
    benchmark.pedantic(short, args=(texts[0],), rounds=3)
    if benchmark.enabled:
        cost = {name: 1e6 * median(found) for name, found in times.items()}
        report(
            f"fixed_base: delta of a {role} message of 200 words, less 3 x encoding it",
            cost["short"] - 3 * cost["encode"],
            "µs",
            at_most=300,
            note=f"{cost['short']:.0f} µs, encoding {cost['encode']:.0f} µs",
        )
        report(
            f"fixed_base: delta of a {role} message behind 4,000 messages",
            cost["long"] / cost["short"],
            "x that behind one",
            at_most=1.3,
        )
