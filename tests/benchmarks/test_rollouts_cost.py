"""How fast the engine plays thousands of episodes at the same time, how late its event loop is, and what they hold."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from envsdk import Action, Env
from envsdk.policies import ReplyPolicy
from envsdk.rollouts import Rollouts

_ACTIONS: dict[tuple[int | None, int], Action] = {}
_SEEDS = 50


class Served:
    """The reference replies, each rendered once, after 0 to 50 ms: what a fast server would give."""

    tokenizer = "any"

    def for_episode(self, env: Env, seed: int | None) -> Any:
        reference = ReplyPolicy(env, lambda acting: acting.reference_reply())

        async def policy(prompt: Any, **request: Any) -> Action:
            await asyncio.sleep(random.random() * 0.05)
            key = seed, len(prompt)
            if key not in _ACTIONS:
                _ACTIONS[key] = reference(prompt, **request)
            return _ACTIONS[key]

        policy.tokenizer = "any"  # type: ignore[attr-defined]
        return policy


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def play(env: str, episodes: int, concurrency: int, **options: Any) -> tuple[Rollouts, int]:
    """Play episodes; return the run, and the most memory that the process held meanwhile."""

    async def run() -> int:
        most = ended = 0
        async for _ in rollouts:
            ended += 1
            most = max(most, resident_bytes() if ended % 50 == 0 else 0)
        return most

    seeds = [number % _SEEDS for number in range(episodes)]
    rollouts = Rollouts(env, Served(), seeds=seeds, group_size=1, max_concurrency=concurrency, **options)
    return rollouts, asyncio.run(run())


@pytest.mark.parametrize("executor", [None, "processes"])
def test_two_thousand_episodes_at_the_same_time(benchmark, report, executor: Any):
    """Calculator with a policy that answers after 0 to 50 ms."""
    if not benchmark.enabled and executor is not None:
        pytest.skip("a benchmark starts processes")
    many = 2000 if benchmark.enabled else 20
    play("envsdk/Calculator-v1", min(50, many), 50)  # tokenizers and actions
    few, base = play("envsdk/Calculator-v1", min(200, many), 50, executor=executor, n_workers=2)
    rollouts, most = benchmark.pedantic(
        lambda: play("envsdk/Calculator-v1", 4 * many, many, executor=executor, n_workers=2), rounds=1
    )
    done = rollouts.statistics
    assert done.failures == {}
    lag = done.play.lag
    name = f"Calculator, {many:,} episodes at the same time, " + ("one process" if executor is None else "2 processes")
    fewer = few.statistics.tally.steps / few.statistics.elapsed_s
    target = 1000 if executor is None else 2500
    report(
        f"{name}: speed",
        done.tally.steps / done.elapsed_s,
        "steps/s",
        at_least=target,
        note=f"50 at a time: {fewer:,.0f}",
    )
    report(f"{name}: lag of the event loop, p99", 1e3 * lag.percentile(99), "ms", at_most=200)
    if executor is None:
        report(f"{name}: memory of each more", (most - base) / 1024 / (many - 50), "KB", at_most=100)


def test_resets_that_take_long_do_not_delay_the_event_loop(benchmark, report):
    """SqlAnalyst draws two databases for each episode, in a thread."""
    many = 256 if benchmark.enabled else 4
    rollouts, _ = benchmark.pedantic(lambda: play("envsdk/SqlAnalyst-v1", 2 * many, many), rounds=1)
    done, lag = rollouts.statistics, rollouts.statistics.play.lag
    assert done.failures == {}
    name = f"SqlAnalyst, {many} episodes at the same time"
    report(f"{name}: lag, p99", 1e3 * lag.percentile(99), "ms", at_most=200, note=f"p50 {1e3 * lag.percentile(50):.0f}")
