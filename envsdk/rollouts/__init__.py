"""Rolling out episodes: one, or many side by side."""

from .many import agather, gather
from .policies import Policy, RandomPolicy, ReplyPolicy
from .simple import arollout, rollout
from .transformers_policy import TransformersPolicy

__all__ = ["Policy", "RandomPolicy", "ReplyPolicy", "TransformersPolicy", "agather", "arollout", "gather", "rollout"]
