"""Many episodes in one call: the engine without deadlines and retries, for tests and short programs."""

from collections.abc import Callable, Sequence
from typing import Any

from ..authoring._env import Env
from ..episodes._event_loops import run
from ..policies._policy import PolicyLike
from ..trajectories._trajectory import Trajectory
from ._engine import Rollouts


async def arollout_many(
    make_env: Callable[[], Env] | str,
    policy: PolicyLike = "random",
    *,
    seeds: Sequence[int | None],
    max_concurrency: int = 16,
    on_end: Callable[[Trajectory], Any] | None = None,
) -> list[Trajectory]:
    """Roll out one episode for each seed, inside an event loop. Nothing is retried, and nothing has a deadline.

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
    rollouts = Rollouts(
        make_env,
        policy,
        seeds=seeds,
        group_size=1,
        max_concurrency=max_concurrency,
        policy_timeout_s=None,
        method_timeout_s=None,
        max_retries=0,
        on_trajectory=on_end,
    )
    return await rollouts.arun()


def rollout_many(
    make_env: Callable[[], Env] | str,
    policy: PolicyLike = "random",
    *,
    seeds: Sequence[int | None],
    max_concurrency: int = 16,
    on_end: Callable[[Trajectory], Any] | None = None,
) -> list[Trajectory]:
    """Roll out one episode for each seed; see `arollout_many`. It runs in the same event loop as `rollout`."""
    return run(arollout_many(make_env, policy, seeds=seeds, max_concurrency=max_concurrency, on_end=on_end))
