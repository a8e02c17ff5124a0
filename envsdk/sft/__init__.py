"""Supervised samples: a conversation is an episode whose actions are the replies that it holds.

So tokens, masks and segments come from where those of an episode come from: a reply is trained as the model would
sample it, in the prompt that an environment would have shown, and what is hidden later was trained before.
"""

from .conversation import TrainOn
from .supervised import sft_samples

__all__ = ["TrainOn", "sft_samples"]
