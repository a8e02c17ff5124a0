"""Gymnasium spaces of token arrays. Membership is one comparison over the array, whatever its length."""

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space

from ..contexts.protocol import Observation
from ..episodes.actions import check_action
from ..errors import ActionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SAMPLE_LENGTH = 8


class ActionSpace(Space[Any]):
    """All actions: int32 arrays of shape (n,) with ids below the vocabulary's size, and `Action`s that hold them."""

    def __init__(self, vocab_size: int, seed: int | None = None) -> None:
        super().__init__(None, np.int32, seed)
        self.vocab_size = vocab_size

    @property
    def is_np_flattenable(self) -> bool:
        """False: arrays of any length have no fixed flat form."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> "NDArray[np.int32]":
        """A few random ids."""
        length = int(self.np_random.integers(1, _SAMPLE_LENGTH + 1))
        return self.np_random.integers(0, self.vocab_size, size=length, dtype=np.int32)

    def contains(self, x: Any) -> bool:
        """Whether `step` would take it."""
        try:
            check_action(x, self.vocab_size)
        except ActionError:
            return False
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActionSpace) and other.vocab_size == self.vocab_size

    def __repr__(self) -> str:
        return f"ActionSpace({self.vocab_size})"


class ObservationSpace(Space[Observation]):
    """All observations: deltas whose tokens are ids below the vocabulary's size."""

    def __init__(self, vocab_size: int, seed: int | None = None) -> None:
        super().__init__(None, None, seed)
        self.vocab_size = vocab_size

    @property
    def is_np_flattenable(self) -> bool:
        """False: arrays of any length have no fixed flat form."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> Observation:
        """A random first observation."""
        length = int(self.np_random.integers(1, _SAMPLE_LENGTH + 1))
        tokens = self.np_random.integers(0, self.vocab_size, size=length, dtype=np.int32)
        return Observation(tokens, 0, False, "main", "main")

    def contains(self, x: Any) -> bool:
        """Whether it is a well-formed delta."""
        if not isinstance(x, Observation):
            return False
        tokens, keep, extends, context, base = x
        return (
            isinstance(tokens, np.ndarray)  # pyright: ignore[reportUnnecessaryIsInstance]
            and tokens.dtype == np.int32
            and tokens.ndim == 1
            and (not tokens.size or (tokens.min() >= 0 and tokens.max() < self.vocab_size))
            and isinstance(keep, int)  # pyright: ignore[reportUnnecessaryIsInstance]
            and keep >= 0
            and isinstance(extends, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
            and isinstance(context, str)  # pyright: ignore[reportUnnecessaryIsInstance]
            and isinstance(base, str)  # pyright: ignore[reportUnnecessaryIsInstance]
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObservationSpace) and other.vocab_size == self.vocab_size

    def __repr__(self) -> str:
        return f"ObservationSpace({self.vocab_size})"
