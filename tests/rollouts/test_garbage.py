"""Garbage collections are rare while episodes are played, and as before afterward."""

import asyncio
import gc

from envsdk.policies import ReplyPolicy
from envsdk.rollouts import Rollouts


class Noting:
    """The reference replies; notes the thresholds of collections meanwhile."""

    tokenizer = "any"

    def __init__(self) -> None:
        self.thresholds: set[tuple[int, int, int]] = set()

    def for_episode(self, env, seed):
        self.thresholds.add(gc.get_threshold())
        return ReplyPolicy(env, lambda acting: acting.reference_reply())


def test_a_run_leaves_the_thresholds_as_they_were():
    before, policy = gc.get_threshold(), Noting()
    Rollouts("envsdk/Calculator-v0", policy, seeds=range(2), group_size=2).run()
    assert max(policy.thresholds) > before
    assert gc.get_threshold() == before


def test_a_run_that_is_left_early_leaves_them_as_they_were_too():
    async def leave() -> None:
        async with Rollouts("envsdk/Calculator-v0", Noting(), seeds=range(4), max_concurrency=1) as rollouts:
            async for _ in rollouts:
                break

    before = gc.get_threshold()
    asyncio.run(leave())
    assert gc.get_threshold() == before
