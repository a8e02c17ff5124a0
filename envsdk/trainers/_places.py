"""The layout of the tokens of samples in the arrays of a batch: a padded row for each sample, or one row for all."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


class BatchLayout:
    """The places of the tokens of B samples in the arrays of a batch.

    Args:
        lengths: The number of tokens of each sample.
        width: The length of the row that each sample has; 0 puts all samples into one row, without padding.
    """

    def __init__(self, lengths: Sequence[int], width: int) -> None:
        self.lengths = np.array(lengths, dtype=np.int64)
        self.width = width
        self._stops = np.cumsum(self.lengths)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the arrays: (B, width), or (1, N) for one row with N tokens."""
        return (len(self.lengths), self.width) if self.width else (1, int(self._stops[-1]))

    def array(self, values: "Iterable[ArrayLike]", dtype: Any, padding: float = 0, row: Sequence[int] = ()) -> Any:
        """Return an array with the values of the samples, each in its place.

        Args:
            values: For each sample an array with one value (or one row) for each token, of which those after the
                sample's length are left out; or one value for all of its tokens.
            dtype: The type of the array. Values are converted to it.
            padding: The value where no sample is.
            row: The shape of the row of one token.
        """
        if not self.width:
            return self._joined(list(values), dtype)[None]
        filled = np.full((*self.shape, *row), padding, dtype=dtype)
        for place, length, value in zip(filled, self.lengths.tolist(), values, strict=True):
            place[:length] = value[:length] if isinstance(value, np.ndarray) and value.ndim else value
        return filled

    def _joined(self, values: "list[ArrayLike]", dtype: Any) -> "NDArray[Any]":
        """Return the values of the samples one after the other."""
        if not any(isinstance(value, np.ndarray) and value.ndim for value in values):
            return np.repeat(np.array(values, dtype=dtype), self.lengths)
        parts = [
            value[:length] if isinstance(value, np.ndarray) and value.ndim else np.full(length, value, dtype=dtype)
            for length, value in zip(self.lengths.tolist(), values, strict=True)
        ]
        return np.concatenate(parts, dtype=dtype, casting="unsafe")

    @property
    def attention_mask(self) -> "NDArray[np.bool_]":
        """True where a sample is: bool."""
        if not self.width:
            return np.ones(self.shape, dtype=np.bool_)
        return np.arange(self.width) < self.lengths[:, None]

    @property
    def position_ids(self) -> "NDArray[np.int64]":
        """The number of tokens before each token in its sample, 0 on padding: int64."""
        if not self.width:
            starts = np.repeat(self._stops - self.lengths, self.lengths)
            positions: NDArray[np.int64] = np.arange(len(starts)) - starts
            return positions[None]
        return np.where(self.attention_mask, np.arange(self.width), 0)

    @property
    def sample_ids(self) -> "NDArray[np.int64]":
        """The index of the sample of each token, -1 on padding: int64."""
        samples = np.arange(len(self.lengths))
        if not self.width:
            return np.repeat(samples, self.lengths)[None]
        return np.where(self.attention_mask, samples[:, None], -1)
