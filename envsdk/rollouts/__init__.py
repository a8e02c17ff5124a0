"""Rollouts: run one episode, or many at the same time, with a policy."""

from .many import arollout_many, rollout_many
from .simple import arollout, rollout

__all__ = ["arollout", "arollout_many", "rollout", "rollout_many"]
