"""The role of each token: labels, as runs of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..contexts._protocol import Count
from ._stored import Int16s, Int32s, StoredRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Roles(StoredRecord):
    """The role of each of n tokens.

    Attributes:
        legend: The labels: `system`, `user`, `developer` and `tool:NAME` (`tool` without a name) are the text of such a
            message; `content`, `reasoning` and `call` are an assistant's; `scaffold` is the family's own text (control
            tokens, headers, a generation prompt, a prefill).
        starts: int32, shape (m,): the position at which each run of equal labels begins, 0 included.
        run_codes: int16, shape (m,): for each run an index of `legend`; -1 where nothing is known, because the reply
            was never finished.
        length: n.
        codes: int16, shape (n,): the code of each token.
    """

    legend: list[str]
    starts: Int32s
    run_codes: Int16s
    length: Count

    @classmethod
    def of(cls, legend: Sequence[str], codes: "NDArray[np.int16]") -> "Roles":
        """Make roles from the code of each token. Labels at the end of the legend that no token has are left out."""
        is_start = np.append(True, codes[1:] != codes[:-1])[: len(codes)]
        starts = np.flatnonzero(is_start).astype(np.int32)
        return cls(list(legend[: codes.max(initial=-1) + 1]), starts, codes[starts], len(codes))

    @classmethod
    def joined(cls, parts: "Sequence[tuple[Roles, slice]]") -> "Roles":
        """Return the roles of slices of several logs, one after the other."""
        legend: dict[str, int] = {}
        codes = [np.empty(0, np.int16)]
        for roles, where in parts:
            own = [legend.setdefault(label, len(legend)) for label in roles.legend]
            codes.append(np.array([*own, -1], dtype=np.int16)[roles.codes[where]])
        return cls.of(list(legend), np.concatenate(codes))

    def __len__(self) -> int:
        return self.length

    @property
    def codes(self) -> "NDArray[np.int16]":
        """The code of each token: int16, shape (n,)."""
        return np.repeat(self.run_codes, np.diff(self.starts, append=np.int32(self.length)))

    def labels(self) -> list[str | None]:
        """Return the label of each token; None where nothing is known."""
        names = (*self.legend, None)  # the last is that of code -1
        return [names[code] for code in self.codes.tolist()]

    def are(self, label: str) -> "NDArray[np.bool_]":
        """Return whether each token has a label: bool, shape (n,). `tool` is that of every tool."""
        codes = [code for code, name in enumerate(self.legend) if name == label or name.startswith(f"{label}:")]
        return np.isin(self.codes, codes)

    def check(self, length: int) -> None:
        """Check that there is a code of the legend for each of `length` tokens.

        Raises:
            ValueError: If there is not; the message is about "it".
        """
        if self.length != length:
            raise ValueError(f"it has {self.length} codes for {length} tokens")
        bounds = np.append(self.starts, length)
        if len(self.starts) != len(self.run_codes) or bounds[0] != 0 or (np.diff(bounds) <= 0).any():
            raise ValueError("its starts do not increase from 0 to its length, with a code for each")
        if ((self.run_codes < -1) | (self.run_codes >= len(self.legend))).any():
            raise ValueError(f"it has a code outside -1 to {len(self.legend) - 1}, the indices of its legend")
