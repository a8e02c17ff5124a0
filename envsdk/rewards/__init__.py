"""Rewards: scorers of a reply, which combine to the named rewards of a `Turn`.

A scorer is a function of a reply and a target. It returns a float from 0 to 1, or None for "not scored". The scorers in
this package are objects whose options are checked when they are created. You can use any function of your own as well.

    score = rewards.weighted(correct=(0.8, rewards.numeric()), format=(0.2, rewards.regex(r"[0-9]+")))
    Turn(reward=score(reply.content, target))  # {"correct": 0.8, "format": 0.2}

A wrong or malformed reply gets a lower score. A malformed target raises `TaskError`, an invalid option `ConfigError`.
"""

from .._arguments import explain_arguments
from ._combined import aweighted, best, extract, in_thread, weighted
from ._judges import compare, judge
from ._numbers import numeric
from ._programs import Call, Program, unit_tests
from ._scorer import AsyncScorer, Scorer
from ._texts import exact, f1, json_schema, regex

__all__ = [
    "AsyncScorer",
    "Call",
    "Program",
    "Scorer",
    "aweighted",
    "best",
    "compare",
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

explain_arguments(globals())
