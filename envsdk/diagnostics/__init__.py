"""Diagnostics and cost: the on-policy check, the comparison of token logs, the causes of breaks, token counts."""

from .alignment import TokenMatch, token_match
from .cache_hits import CacheHits
from .causes import Cause
from .costs import BreakCost, Cost, cost
from .description import BatchDescription, Statistics, describe
from .divergence import Estimate, NumericFormat, Verdict
from .estimates import CostEstimate, HistoryCost, Prices, Sizes, estimate
from .explanation import Explanation, explain_break
from .forward import forward_logprobs
from .importance import ImportanceWeights, importance_weights
from .on_policy import KL, Cluster, kl
from .training import Difference, TrainMode, train_mode

__all__ = [
    "KL",
    "BatchDescription",
    "BreakCost",
    "CacheHits",
    "Cause",
    "Cluster",
    "Cost",
    "CostEstimate",
    "Difference",
    "Estimate",
    "Explanation",
    "HistoryCost",
    "ImportanceWeights",
    "NumericFormat",
    "Prices",
    "Sizes",
    "Statistics",
    "TokenMatch",
    "TrainMode",
    "Verdict",
    "cost",
    "describe",
    "estimate",
    "explain_break",
    "forward_logprobs",
    "importance_weights",
    "kl",
    "token_match",
    "train_mode",
]
