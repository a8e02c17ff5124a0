"""Credit assignment: from rewards to an advantage for each sampled token.

Every function is pure: it returns arrays or new samples and does not change its arguments. The number of segments of a
context does not matter: the samples of one context of one trajectory count once in a baseline.
"""

from .._arguments import explain_arguments
from ._advantages import (
    add_kl_penalty,
    anchor_advantages,
    group_advantages,
    per_token,
    role_advantages,
    step_advantages,
)
from ._baselines import leave_one_out, mean, none, normalized
from ._break_advantages import add_break_advantages
from ._comparisons import observation_anchors, win_rates
from ._reference import add_reference
from ._returns import context_rewards, discounted, step_returns
from ._teacher import add_teacher

__all__ = [
    "add_break_advantages",
    "add_kl_penalty",
    "add_reference",
    "add_teacher",
    "anchor_advantages",
    "context_rewards",
    "discounted",
    "group_advantages",
    "leave_one_out",
    "mean",
    "none",
    "normalized",
    "observation_anchors",
    "per_token",
    "role_advantages",
    "step_advantages",
    "step_returns",
    "win_rates",
]

explain_arguments(globals())
