"""What was sampled, as text: decoded when it is used, and which of its tokens hold which of its characters."""

import codecs
from typing import TYPE_CHECKING

import numpy as np

from ..rendering.renderer import Renderer

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CONTINUATION = frozenset(bytes([byte]) for byte in range(0x80, 0xC0))
"""The bytes that continue a character in UTF-8."""


class SampledText:
    """The text of sampled tokens, decoded by `str()`. A stop token at the end is not part of it."""

    __slots__ = ("_renderer", "tokens")

    def __init__(self, renderer: Renderer, tokens: "NDArray[np.int32]") -> None:
        self._renderer = renderer
        self.tokens = tokens

    def __str__(self) -> str:
        return self._renderer.tokenizer.decode(self.tokens[: self.body])

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    @property
    def body(self) -> int:
        """How many tokens there are before the stop token at the end."""
        count = len(self.tokens)
        return count - 1 if count and int(self.tokens[-1]) in self._renderer.stop_token_ids else count

    def bounds(self) -> "tuple[NDArray[np.int64], NDArray[np.int64]]":
        """Return for each token the first character that it has a part of, and the one after the last: int64, (n,).

        Tokens that share a character both have it.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        starts, stops, decoded, is_open = list[int](), list[int](), 0, False
        for piece in self._renderer.tokenizer.token_bytes(self.tokens[: self.body]):
            continues = piece[:1] in _CONTINUATION
            starts.append(decoded + (is_open and not continues))
            decoded += len(decoder.decode(piece))
            is_open = bool(decoder.getstate()[0])  # the bytes of a character that is not complete
            stops.append(decoded + is_open)
        return np.array(starts, dtype=np.int64), np.array(stops, dtype=np.int64)

    def tokens_of(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of the tokens that have a part of the characters `start` to `stop`."""
        if start >= stop:
            return 0, 0
        starts, stops = self.bounds()
        return int(np.argmax(stops > start)), int(np.count_nonzero(starts < stop))
