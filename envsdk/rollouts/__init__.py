"""Rolling out episodes: one, or many side by side."""

from ..policies.builtin import Policy, RandomPolicy, ReplyPolicy
from ..policies.transformers import TransformersPolicy
from .many import agather, gather
from .simple import arollout, rollout

__all__ = ["Policy", "RandomPolicy", "ReplyPolicy", "TransformersPolicy", "agather", "arollout", "gather", "rollout"]
