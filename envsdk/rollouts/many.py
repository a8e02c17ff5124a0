"""Many episodes side by side, so many at a time; one that fails is data, and stops no other."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from ..env import Env
from ..errors import ConfigError
from ..trajectory import Trajectory
from .policies import PolicyLike
from .simple import arollout

_log = logging.getLogger(__name__)


async def agather(
    make_env: Callable[[], Env],
    policy: PolicyLike = "random",
    *,
    seeds: Sequence[int],
    max_concurrency: int = 16,
    on_end: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Roll out an episode for each seed, inside an event loop.

    Args:
        make_env: Makes an environment; it is called at most `max_concurrency` times, and once more after each failure.
        policy: A policy, or the name of one.
        seeds: One episode each.
        max_concurrency: How many episodes run at a time.
        on_end: Called with each trajectory as it ends.

    Returns:
        The trajectories, in the order of the seeds. A failed one has `status == "error"`, the error's text, and the
        steps that it had.
    """
    if max_concurrency < 1:
        raise ConfigError(f"max_concurrency is {max_concurrency}; expected at least 1")
    results: list[Trajectory | None] = [None] * len(seeds)
    todo = iter(enumerate(seeds))
    envs = [make_env() for _ in range(min(max_concurrency, len(seeds)))]
    await asyncio.gather(*(_work(env, make_env, policy, todo, results, on_end) for env in envs))
    return [trajectory for trajectory in results if trajectory is not None]


def gather(
    make_env: Callable[[], Env],
    policy: PolicyLike = "random",
    *,
    seeds: Sequence[int],
    max_concurrency: int = 16,
    on_end: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Roll out an episode for each seed; see `agather`."""
    return asyncio.run(agather(make_env, policy, seeds=seeds, max_concurrency=max_concurrency, on_end=on_end))


async def _work(
    env: Env,
    make_env: Callable[[], Env],
    policy: PolicyLike,
    todo: Iterator[tuple[int, int]],
    results: list[Trajectory | None],
    on_end: Callable[[Trajectory], None] | None,
) -> None:
    """Roll out one episode after the other, until none is left to do."""
    try:
        for index, seed in todo:
            try:
                trajectory = await arollout(env, policy, seed=seed)
            except Exception as error:  # an episode is somebody else's code; whatever it raises is recorded
                _log.warning("episode with seed %s failed", seed, exc_info=error)
                trajectory = env.fail(error)
                env.close()
                env = make_env()
            results[index] = trajectory
            if on_end is not None:
                on_end(trajectory)
    finally:
        env.close()
