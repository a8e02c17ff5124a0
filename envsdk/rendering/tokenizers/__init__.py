"""Tokenizers: encode plain text to ids that are never control tokens, and decode ids.

A *control token* is any id that a tokenizer names outside its ordinary vocabulary: `special` ones such as
`<|im_start|>`, and merely *added* ones such as `<think>`. `encode` treats their names as plain text; only `token_id`
returns a control token. So no text of a user, a tool or a model can forge one.

Hugging Face tokenizers match added tokens inside text under all of their options, so envsdk loads each tokenizer again
without them. A byte-level BPE becomes a tiktoken encoding, which is several times faster, if both give the same ids
for a corpus. All others stay with the `tokenizers` library. `backend="fastokens"` chooses a faster library for both.
"""

from .chat_template import ChatTemplateSource
from .corpus import DATA
from .fast import FastokensTokenizer
from .kinds import HuggingFaceTokenizer, TiktokenTokenizer
from .load import load_tokenizer, local_tokenizer
from .protocol import UNNAMED, Tokenizer

__all__ = [
    "DATA",
    "UNNAMED",
    "ChatTemplateSource",
    "FastokensTokenizer",
    "HuggingFaceTokenizer",
    "TiktokenTokenizer",
    "Tokenizer",
    "load_tokenizer",
    "local_tokenizer",
]
