"""Many episodes at the same time. An episode that fails is recorded and does not stop the others."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ..authoring.env import Env
from ..authoring.machinery import check_seed
from ..authoring.making import make
from ..episodes.concurrent import run_all
from ..episodes.driver import is_being_cancelled
from ..episodes.event_loops import run
from ..episodes.functions import is_async
from ..errors import ConfigError, TokenizerMismatch
from ..policies.find import find_policy
from ..policies.policy import PolicyLike
from ..trajectories.trajectory import Trajectory
from .simple import arollout, check_is_env

_log = logging.getLogger(__name__)


async def arollout_many(
    make_env: Callable[[], Env] | str,
    policy: PolicyLike = "random",
    *,
    seeds: Sequence[int],
    max_concurrency: int = 16,
    on_end: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Roll out one episode for each seed, inside an event loop.

    Args:
        make_env: A function that creates an environment, such as its class; or the id of a registered environment. It
            is called once for each episode that runs at the same time.
        policy: A policy, or the name of a built-in one; see `arollout`.
        seeds: The seed of each episode. Episodes with the same seed have the same task and form a group: their
            `group_id` is `name/seed`, and their ids are `name/seed`, `name/seed#1`, ...
        max_concurrency: The maximum number of episodes that run at the same time.
        on_end: A function that is called with each trajectory when its episode ends. If it raises, `arollout_many`
            cancels the other episodes and raises the same error.

    Returns:
        The trajectories, in the order of the seeds. A failed one has `status == "error"`, the text of the error, and
        the steps before it.

    Raises:
        UnknownName: If no environment or policy has that name.
        ConfigError: If an argument has the wrong type or value.
        TokenizerMismatch: See `arollout`.
    """
    if max_concurrency < 1:
        raise ConfigError(f"max_concurrency is {max_concurrency}; expected at least 1")
    if not (hasattr(seeds, "__len__") and hasattr(seeds, "__getitem__")):
        instead = f"range({seeds})" if isinstance(seeds, int) else "list(seeds)"
        raise ConfigError(f"seeds is {seeds!r:.80}; expected a sequence of seeds, such as {instead}")
    if on_end is not None and is_async(on_end):
        raise ConfigError("on_end is `async def`; expected a plain function, because its result is not awaited")
    checked = [check_seed(seed) for seed in seeds]
    make_one = _maker(make_env)
    envs = [make_one() for _ in range(min(max_concurrency, len(seeds)))]
    if len({id(env) for env in envs}) < len(envs):
        raise ConfigError(
            "make_env returned the same environment object twice; expected a new one from each call, because each "
            "episode that runs at the same time needs its own"
        )
    for env in envs[:1]:
        find_policy(policy, env, None)
    results: list[Trajectory | None] = [None] * len(seeds)
    todo = _numbered(checked)
    await run_all(_work(env, policy, todo, results, on_end) for env in envs)
    return [trajectory for trajectory in results if trajectory is not None]


def _maker(make_env: object) -> Callable[[], Env]:
    if isinstance(make_env, str):
        return partial(make, make_env)
    if isinstance(make_env, Env) or not callable(make_env):
        given = f"the environment {make_env!r}" if isinstance(make_env, Env) else f"{make_env!r:.80}"
        raise ConfigError(
            f"rollout_many() got {given}; expected a way to create an environment for each concurrent episode: a "
            "class, an id, or a function such as `lambda: MyEnv(history='strip')`"
        )

    def make_one() -> Env:
        env: object = make_env()
        check_is_env(env, "make_env, the argument of rollout_many(), returned")
        assert isinstance(env, Env)
        return env

    return make_one


def rollout_many(
    make_env: Callable[[], Env] | str,
    policy: PolicyLike = "random",
    *,
    seeds: Sequence[int],
    max_concurrency: int = 16,
    on_end: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Roll out one episode for each seed; see `arollout_many`. It runs in the same event loop as `rollout`."""
    return run(arollout_many(make_env, policy, seeds=seeds, max_concurrency=max_concurrency, on_end=on_end))


def _numbered(seeds: Sequence[int | None]) -> Iterator[tuple[int, int | None, str]]:
    """Yield each seed with its index and the suffix of its episode's id, which numbers episodes of the same seed."""
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
    """Roll out episodes in one environment, one after another, until `todo` is empty."""
    try:
        for index, seed, suffix in todo:
            group_id = f"{env.name}/{seed}"
            options = {"episode_id": group_id + suffix, "group_id": group_id}
            try:
                trajectory = await arollout(env, policy, seed=seed, options=options)
            except TokenizerMismatch:  # it holds for every episode of this call
                raise
            except (
                Exception,
                asyncio.CancelledError,
            ) as error:  # user code may raise anything
                if is_being_cancelled():
                    raise
                _log.warning("episode %s failed", group_id + suffix, exc_info=error)
                trajectory = env.fail(error)
            results[index] = trajectory
            await asyncio.sleep(0)  # let other episodes and an interrupt run, even if this one never awaits
            if on_end is not None:
                on_end(trajectory)
    finally:
        try:
            env.close()
        except Exception as error:
            _log.warning("%r could not be closed", env, exc_info=error)
