"""Rollouts: run one episode, or many at the same time, with a policy; store them, and repeat what was stored."""

from .comparing import Difference
from .curriculum import TaskSampler
from .engine import Rollouts
from .jobs import Group
from .many import arollout_many, rollout_many
from .replaying import replay_run, replay_trajectory
from .run_folder import RunFolder
from .simple import arollout, rollout
from .statistics import Lag, PlayStatistics, Statistics
from .stored_run import StoredRun

__all__ = [
    "Difference",
    "Group",
    "Lag",
    "PlayStatistics",
    "Rollouts",
    "RunFolder",
    "Statistics",
    "StoredRun",
    "TaskSampler",
    "arollout",
    "arollout_many",
    "replay_run",
    "replay_trajectory",
    "rollout",
    "rollout_many",
]
