"""What it costs to search what a model cannot see anymore."""

from time import perf_counter
from typing import Any

from envsdk import Message, get_renderer
from envsdk.authoring._recall import Archive
from envsdk.contexts._context import Context
from envsdk.history import Keep

MESSAGES, WORDS, QUERIES = 10_000, 120, 20


def costs(prose: Any, renderer: Any, count: int) -> tuple[float, float]:
    """The seconds that it takes to add a message, on average, and to search `count` of them, at most."""
    context = Context("main", "main", renderer, Keep())
    archive, adding, searching = Archive(), 0.0, 0.0
    for step in range(count // 2):
        context.messages += [
            Message(role="assistant", content=prose.words(WORDS, start=step)),
            Message(role="tool", content=prose.words(WORDS, start=step + 7), name="look"),
        ]
        context.steps += 1
        started = perf_counter()
        archive.add(context, len(context.messages))
        adding += perf_counter() - started
    for query in range(QUERIES):
        words = prose.words(8, start=query * 31)
        started = perf_counter()
        archive.search(words, [], "main")
        searching = max(searching, perf_counter() - started)
    return adding / count, searching


def test_what_10_000_dropped_messages_cost_to_search(benchmark: Any, report: Any, prose: Any, tokenizer: Any):
    renderer = get_renderer("qwen3", tokenizer)
    adding, searching = benchmark.pedantic(costs, (prose, renderer, MESSAGES if benchmark.enabled else 100))
    if benchmark.enabled:
        note = f"messages of {WORDS} words; adding one takes {1e6 * adding:.0f} us"
        report("recall among 10,000 dropped messages", 1e3 * searching, "ms", at_most=50, note=note)
