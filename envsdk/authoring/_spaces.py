"""Gymnasium spaces of actions and observations. `contains` checks an array in one vectorized comparison."""

from typing import Any

import numpy as np
from gymnasium import Space

from ..contexts._protocol import Observation
from ..episodes._actions import check_action
from ..errors import ActionError

_SAMPLE_LENGTH = 8


class _TokenSpace(Space[Any]):
    """A space of token arrays of any length, with ids below the size of a vocabulary."""

    def __init__(self, vocab_size: int, seed: int | None = None) -> None:
        super().__init__(None, np.int32, seed)
        self.vocab_size = vocab_size

    @property
    def is_np_flattenable(self) -> bool:
        """False: arrays of any length have no fixed flat form."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> Any:
        """Return a few random ids: int32, shape (n,)."""
        length = int(self.np_random.integers(1, _SAMPLE_LENGTH + 1))
        return self.np_random.integers(0, self.vocab_size, size=length, dtype=np.int32)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and other.vocab_size == self.vocab_size

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.vocab_size})"


class ActionSpace(_TokenSpace):
    """The space of actions: token arrays with ids below the vocabulary's size, and `Action` objects that hold them.

    Args:
        vocab_size: The size of the vocabulary.
        seed: Seeds `sample`.
    """

    def contains(self, x: Any) -> bool:
        """Return whether `step` accepts the action."""
        try:
            check_action(x, self.vocab_size)
        except ActionError:
            return False
        return True


class ObservationSpace(_TokenSpace):
    """The space of observations: deltas whose token ids are below the vocabulary's size.

    Args:
        vocab_size: The size of the vocabulary.
        seed: Seeds `sample`.
    """

    def sample(self, mask: None = None, probability: None = None) -> Observation:
        """Return a random first observation of a context."""
        return Observation(super().sample(), 0, False, "main", "main")

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a well-formed observation."""
        if not isinstance(x, Observation):
            return False
        tokens, keep, extends, context, base, media = x
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
            and isinstance(media, tuple)  # pyright: ignore[reportUnnecessaryIsInstance]
            and all(0 <= placed.start < placed.stop <= len(tokens) for placed in media)
        )
