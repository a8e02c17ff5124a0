"""A policy that samples random tokens."""

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from ..contexts._protocol import Action
from ._vocabularies import ANY_TOKENIZER

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RandomPolicy:
    """Sample uniformly random tokens, with exact log-probabilities.

    The same seed, episode id and prompt give the same reply.

    Args:
        vocab_size: The size of the vocabulary. Sampled ids are smaller than it.
        seed: A different seed gives different replies.
        stop_probability: The probability that a token is the stop token.
    """

    tokenizer = ANY_TOKENIZER

    def __init__(self, vocab_size: int, *, seed: int = 0, stop_probability: float = 0.1) -> None:
        self._vocab_size = vocab_size
        self._seed = seed
        self._stop_probability = stop_probability

    def __call__(
        self,
        prompt: "NDArray[np.int32]",
        *,
        episode_id: str,
        stop_token_ids: tuple[int, ...],
        max_tokens: int | None,
        **_: Any,
    ) -> Action:
        """Sample a reply: each token is the stop token with `stop_probability`, else any other id, uniformly."""
        rng = np.random.default_rng([abs(self._seed), zlib.crc32(episode_id.encode()), zlib.crc32(prompt.tobytes())])
        length = int(rng.geometric(self._stop_probability))
        is_cut = max_tokens is not None and length > max_tokens
        length = min(length, max_tokens) if max_tokens is not None else length
        tokens = rng.integers(0, self._vocab_size - 1, size=length, dtype=np.int32)
        tokens += tokens >= stop_token_ids[0]  # any id but the stop token
        logprobs = np.full(length, np.log((1 - self._stop_probability) / (self._vocab_size - 1)), dtype=np.float32)
        if not is_cut:
            tokens[-1], logprobs[-1] = stop_token_ids[0], np.log(self._stop_probability)
        return Action(tokens, logprobs, "length" if is_cut else "stop")
