"""What contexts and steps of a trajectory earned: rewards by context, discounted returns by step."""

from numbers import Real
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from ..errors import ConfigError
from ..trajectories.trajectory import Trajectory
from .values import Values, finite

if TYPE_CHECKING:
    from numpy.typing import NDArray

Scope: TypeAlias = Literal["lineage", "context", "trajectory"]


def context_rewards(trajectory: Trajectory) -> dict[str, float]:
    """What each context of a trajectory earned: `R[c] = own[c]`, else that of its parent, else the trajectory's.

    So a sub-agent shares what its parent earns, unless `Turn(context_rewards=)` gave it a reward of its own.

    Raises:
        ConfigError: If it is no trajectory.
    """
    _check(trajectory)
    return {name: trajectory.reward_of(name) for name in trajectory.contexts}


def discounted(rewards: Values, gamma: float = 1.0) -> "NDArray[np.float64]":
    """Returns: `G[t] = r[t] + gamma * G[t + 1]`, the discounted sum of the rewards from each step on.

    Source: R. Sutton and A. Barto, "Reinforcement Learning", 2nd edition, 2018, equation 3.9.

    Args:
        rewards: The reward of each step, shape (n,).
        gamma: The discount per step, from 0 to 1.

    Returns:
        float64, shape (n,).

    Raises:
        ConfigError: If `gamma` is out of range.
        InvalidSample: If a reward is not finite.
    """
    if not isinstance(gamma, Real) or not 0 <= gamma <= 1:
        raise ConfigError(f"gamma is {gamma!r}; expected a discount from 0 to 1")
    returns = finite("rewards", rewards)
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += gamma * returns[t + 1]
    return returns


def step_returns(trajectory: Trajectory, gamma: float = 1.0, scope: Scope = "lineage") -> "NDArray[np.float64]":
    """The discounted return of each step: `G[t] = sum over k >= t of gamma ** n(t, k) * r[k]`.

    The sum runs over the steps k that count for the context of step t, in the order of the trajectory, and `n(t, k)` is
    how many of those stand from t on before k. A step that was not scored has reward 0. For an agent whose sub-agents'
    steps count, that is the discounted return of an option: R. Sutton, D. Precup and S. Singh, "Between MDPs and
    semi-MDPs", 1999.

    A context that has a reward of its own (`ContextLog.reward`), or shares its parent's, has that in place of all
    `r[k]`: it stands at the last of the steps that count. So with `gamma=1` each step of such a context has that
    reward; and the first step of a trajectory without such rewards has the trajectory's.

    Args:
        trajectory: The trajectory.
        gamma: The discount per step, from 0 to 1.
        scope: Which steps count. `"lineage"`: those of the context, of its sub-agents, and of its parents up to a
            context that has a reward of its own. So a sub-agent shares what its parent earns afterwards, but not what
            the sub-agents beside it do. `"context"`: those of the context alone. `"trajectory"`: all, and rewards of
            contexts count for nothing.

    Returns:
        float64, shape (n_steps,).

    Raises:
        ConfigError: If it is no trajectory, or `gamma` or `scope` is not valid.
        InvalidSample: If a reward is not finite.
    """
    _check(trajectory)
    if scope not in ("lineage", "context", "trajectory"):
        raise ConfigError(f"scope is {scope!r}; expected 'lineage', 'context' or 'trajectory'")
    rewards = finite("step rewards", [step.reward or 0.0 for step in trajectory.steps])
    discounted((), gamma)  # refuses a wrong gamma where there is no step, too
    returns = np.zeros(len(rewards))
    counting = _counting(trajectory, scope)
    for name in dict.fromkeys(step.context for step in trajectory.steps):
        counted = [t for t, step in enumerate(trajectory.steps) if step.context in counting[name]]
        own = _own_reward(trajectory, name, scope)
        earned = rewards[counted]
        if own is not None:
            earned[:] = 0.0
            earned[-1] = own
        for t, value in zip(counted, discounted(earned, gamma).tolist(), strict=True):
            if trajectory.steps[t].context == name:
                returns[t] = value
    return returns


def _check(trajectory: object) -> None:
    if not isinstance(trajectory, Trajectory):
        raise ConfigError(f"trajectory is a {type(trajectory).__name__}; expected a Trajectory")


def _counting(trajectory: Trajectory, scope: Scope) -> dict[str, set[str]]:
    """For each context those whose steps count for it."""
    contexts = trajectory.contexts
    if scope == "trajectory":
        everybody = set(contexts)
        return {name: everybody for name in contexts}  # noqa: C420 - shared on purpose: it is only read
    counting = {name: {name} for name in contexts}
    if scope == "lineage":
        for name in contexts:
            counting[name].update(_lineage(trajectory, name))
            for ancestor in _ancestors(trajectory, name):
                counting[ancestor].add(name)
    return counting


def _own_reward(trajectory: Trajectory, name: str, scope: Scope = "lineage") -> float | None:
    """The reward that a context has of its own, or shares with a parent; None if it shares the trajectory's."""
    if scope == "trajectory":
        return None
    return trajectory.contexts[name if scope == "context" else _lineage(trajectory, name)[-1]].reward


def _ancestors(trajectory: Trajectory, name: str) -> list[str]:
    """The context, its parent, the parent of that, and so on."""
    ancestors: list[str] = []
    at: str | None = name
    while at is not None and at in trajectory.contexts and at not in ancestors:
        ancestors.append(at)
        at = trajectory.contexts[at].parent
    return ancestors


def _lineage(trajectory: Trajectory, name: str) -> list[str]:
    """The context and its parents, up to one that has a reward of its own."""
    ancestors = _ancestors(trajectory, name)
    owner = next((i for i, at in enumerate(ancestors) if trajectory.contexts[at].reward is not None), len(ancestors))
    return ancestors[: owner + 1]
