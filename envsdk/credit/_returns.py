"""The reward of each context of a trajectory, and the discounted return of each step."""

from numbers import Real
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from .._visible import type_of
from ..errors import ConfigError
from ..trajectories._trajectory import Trajectory
from ._values import Values, finite_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

Scope: TypeAlias = Literal["lineage", "context", "trajectory"]
"""The steps whose rewards count in the return of a step; see `step_returns`."""


def context_rewards(trajectory: Trajectory) -> dict[str, float]:
    """Return the reward of each context by name: its own reward, or its parent's, or the trajectory's.

    So a sub-agent shares the reward of its parent, unless `Turn(context_rewards=)` gave it its own reward.

    Raises:
        ConfigError: If `trajectory` is not a Trajectory.
    """
    _check(trajectory)
    return {name: trajectory.reward_of(name) for name in trajectory.contexts}


def discounted(rewards: Values, gamma: float = 1.0) -> "NDArray[np.float64]":
    """Return the discounted sum of the rewards from each step on: `G[t] = r[t] + gamma * G[t + 1]`.

    Source: R. Sutton and A. Barto, "Reinforcement Learning", 2nd edition, 2018, equation 3.9.

    Args:
        rewards: The reward of each step, shape (n,).
        gamma: The discount per step, from 0 to 1.

    Returns:
        Returns: float64, shape (n,).

    Raises:
        ConfigError: If `gamma` is not a number from 0 to 1.
        InvalidSample: If a reward is not a finite number.
    """
    if not isinstance(gamma, Real) or not 0 <= gamma <= 1:
        raise ConfigError(f"gamma is {gamma!r}; expected a discount from 0 to 1")
    returns = finite_array("rewards", rewards)
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += gamma * returns[t + 1]
    return returns


def step_returns(trajectory: Trajectory, gamma: float = 1.0, scope: Scope = "lineage") -> "NDArray[np.float64]":
    """Return the discounted return of each step: `G[t] = sum over k >= t of gamma ** n(t, k) * r[k]`.

    The sum runs over the steps k that count for the context of step t, in the order of the trajectory, and `n(t, k)` is
    the number of these steps from t up to but not including k. A step that was not scored has reward 0. For an agent
    whose sub-agents' steps count, this is the discounted return of an option: R. Sutton, D. Precup and S. Singh,
    "Between MDPs and semi-MDPs", 1999.

    If a context has its own reward (`ContextLog.reward`), or shares that of a parent, this reward replaces all
    `r[k]`: it is given at the last of the steps that count. So with `gamma=1`, each step of such a context has this
    reward as its return, and the first step of a trajectory without such rewards has the reward of the trajectory.

    Args:
        trajectory: The trajectory.
        gamma: The discount per step, from 0 to 1.
        scope: The steps that count. `"lineage"`: the steps of the context, of its sub-agents, and of its parents up to
            a context that has its own reward. So a sub-agent shares what its parent earns afterwards, but not what
            the other sub-agents of its parent earn. `"context"`: only the steps of the context. `"trajectory"`: all
            steps; rewards of contexts are ignored.

    Returns:
        Returns: float64, shape (n_steps,).

    Raises:
        ConfigError: If `trajectory` is not a Trajectory, or `gamma` or `scope` is not valid.
        InvalidSample: If a reward is not a finite number.
    """
    _check(trajectory)
    if scope not in ("lineage", "context", "trajectory"):
        raise ConfigError(f"scope is {scope!r}; expected 'lineage', 'context' or 'trajectory'")
    rewards = finite_array("step rewards", [step.reward or 0.0 for step in trajectory.steps])
    discounted((), gamma)  # raises for a wrong gamma even if there are no steps
    returns = np.zeros(len(rewards))
    # The contexts whose steps count for each context.
    counting = {name: set(trajectory.contexts) if scope == "trajectory" else {name} for name in trajectory.contexts}
    for name in trajectory.contexts if scope == "lineage" else ():
        counting[name].update(_lineage(trajectory, name))
        for ancestor in _ancestors(trajectory, name):
            counting[ancestor].add(name)
    for name in dict.fromkeys(step.context for step in trajectory.steps):
        counted = [t for t, step in enumerate(trajectory.steps) if step.context in counting[name]]
        owner = name if scope == "context" else _lineage(trajectory, name)[-1]
        own = None if scope == "trajectory" else trajectory.contexts[owner].reward
        counted_rewards = rewards[counted]
        if own is not None:
            counted_rewards[:] = 0.0
            counted_rewards[-1] = own
        for t, value in zip(counted, discounted(counted_rewards, gamma).tolist(), strict=True):
            if trajectory.steps[t].context == name:
                returns[t] = value
    return returns


def _check(trajectory: object) -> None:
    if not isinstance(trajectory, Trajectory):
        raise ConfigError(f"trajectory is {type_of(trajectory)}; expected a Trajectory, such as envsdk.rollout returns")


def _ancestors(trajectory: Trajectory, name: str) -> list[str]:
    """Return the context, its parent, the parent's parent, and so on."""
    ancestors: list[str] = []
    current: str | None = name
    while current is not None and current in trajectory.contexts and current not in ancestors:
        ancestors.append(current)
        current = trajectory.contexts[current].parent
    return ancestors


def _lineage(trajectory: Trajectory, name: str) -> list[str]:
    """Return the context and its parents, up to the first one that has its own reward."""
    ancestors = _ancestors(trajectory, name)
    rewarded = [i for i, ancestor in enumerate(ancestors) if trajectory.contexts[ancestor].reward is not None]
    return ancestors[: rewarded[0] + 1] if rewarded else ancestors
