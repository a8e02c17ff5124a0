"""One episode, from its reset to its end."""

import contextlib
import sys
from functools import partial
from typing import Any

from ..authoring._driver import driver_of
from ..authoring._env import Env
from ..authoring._making import make
from ..episodes._event_loops import run
from ..errors import ConfigError
from ..policies._find import find_policy, why_not_sampled
from ..policies._policy import PolicyLike
from ..trajectories._trajectory import Trajectory
from ._runner import EpisodeRunner


def check_is_env(env: object, what: str) -> None:
    """Check that an argument is an environment.

    Args:
        env: The argument.
        what: The start of the error's text, such as `"rollout() got"`.

    Raises:
        ConfigError: If it is not. The error suggests what to pass instead.
    """
    if isinstance(env, Env):
        return
    inner = getattr(env, "unwrapped", None)
    if isinstance(env, type) and issubclass(env, Env):
        given, instead = f"the class {env.__name__}", f"an instance, {env.__name__}()"
    elif isinstance(inner, Env):
        given, instead = "a gymnasium wrapper", "the environment inside it, env.unwrapped"
    else:
        given, instead = f"{env!r:.80}", "an Env, or the id of a registered environment"
    raise ConfigError(f"{what} {given}; expected {instead}")


async def arollout(
    env: Env | str,
    policy: PolicyLike = "random",
    *,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
    reset: bool = True,
) -> Trajectory:
    """Roll out one episode, inside an event loop. Sub-agents from a list of handoffs run concurrently.

    Args:
        env: The environment, which is reset; or the id of a registered one, which is created for this episode and
            closed after it.
        policy: A policy (see `envsdk.policies.Policy`); the name of a built-in one, `"random"`, `"reference"` or
            `"null"`; or a mapping from roles to policies.
        seed: The seed of the environment and of a built-in policy. The same seed and policy give the same bytes.
        options: The options of `env.reset`: `{"task": 3}`, `{"episode_id": ..., "group_id": ...}`.
        reset: False continues the running episode, such as a fork. The seed is then used for the policy only.

    Returns:
        The finished episode.

    Raises:
        EpisodeError: With `reset=False`, if the environment is not waiting for an action.
        UnknownName: If no environment or policy has that name.
        ConfigError: If `env` is not an environment.
        PolicyError: If the policy does not return an `Action`.
        TokenizerMismatch: If the policy was made for a different tokenizer, or the environment's tokenizer was not
            set: the default, `embedded`, is accepted for the policies `random`, `reference` and `null` only.
        Exception: Any exception of the environment or the policy. `env.fail(error)` then returns the partial
            trajectory.
    """
    if isinstance(env, str):
        with contextlib.closing(make(env)) as made:
            return await arollout(made, policy, seed=seed, options=options, reset=reset)
    check_is_env(env, "rollout() got")
    found = find_policy(policy, env, seed)
    driver = driver_of(env)
    driver.use_policy(partial(why_not_sampled, found))
    try:
        if reset:
            observation, info = await env.areset(seed=seed, options=options)
        else:
            if options is not None:
                raise ConfigError("options apply to a new episode; with reset=False, expected None")
            observation, info = env.pending()
    except BaseException:
        driver.use_policy(None)
        raise
    try:
        return await EpisodeRunner(env, found).run(observation, info)
    finally:
        driver.use_policy(None)
        await driver.aend_tasks(sys.exception())


def rollout(
    env: Env | str,
    policy: PolicyLike = "random",
    *,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
    reset: bool = True,
) -> Trajectory:
    """Roll out one episode; see `arollout`.

    All calls share one event loop, so a client that is bound to an event loop works across calls. The loop runs in the
    caller's thread. If a loop is already running there (as in a notebook), it runs in a second thread, and the caller's
    loop is blocked until the episode ends.

    An asyncio task that a method of the environment starts belongs to the episode: if it is still running when the
    episode ends, it is cancelled and awaited, as `asyncio.run` does. A task that a policy or its client starts keeps
    running.
    """
    return run(arollout(env, policy, seed=seed, options=options, reset=reset))
