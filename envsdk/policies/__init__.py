"""Policies: functions that sample a reply to a prompt."""

from .._arguments import explain_arguments
from ..contexts._side_data import Aligned, Ragged
from ._built_in import RandomPolicy, ReplyPolicy
from ._find import policy_of
from ._grammar import grammar_masks
from ._openai_chat import OpenAIChat
from ._policy import Policy
from ._sglang import SGLang
from ._stop_after_call import StopAfterCall
from ._transformers import TransformersPolicy, load_model
from ._vllm import VLLM

__all__ = [
    "VLLM",
    "Aligned",
    "OpenAIChat",
    "Policy",
    "Ragged",
    "RandomPolicy",
    "ReplyPolicy",
    "SGLang",
    "StopAfterCall",
    "TransformersPolicy",
    "grammar_masks",
    "load_model",
    "policy_of",
]

explain_arguments(globals())
