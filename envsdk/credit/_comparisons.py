"""Keys that identify the state of a step, and rewards that compare the episodes of a group with each other."""

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from .._visible import type_of
from ..errors import ConfigError, InvalidSample
from ..trajectories._trajectory import Trajectory

if TYPE_CHECKING:
    from numpy.typing import NDArray


def observation_anchors(trajectory: Trajectory) -> list[str]:
    """Return for each step the messages of its observation: the role, name and content of its messages, as JSON.

    Two steps have the same anchor if the environment sent the same messages before them, in the same role of an agent.
    It is the state of the environment where the observation shows all of it, as in a grid world or on a web page.

    Raises:
        ConfigError: If `trajectory` is not a Trajectory.
    """
    if not isinstance(trajectory, Trajectory):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"trajectory is {type_of(trajectory)}; expected a Trajectory")
    answered: dict[str, int] = {}
    anchors: list[str] = []
    for step in trajectory.steps:
        log = trajectory.contexts[step.context]
        stop = len(log.messages) if step.reply is None else step.reply
        new = log.messages[answered.get(step.context, 0) : stop]
        said = [(message.role, message.name, message.content) for message in new if message.role != "assistant"]
        anchors.append(json.dumps([log.role, said], ensure_ascii=False))
        answered[step.context] = stop + 1
    return anchors


def win_rates(wins: Any) -> "NDArray[np.float64]":
    """Return how often each member of a group wins against the others: a reward that only compares.

    `R[i] = mean(wins[i, j] for all j != i that i was compared with)`, from 0 to 1.

    Source: Y. Wang et al., "Pref-GRPO", 2025, arXiv:2508.20751: win rates are stable where the scores of a judge differ
    too little to rank a group.

    Args:
        wins: Shape (n, n). `wins[i, j]` is the probability that i is better than j, from 0 to 1 (0.5 is a tie), or NaN
            if they were not compared. The diagonal is ignored. `envsdk.rewards.compare` returns it.

    Returns:
        Rewards: float64, shape (n,).

    Raises:
        InvalidSample: If `wins` is not such a matrix, `wins[i, j]` and `wins[j, i]` do not add up to 1, or a member was
            compared with no other.
    """
    try:
        matrix = np.array(wins, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidSample(f"wins must be numbers, shape (n, n): {error}") from error
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InvalidSample(f"wins has shape {matrix.shape}; expected (n, n)")
    np.fill_diagonal(matrix, np.nan)
    known = ~np.isnan(matrix)
    if not ((matrix >= 0) & (matrix <= 1))[known].all():
        raise InvalidSample("wins has a number that is not from 0 to 1")
    if not np.allclose((matrix + matrix.T)[known & known.T], 1) or (known != known.T).any():
        raise InvalidSample("wins contradicts itself: wins[i, j] and wins[j, i] have to add up to 1")
    alone = np.flatnonzero(~known.any(axis=1))
    if len(alone):
        raise InvalidSample(f"member {alone[0]} was not compared with any other, so it has no win rate")
    return np.nansum(matrix, axis=1) / known.sum(axis=1)
