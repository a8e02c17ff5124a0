"""What the environments that come with envsdk cost themselves, without tokenization."""

import asyncio
import inspect
import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
from envsdk_environments._corpus_search import MAX_QUERY_CHARS
from envsdk_environments._corpus_search._index import Index, get_index
from envsdk_environments._corpus_search._world import get_questions, get_world

import envsdk
from envsdk import Env

ENVS = [name for name in envsdk.list_envs() if name.startswith("envsdk/")]
DEEP = (1, 50, 200, 1000)
"""Pages of what a query found."""


def timed(method: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """The same method, which notes the time of the processor that each call takes."""

    if inspect.iscoroutinefunction(method):

        async def run_async(*arguments: Any) -> Any:
            start = time.process_time()
            try:
                return await method(*arguments)
            finally:
                seconds.append(time.process_time() - start)

        return run_async

    def run(*arguments: Any) -> Any:
        start = time.process_time()
        try:
            return method(*arguments)
        finally:
            seconds.append(time.process_time() - start)

    return run


def played(env: Env, seed: int) -> tuple[float, list[float]]:
    """Play an episode; returns what its start took, and each of its answers."""
    starts: list[float] = []
    answers: list[float] = []
    env.start = timed(type(env).start.__get__(env), starts)
    env.respond = timed(type(env).respond.__get__(env), answers)
    envsdk.rollout(env, "reference", seed=seed)
    return starts[0], answers


@pytest.mark.parametrize("id", ENVS)
def test_an_environment_takes_little_time_itself(benchmark, report, id):
    env = envsdk.make(id)
    played(env, 0)  # what is made once is made now
    episodes = [played(env, seed) for seed in range(1, 31 if benchmark.enabled else 2)]
    benchmark.pedantic(played, args=(env, 0))
    env.close()
    if benchmark.enabled:
        both = [1e3 * (start + median(answers)) for start, answers in episodes]
        start = 1e3 * median(start for start, _ in episodes)
        slowest = 1e3 * max(max(answers) for _, answers in episodes)
        note = f"start {start:.2g} ms; the most {max(both):.2g} ms, of one respond {slowest:.2g} ms"
        report(f"{id}: start + respond", median(both), "ms", at_most=1, note=note)


def test_a_program_is_run_in_a_tenth_of_a_second(benchmark, report):
    env = envsdk.make("envsdk/PythonSandbox-v1")
    env.reset(seed=0)

    def run_program() -> None:
        assert "4950" in asyncio.run(env.run_python("print(sum(range(100)))"))

    benchmark.pedantic(run_program, rounds=20, warmup_rounds=1)
    env.close()
    if benchmark.enabled:
        stats = benchmark.stats.stats
        note = f"elapsed; the most {1e3 * stats.max:.0f} ms"
        report("PythonSandbox: run_python", 1e3 * stats.median, "ms", at_most=100, note=note)


# Searches.


def usual_queries(index: Index) -> list[tuple[str, int]]:
    """What a model searches for."""
    rng = random.Random(3)
    questions = get_questions("hard", "train")
    queries = [
        *rng.sample(get_world().names, 60),
        *(questions[rng.randrange(len(questions))].question for _ in range(60)),
        *("the founder of the company", "novel", "works", "review known since", "town region mayor governor capital"),
    ]
    return [(query, 1) for query in queries]


def hard_queries(index: Index) -> list[tuple[str, int]]:
    """As many frequent words as a query may have, and pages far behind."""
    rng = random.Random(4)
    frequencies = index._frequencies
    queries: list[tuple[str, int]] = []
    for fewest, most in ((1, 1000), (10, 60), (20, 40), (40, 120), (200, 1000)):
        words = [word for word in sorted(frequencies) if fewest <= frequencies[word] <= most]
        for count in (40, 60, 80):
            drawn = " ".join(rng.sample(words, min(count, len(words))))
            queries.extend((drawn[:MAX_QUERY_CHARS], page) for page in DEEP)
    return queries


@pytest.mark.parametrize("queries", [usual_queries, hard_queries], ids=["usual", "hard"])
def test_a_search_takes_a_few_milliseconds(benchmark, report, queries):
    index = get_index()

    def took(query: str, page: int) -> float:
        started = time.thread_time()
        index.search(query, page)
        return 1e3 * (time.thread_time() - started)

    drawn = queries(index) if benchmark.enabled else queries(index)[:2]
    milliseconds = [min(took(*one) for _ in range(3)) for one in drawn]
    benchmark.pedantic(took, args=drawn[0])
    if benchmark.enabled:
        kind = queries.__name__.partition("_")[0]
        note = f"median {median(milliseconds):.2g} ms of {len(drawn)}"
        report(f"CorpusSearch: slowest of the {kind} queries", max(milliseconds), "ms", at_most=5, note=note)
