"""The names of transformers that our code uses, for pyright: the package's own `__init__` imports every model."""

from typing import Any

from transformers.models.auto.tokenization_auto import AutoTokenizer as AutoTokenizer
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast as PreTrainedTokenizerFast

def __getattr__(name: str) -> Any: ...
