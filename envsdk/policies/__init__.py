"""Policies: functions that sample a reply to a prompt."""

from .policy import Policy, PolicyLike
from .random import RandomPolicy
from .reply import ReplyPolicy
from .transformers import TransformersPolicy

__all__ = ["Policy", "PolicyLike", "RandomPolicy", "ReplyPolicy", "TransformersPolicy"]
