"""Rollouts: run one episode, or many at the same time, with a policy."""

from .engine import Rollouts
from .jobs import Group
from .many import arollout_many, rollout_many
from .simple import arollout, rollout
from .statistics import Lag, PlayStatistics, Statistics

__all__ = [
    "Group",
    "Lag",
    "PlayStatistics",
    "Rollouts",
    "Statistics",
    "arollout",
    "arollout_many",
    "rollout",
    "rollout_many",
]
