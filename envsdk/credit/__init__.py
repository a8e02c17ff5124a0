"""Credit: from rewards to an advantage for each sampled token.

Every function is pure: it returns arrays or new samples and changes nothing that it was given. What segments a context
was cut into never matters: the samples of one context of one trajectory count once in a baseline.
"""

from .advantages import add_kl_penalty, group_advantages, per_token, step_advantages
from .baselines import Baseline, leave_one_out, mean, none, normalised
from .returns import Scope, context_rewards, discounted, step_returns

__all__ = [
    "Baseline",
    "Scope",
    "add_kl_penalty",
    "context_rewards",
    "discounted",
    "group_advantages",
    "leave_one_out",
    "mean",
    "none",
    "normalised",
    "per_token",
    "step_advantages",
    "step_returns",
]
