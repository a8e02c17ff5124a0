"""What went wrong, and what it costs: the on-policy check, token logs compared, breaks explained, tokens counted."""

from .alignment import TokenMatch, token_match
from .causes import Cause
from .costs import BreakCost, Cost, cost
from .explanation import Explanation, explain_break
from .on_policy import KL, Estimate, Verdict, kl

__all__ = [
    "KL",
    "BreakCost",
    "Cause",
    "Cost",
    "Estimate",
    "Explanation",
    "TokenMatch",
    "Verdict",
    "cost",
    "explain_break",
    "kl",
    "token_match",
]
