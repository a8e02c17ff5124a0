"""The explanation of a break: the first difference between two prompts, the texts around it, and the likely cause."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..errors import ConfigError
from ..rendering.tokenizers import Tokenizer
from ._causes import Cause, Texts, cause_of
from ._inputs import token_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray

Prompt: TypeAlias = "str | Sequence[int] | NDArray[np.integer[Any]]"
"""A prompt as text, or as token ids of shape (n,)."""

_AROUND = 60  # characters that are shown on each side of the difference


@dataclass(frozen=True, slots=True)
class Explanation:
    """The first difference between two prompts, in tokens if token ids were compared, and otherwise in characters.

    Attributes:
        cause: The likely cause; `none` if the second prompt begins with the first.
        detail: A short description of what was found.
        position: The index of the first token (character) that differs; `length` if there is none.
        length: The number of tokens (characters) of the first prompt.
        before: The last characters before the difference, which are the same in both prompts.
        first: The first characters of the first prompt from the difference on.
        second: The first characters of the second prompt from the difference on.
        lost: The number of tokens (characters) of the first prompt from the difference on, `length - position`.
    """

    cause: Cause
    detail: str
    position: int
    length: int
    before: str
    first: str
    second: str

    @property
    def lost(self) -> int:
        """The number of tokens (characters) of the first prompt from the difference on."""
        return self.length - self.position

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and `lost` as plain values for JSON."""
        return {**asdict(self), "lost": self.lost}

    def __str__(self) -> str:
        if self.cause == "none":
            return f"no break: {self.detail}"
        return (
            f"{self.cause} at {self.position} of {self.length}: {self.detail}\n"
            f"  both:   ...{self.before!r}\n  first:  {self.first!r}\n  second: {self.second!r}"
        )


def explain_break(first: Prompt, second: Prompt, tokenizer: Tokenizer | None = None) -> Explanation:
    """Explain where and why the second prompt does not begin with the first.

    The cause is a guess from the texts around the first difference. A later difference may have another cause.

    Args:
        first: The earlier prompt, with the reply that was sampled after it.
        second: The next prompt.
        tokenizer: The tokenizer that decodes token ids. Text prompts need no tokenizer.

    Raises:
        ConfigError: If one prompt is text and the other is not, or token ids are given without a tokenizer.
        InvalidSample: If a prompt is neither text nor token ids.
    """
    if isinstance(first, str) and isinstance(second, str):
        position = _shared(first, second)
        return _explained(Texts(first, second, position), position, len(first))
    if isinstance(first, str) or isinstance(second, str) or tokenizer is None:
        raise ConfigError(
            f"the prompts are a {type(first).__name__} and a {type(second).__name__}, with "
            f"{'no' if tokenizer is None else 'a'} tokenizer; expected two texts, or two arrays of token ids and the "
            "tokenizer"
        )
    ids, others = token_ids("the first prompt", first), token_ids("the second prompt", second)
    position = _shared(ids, others)
    old, new = (tokenizer.token_bytes(array.astype(np.int32)) for array in (ids, others))
    before = len(b"".join(old[:position]).decode(errors="replace"))
    left, right = (b"".join(pieces).decode(errors="replace") for pieces in (old, new))
    texts = Texts(left, right, _shared(left, right))
    is_cut = texts.at == len(left) and position < len(ids)  # a token of the second reaches past the end of the first
    if is_cut or (position < min(len(ids), len(others)) and _is_retokenized(old[position:], new[position:])):
        detail = f"the same text as different tokens: {_pieces(old[position:])} and {_pieces(new[position:])}"
        return _explanation("retokenized", detail, texts._replace(at=before), position, len(ids))
    return _explained(texts, position, len(ids))


def _shared(first: Any, second: Any) -> int:
    """Return the length of the common prefix of two texts or two arrays."""
    length = min(len(first), len(second))
    if isinstance(first, str):
        low, high = 0, length  # binary search: comparing slices is faster than comparing characters
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle - 1)
        return low
    differs = first[:length] != second[:length]
    return int(np.argmax(differs)) if differs.any() else length


def _is_retokenized(old: Sequence[bytes], new: Sequence[bytes]) -> bool:
    """Return whether both have the same text up to the first place at which a token ends in both."""
    ends, others = set(accumulate(map(len, old))), accumulate(map(len, new))
    text, other = b"".join(old), b"".join(new)
    end = next((end for end in others if end in ends), 0)
    return end > 0 and text[:end] == other[:end]


def _pieces(pieces: Sequence[bytes]) -> str:
    return " ".join(repr(piece.decode(errors="replace")) for piece in pieces[:4])


def _explained(texts: Texts, position: int, length: int) -> Explanation:
    if position == length:
        is_same = len(texts.second) == len(texts.first)
        detail = "the prompts are the same" if is_same else "the second prompt begins with the first"
        return _explanation("none", detail, texts, position, length)
    return _explanation(*cause_of(texts), texts, position, length)


def _explanation(cause: Cause, detail: str, texts: Texts, position: int, length: int) -> Explanation:
    first, second, at = texts
    before = first[max(0, at - _AROUND) : at]
    return Explanation(cause, detail, position, length, before, first[at : at + _AROUND], second[at : at + _AROUND])
