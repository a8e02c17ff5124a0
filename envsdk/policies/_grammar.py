"""The tokens that a grammar allows: for sampling in this process, and afterwards, for the masks of recorded replies.

This module imports llguidance only when a grammar is used.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .._packages import load
from .._visible import shorten
from ..errors import ConfigError
from ..rendering.renderer import Renderer, TokenIds
from ..rendering.tokenizers import Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNNAMED = "\ufffd"  # the text of ids without a name, which no grammar allows


class GrammarState:
    """A position in a reply that follows a grammar.

    Args:
        tokenizer: The tokenizer of the model.
        grammar: The grammar, in a language of llguidance: Lark or GBNF.
        stop_token_ids: The tokens that end a reply. They are allowed where the grammar is complete.

    Raises:
        ConfigError: If the grammar is not valid.
        MissingPackage: If llguidance is not installed.
    """

    def __init__(self, tokenizer: Tokenizer, grammar: str, stop_token_ids: Sequence[int]) -> None:
        llguidance: Any = load("llguidance", "a grammar needs", "pip install 'envsdk[grammar]'")
        vocabulary = _vocabulary(tokenizer, tuple(stop_token_ids))
        try:
            self._matcher = llguidance.LLMatcher(vocabulary, llguidance.grammar_from("grammar", grammar), log_level=0)
        except ValueError as error:
            raise ConfigError(f"the grammar cannot be read: {error}") from error
        if self._matcher.is_error():
            raise ConfigError(f"the grammar cannot be used: {shorten(self._matcher.get_error(), 300)}")
        self._size = tokenizer.vocab_size

    def allowed(self) -> "NDArray[np.bool_]":
        """Return which tokens may come next, shape (vocab_size,)."""
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(packed, bitorder="little", count=self._size).astype(np.bool_)

    def accept(self, *tokens: int) -> int:
        """Go on after tokens; return how many of them the grammar allows, from the first one on."""
        return next(
            (index for index, token in enumerate(tokens) if not self._matcher.consume_token(token)), len(tokens)
        )


def grammar_masks(renderer: Renderer, grammar: str, tokens: TokenIds) -> "NDArray[np.bool_]":
    """Return the tokens among which each token of a constrained reply was sampled.

    A policy records the grammar of a reply in `Action.extra["grammar"]`. Its log-probabilities are those of the logits
    that these masks keep, so a trainer sets the other logits to minus infinity.

    Args:
        renderer: The renderer of the reply's context.
        grammar: The grammar.
        tokens: The sampled tokens of the whole reply, shape (n,).

    Returns:
        Shape (n, vocab_size): n times the size of the vocabulary in bytes.

    Raises:
        ConfigError: If the grammar is not valid, or does not allow a token.
        MissingPackage: If llguidance is not installed.
    """
    state = GrammarState(renderer.tokenizer, grammar, renderer.stop_token_ids)
    masks = np.empty((len(tokens), renderer.tokenizer.vocab_size), dtype=np.bool_)
    for index, token in enumerate(tokens):
        masks[index] = state.allowed()
        if not masks[index, token] or not state.accept(int(token)):
            raise ConfigError(
                f"the grammar does not allow token {token} at position {index} of the reply: give all tokens of the "
                "reply that were sampled under it, from the first one on"
            )
    return masks


@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Tokenizer, stop_token_ids: tuple[int, ...]) -> Any:
    """Return a tokenizer as llguidance reads it."""
    llguidance: Any = load("llguidance", "a grammar needs", "pip install 'envsdk[grammar]'")
    return llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(_Vocabulary(tokenizer, stop_token_ids[0])), eos_token=list(stop_token_ids)
    )


class _Vocabulary:
    """A tokenizer with the attributes that llguidance reads."""

    def __init__(self, tokenizer: Tokenizer, eos_token_id: int) -> None:
        self.eos_token_id, self.bos_token_id = eos_token_id, None
        self.special_token_ids = list(tokenizer.control_tokens.values())
        self.tokens = tokenizer.token_bytes(np.arange(tokenizer.vocab_size, dtype=np.int32))
        named = tokenizer.encode(_UNNAMED).tolist()
        for token, piece in enumerate(self.tokens):
            if piece == _UNNAMED.encode() and [token] != named:
                self.tokens[token] = b""
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        given = text if isinstance(text, str) else text.decode(errors="replace")
        tokens: list[int] = self._tokenizer.encode(given).tolist()
        return tokens
