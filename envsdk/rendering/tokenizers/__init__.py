"""Tokenizers: encode plain text to ids that are never control tokens, and decode ids.

A *control token* is any id that a tokenizer names outside its ordinary vocabulary: `special` ones such as
`<|im_start|>`, and merely *added* ones such as `<think>`. `encode` treats their names as plain text; only `token_id`
returns a control token. Therefore text of a user, a tool or a model cannot forge one.

Hugging Face tokenizers match added tokens inside text under all of their options, so envsdk loads each tokenizer again
without them. A byte-level BPE becomes a tiktoken encoding, which is several times faster, if both give the same ids
for a corpus. All others stay with the `tokenizers` library. `backend="fastokens"` chooses a faster library for both.

`__init__.pyi` lists the public names. Each is imported when it is first used.
"""

from ..._arguments import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
