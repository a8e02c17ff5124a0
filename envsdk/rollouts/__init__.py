"""Rollouts: run one episode, or many at the same time, with a policy; store them, and repeat what was stored."""

from .._arguments import explain_arguments
from ._break_values import BreakValue, break_values
from ._comparing import ReplayDifference
from ._curriculum import TaskSampler
from ._engine import Rollouts, arollout_many, rollout_many
from ._jobs import Group
from ._replaying import replay_run, replay_trajectory
from ._run_folder import RunFolder
from ._runner import arollout, rollout
from ._statistics import Lag, PlayStatistics, Statistics
from ._stored_run import StoredRun

__all__ = [
    "BreakValue",
    "Group",
    "Lag",
    "PlayStatistics",
    "ReplayDifference",
    "Rollouts",
    "RunFolder",
    "Statistics",
    "StoredRun",
    "TaskSampler",
    "arollout",
    "arollout_many",
    "break_values",
    "replay_run",
    "replay_trajectory",
    "rollout",
    "rollout_many",
]

explain_arguments(globals())
