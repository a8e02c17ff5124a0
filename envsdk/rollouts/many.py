"""Many episodes side by side, so many at a time; one that fails is data, and stops no other."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ..authoring.env import Env
from ..authoring.machinery import check_seed
from ..authoring.making import make
from ..episodes.driver import is_being_cancelled
from ..episodes.event_loops import run
from ..episodes.functions import is_async
from ..errors import ConfigError, TokenizerMismatch
from ..policies.builtin import PolicyLike, find_policy
from ..trajectories.trajectory import Trajectory
from .simple import arollout, refuse_no_env

_log = logging.getLogger(__name__)


async def agather(
    make_env: Callable[[], Env] | str,
    policy: PolicyLike = "random",
    *,
    seeds: Sequence[int],
    max_concurrency: int = 16,
    on_end: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Roll out an episode for each seed, inside an event loop.

    Args:
        make_env: Makes an environment, such as its class; or the id of a registered one. It is called once for each of
            the episodes that run at a time.
        policy: A policy, or the name of one.
        seeds: One episode each. Episodes of the same seed are of the same task and form a group: they share their
            `group_id`, `name/seed`, and are called `name/seed`, `name/seed#1`, ...
        max_concurrency: How many episodes run at a time.
        on_end: Called with each trajectory as it ends; what it raises ends the gather.

    Returns:
        The trajectories, in the order of the seeds. A failed one has `status == "error"`, the error's text, and the
        steps that it had.

    Raises:
        UnknownName: If there is no environment or policy of that name.
        ConfigError: For arguments of another kind.
        TokenizerMismatch: See `arollout`.
    """
    if max_concurrency < 1:
        raise ConfigError(f"max_concurrency is {max_concurrency}; expected at least 1")
    if not (hasattr(seeds, "__len__") and hasattr(seeds, "__getitem__")):
        instead = f"range({seeds})" if isinstance(seeds, int) else "list(seeds)"
        raise ConfigError(f"seeds is {seeds!r:.80}; expected a sequence of them, such as {instead}")
    if on_end is not None and is_async(on_end):
        raise ConfigError("on_end is `async def`; expected a plain function: nobody awaits it")
    checked = [check_seed(seed) for seed in seeds]
    make_one = _maker(make_env)
    envs = [make_one() for _ in range(min(max_concurrency, len(seeds)))]
    if len({id(env) for env in envs}) < len(envs):
        raise ConfigError("make_env returned the same environment twice; episodes that run side by side need their own")
    for env in envs[:1]:
        find_policy(policy, env, None)
    results: list[Trajectory | None] = [None] * len(seeds)
    todo = _numbered(checked)
    workers = [asyncio.ensure_future(_work(env, policy, todo, results, on_end)) for env in envs]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:  # one that raised ends the others
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [trajectory for trajectory in results if trajectory is not None]


def _maker(make_env: object) -> Callable[[], Env]:
    if isinstance(make_env, str):
        return partial(make, make_env)
    if isinstance(make_env, Env) or not callable(make_env):
        given = f"the environment {make_env!r}" if isinstance(make_env, Env) else f"{make_env!r:.80}"
        raise ConfigError(
            f"gather() got {given}; give it what makes one, for each of the episodes that run at a time: its class, "
            "its id, or a function such as `lambda: MyEnv(history='strip')`"
        )

    def make_one() -> Env:
        env: object = make_env()
        refuse_no_env(env, "gather(), from make_env,")
        assert isinstance(env, Env)
        return env

    return make_one


def gather(
    make_env: Callable[[], Env] | str,
    policy: PolicyLike = "random",
    *,
    seeds: Sequence[int],
    max_concurrency: int = 16,
    on_end: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Roll out an episode for each seed; see `agather`. It waits where `rollout` does."""
    return run(agather(make_env, policy, seeds=seeds, max_concurrency=max_concurrency, on_end=on_end))


def _numbered(seeds: Sequence[int | None]) -> Iterator[tuple[int, int | None, str]]:
    """For each seed its position, and how its episode's id goes on: another for each episode of the same seed."""
    seen: Counter[int | None] = Counter()
    for index, seed in enumerate(seeds):
        yield index, seed, f"#{seen[seed]}" if seen[seed] else ""
        seen[seed] += 1


async def _work(
    env: Env,
    policy: PolicyLike,
    todo: Iterator[tuple[int, int | None, str]],
    results: list[Trajectory | None],
    on_end: Callable[[Trajectory], None] | None,
) -> None:
    """Roll out one episode after the other, until none is left to do."""
    try:
        for index, seed, number in todo:
            group_id = f"{env.name}/{seed}"
            options = {"episode_id": group_id + number, "group_id": group_id}
            try:
                trajectory = await arollout(env, policy, seed=seed, options=options)
            except TokenizerMismatch:  # no episode of this call can do better
                raise
            except (Exception, asyncio.CancelledError) as error:  # an episode is somebody else's code: that is recorded
                if is_being_cancelled():
                    raise
                _log.warning("episode %s failed", group_id + number, exc_info=error)
                trajectory = env.fail(error)
            results[index] = trajectory
            await asyncio.sleep(0)  # where nothing else waits, the others and an interrupt get their turn here
            if on_end is not None:
                on_end(trajectory)
    finally:
        try:
            env.close()
        except Exception as error:
            _log.warning("%r could not be closed", env, exc_info=error)
