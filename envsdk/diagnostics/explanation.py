"""Why one prompt does not begin with the other: the first difference, both texts around it, and the likely cause."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..errors import ConfigError
from ..rendering.tokenizers import Tokenizer
from .causes import Cause, Texts, cause_of
from .given import token_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray

Prompt: TypeAlias = "str | Sequence[int] | NDArray[np.integer[Any]]"
"""A prompt as text, or as token ids of shape (n,)."""

_AROUND = 60  # characters that are shown on each side of the difference


@dataclass(frozen=True, slots=True)
class Explanation:
    """The first difference between two prompts."""

    cause: Cause
    """The likely one; `none` if the second prompt begins with the first."""
    detail: str
    position: int
    """The first token that differs, or that the first prompt lacks; of texts, the first character."""
    length: int
    """How many tokens (characters) the first prompt has."""
    before: str
    """The end of the text that both share."""
    first: str
    """How the first prompt goes on."""
    second: str
    """How the second prompt goes on."""

    @property
    def lost(self) -> int:
        """How many tokens (characters) of the first prompt are no prefix any more."""
        return self.length - self.position

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {**asdict(self), "lost": self.lost}

    def __str__(self) -> str:
        if self.cause == "none":
            return f"no break: {self.detail}"
        return (
            f"{self.cause} at {self.position} of {self.length}: {self.detail}\n"
            f"  both:   ...{self.before!r}\n  first:  {self.first!r}\n  second: {self.second!r}"
        )


def explain_break(first: Prompt, second: Prompt, tokenizer: Tokenizer | None = None) -> Explanation:
    """Say where and why the second prompt does not begin with the first.

    The cause is a guess from the texts around the first difference; a later difference may have another one.

    Args:
        first: The earlier prompt, with the reply that was sampled for it.
        second: The prompt that came next.
        tokenizer: Decodes token ids; texts need none.

    Raises:
        ConfigError: If one prompt is a text and the other is not, or ids are given and no tokenizer.
        InvalidSample: If a prompt is neither a text nor ids.
    """
    if isinstance(first, str) and isinstance(second, str):
        position = _shared(first, second)
        return _explained(Texts(first, second, position), position, len(first))
    if isinstance(first, str) or isinstance(second, str) or tokenizer is None:
        raise ConfigError("explain_break takes two texts, or two arrays of token ids and the tokenizer")
    ids, others = token_ids("the first prompt", first), token_ids("the second prompt", second)
    position = _shared(ids, others)
    old, new = (tokenizer.token_bytes(array.astype(np.int32)) for array in (ids, others))
    before = len(b"".join(old[:position]).decode(errors="replace"))
    left, right = (b"".join(pieces).decode(errors="replace") for pieces in (old, new))
    texts = Texts(left, right, _shared(left, right))
    is_cut = texts.at == len(left) and position < len(ids)  # a token of the second reaches past the end of the first
    if is_cut or (position < min(len(ids), len(others)) and _is_split_otherwise(old[position:], new[position:])):
        detail = f"the same text is other tokens: {_pieces(old[position:])} and {_pieces(new[position:])}"
        return _explanation("retokenized", detail, texts._replace(at=before), position, len(ids))
    return _explained(texts, position, len(ids))


def _shared(first: Any, second: Any) -> int:
    """How many elements both begin with."""
    length = min(len(first), len(second))
    if isinstance(first, str):
        low, high = 0, length  # the prefix of each half-way length is compared as a whole
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle - 1)
        return low
    differs = first[:length] != second[:length]
    return int(np.argmax(differs)) if differs.any() else length


def _is_split_otherwise(old: Sequence[bytes], new: Sequence[bytes]) -> bool:
    """Whether both say the same up to a place where a token begins in both, in other tokens."""
    ends, others = set(accumulate(map(len, old))), accumulate(map(len, new))
    text, other = b"".join(old), b"".join(new)
    end = next((end for end in others if end in ends), 0)
    return end > 0 and text[:end] == other[:end]


def _pieces(pieces: Sequence[bytes]) -> str:
    return " ".join(repr(piece.decode(errors="replace")) for piece in pieces[:4])


def _explained(texts: Texts, position: int, length: int) -> Explanation:
    if position == length:
        is_same = len(texts.second) == len(texts.first)
        detail = "both are the same" if is_same else "the second begins with the first"
        return _explanation("none", detail, texts, position, length)
    return _explanation(*cause_of(texts), texts, position, length)


def _explanation(cause: Cause, detail: str, texts: Texts, position: int, length: int) -> Explanation:
    first, second, at = texts
    before = first[max(0, at - _AROUND) : at]
    return Explanation(cause, detail, position, length, before, first[at : at + _AROUND], second[at : at + _AROUND])
