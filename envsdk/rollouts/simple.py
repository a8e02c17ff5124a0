"""One episode from start to end."""

import asyncio
import inspect
from typing import Any

from ..action import Action
from ..env import Env, in_event_loop
from ..errors import EpisodeError, PolicyError
from ..trajectory import Trajectory
from .policies import PolicyLike, find_policy


def refuse_event_loop(instead: str) -> None:
    """Raise an `EpisodeError` inside an event loop, where `asyncio.run` does not work."""
    if in_event_loop():
        raise EpisodeError(f"inside an event loop (a notebook has one), call `await {instead}(...)`")


async def arollout(
    env: Env, policy: PolicyLike = "random", *, seed: int | None = None, options: dict[str, Any] | None = None
) -> Trajectory:
    """Roll out one episode, inside an event loop.

    Args:
        env: The environment; it is reset.
        policy: A policy (see `envsdk.rollouts.Policy`), or `"random"`, `"reference"` or `"null"`.
        seed: The same seed and the same policy give the same bytes.
        options: What `env.reset` takes: `{"task": 3}`, `{"episode_id": ..., "group_id": ...}`.

    Returns:
        The finished episode.

    Raises:
        PolicyError: If the policy returns no `Action`.
        Exception: Whatever the environment or the policy raises; `env.fail(error)` then has what there is.
    """
    ask = find_policy(policy, env, seed)
    observation, info = await env.areset(seed=seed, options=options)
    while env.trajectory is None:
        action = ask(
            env.prompt(),
            episode_id=env.episode_id,
            context=observation.context,
            base=observation.base,
            role=info["role"],
            keep=observation.keep,
            stop_token_ids=info["stop_token_ids"],
            stop=info["stop"],
            max_tokens=info["max_tokens"],
            sampling=info["sampling"],
        )
        if inspect.isawaitable(action):
            action = await action
        if not isinstance(action, Action):
            raise PolicyError(f"a policy returns an Action, got a {type(action).__name__}: {action!r:.80}")
        observation, _, _, _, info = await env.astep(action)
    return env.trajectory


def rollout(
    env: Env, policy: PolicyLike = "random", *, seed: int | None = None, options: dict[str, Any] | None = None
) -> Trajectory:
    """Roll out one episode; see `arollout`.

    Raises:
        EpisodeError: Inside an event loop (a notebook has one): there, `await envsdk.arollout(...)`.
    """
    refuse_event_loop("envsdk.arollout")
    return asyncio.run(arollout(env, policy, seed=seed, options=options))
