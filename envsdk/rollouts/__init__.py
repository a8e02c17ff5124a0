"""Rolling out episodes: one, or many side by side."""

from .many import agather, gather
from .policies import Policy, RandomPolicy, ReplyPolicy
from .simple import arollout, rollout

__all__ = ["Policy", "RandomPolicy", "ReplyPolicy", "agather", "arollout", "gather", "rollout"]
