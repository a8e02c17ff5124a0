"""Convert byte-level vocabularies, which represent bytes by printable characters, to tiktoken encodings."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tiktoken

_GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def as_encoding(name: str, specification: Mapping[str, Any]) -> "tiktoken.Encoding | None":
    """Convert a byte-level BPE to a tiktoken encoding; return None if its rules differ from tiktoken's."""
    import tiktoken

    model = specification["model"]
    match specification.get("pre_tokenizer"):  # only one that splits text by a regular expression
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            pattern = _GPT2_PATTERN
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            pass
        case _:
            return None
    plain_bpe = model.get("type") == "BPE" and not any(
        model.get(key) for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    )
    if not plain_bpe or specification.get("normalizer") not in (None, {"type": "NFC"}):
        return None
    control_tokens = {token["content"]: int(token["id"]) for token in specification["added_tokens"]}
    try:
        ranks = {
            bytes(BYTE_OF_CHAR[char] for char in text): rank
            for text, rank in model["vocab"].items()
            if text not in control_tokens
        }
        if not all(bytes([byte]) in ranks for byte in range(256)):  # tiktoken panics at a missing byte
            return None
        return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=control_tokens)
    except (KeyError, ValueError):  # a vocabulary of characters, or a pattern of another regex dialect
        return None


_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_OF_CHAR = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(_OTHERS)}
"""The byte that each printable character of a byte-level vocabulary represents (GPT-2's table)."""
