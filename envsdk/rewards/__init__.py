"""Rewards: small scorers of a reply that put together give the named rewards of a `Turn`.

A scorer is a function of a reply and a target that returns a float from 0 to 1, or None, which means not scored. Those
here are objects with options, checked when they are made; any function of one's own will do as well.

    score = rewards.weighted(correct=(0.8, rewards.numeric()), format=(0.2, rewards.regex(r"[0-9]+")))
    Turn(reward=score(reply.content, target))  # {"correct": 0.8, "format": 0.2}

What is wrong with a reply costs score; what is wrong with a target is a `TaskError`, with an option a `ConfigError`.
"""

from .combined import aweighted, best, extract, in_thread, weighted
from .judges import judge
from .numbers import numeric
from .programs import Call, Program, unit_tests
from .schemas import json_schema
from .scorer import AsyncScorer, Scorer
from .texts import exact, f1, regex

__all__ = [
    "AsyncScorer",
    "Call",
    "Program",
    "Scorer",
    "aweighted",
    "best",
    "exact",
    "extract",
    "f1",
    "in_thread",
    "json_schema",
    "judge",
    "numeric",
    "regex",
    "unit_tests",
    "weighted",
]
