"""Diagnostics and cost: the on-policy check, the comparison of token logs, the causes of breaks, token counts."""

from .._arguments import explain_arguments
from ._alignment import TokenMatch, token_match
from ._costs import BreakCost, CacheHits, Cost, cost
from ._description import BatchDescription, ValueStatistics, describe
from ._divergence import Estimate
from ._estimates import CostEstimate, HistoryCost, Prices, Sizes, estimate
from ._explanation import Explanation, explain_break
from ._forward import forward_logprobs
from ._history_gap import GapEstimate, HistoryGap, history_gap
from ._importance import ImportanceWeights, importance_weights
from ._on_policy import KL, Cluster, kl
from ._training import TrainingDifference, TrainMode, train_mode

__all__ = [
    "KL",
    "BatchDescription",
    "BreakCost",
    "CacheHits",
    "Cluster",
    "Cost",
    "CostEstimate",
    "Estimate",
    "Explanation",
    "GapEstimate",
    "HistoryCost",
    "HistoryGap",
    "ImportanceWeights",
    "Prices",
    "Sizes",
    "TokenMatch",
    "TrainMode",
    "TrainingDifference",
    "ValueStatistics",
    "cost",
    "describe",
    "estimate",
    "explain_break",
    "forward_logprobs",
    "history_gap",
    "importance_weights",
    "kl",
    "token_match",
    "train_mode",
]

explain_arguments(globals())
