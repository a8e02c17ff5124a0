"""Tokenizers: text to token ids that can never be control tokens, and back.

A *control token* is any id that a tokenizer names outside its ordinary vocabulary: `special` ones such as
`<|im_start|>` and merely *added* ones such as `<think>`. `encode` treats their names as the plain text that they are;
only `token_id` yields a control token. So nothing that a user, a tool or a model writes can forge one.

Hugging Face tokenizers match added tokens inside text, whatever their options say, hence a tokenizer here is a second
one without them. A byte-level BPE becomes a tiktoken encoding, several times faster, once a corpus has shown that
both give the same ids; what cannot be shown stays with the `tokenizers` library.
"""

from .chat_template import ChatTemplateSource
from .kinds import HuggingFaceTokenizer, TiktokenTokenizer
from .load import DATA, load_tokenizer, local_tokenizer
from .protocol import UNNAMED, Tokenizer

__all__ = [
    "DATA",
    "UNNAMED",
    "ChatTemplateSource",
    "HuggingFaceTokenizer",
    "TiktokenTokenizer",
    "Tokenizer",
    "load_tokenizer",
    "local_tokenizer",
]
