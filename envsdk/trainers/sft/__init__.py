"""Supervised samples: a conversation is replayed as an episode whose actions are the replies in it.

So tokens, masks and segments are made in the same way as those of an episode. A reply is trained as the model would
sample it, after the prompt that an environment would have shown. Reasoning that later prompts drop is still trained.
"""

from ..._arguments import explain_arguments
from ._supervised import sft_samples

__all__ = ["sft_samples"]

explain_arguments(globals())
