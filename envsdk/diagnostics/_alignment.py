"""The comparison of two token logs, which shows whether the trained tokens are the sampled ones."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .._visible import type_of
from ..errors import InvalidSample
from ..trajectories._samples import Sample
from ._inputs import token_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray

Tokens: TypeAlias = "Sample | Sequence[int] | NDArray[np.integer[Any]]"
"""A sample, or token ids of shape (n,)."""


@dataclass(frozen=True, slots=True)
class TokenMatch:
    """The number of sampled tokens that are the same in both logs, at the same position.

    Attributes:
        sampled: The number of sampled tokens that were compared.
        same: The number of sampled tokens that the other log has at the same position.
        records: The number of records.
        differing_records: The number of records in which a sampled token is different or missing.
        first_difference: The index of the first record that differs, and the position of its first different token;
            None if there is no difference.
        share: `same / sampled`; 1.0 if nothing was sampled.
    """

    sampled: int
    same: int
    records: int
    differing_records: int
    first_difference: tuple[int, int] | None

    @property
    def share(self) -> float:
        """The share of sampled tokens that are the same, from 0 to 1; 1.0 if nothing was sampled."""
        return self.same / self.sampled if self.sampled else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and `share` as plain values for JSON."""
        return {"share": self.share, **asdict(self)}

    def __str__(self) -> str:
        where = ""
        if self.first_difference is not None:
            index, position = self.first_difference
            where = f"; the first difference is at position {position} of record {index}"
        return (
            f"{self.share:.1%} of the sampled tokens are the same at the same position ({self.same:,} of "
            f"{self.sampled:,}); {self.differing_records} of {self.records} records differ{where}"
        )


def token_match(sampled: Sequence[Tokens], trained: Sequence[Tokens]) -> TokenMatch:
    """Compare the tokens that were sampled with the tokens that a trainer uses, position by position.

    Args:
        sampled: The sampler's records. A `Sample` contributes its tokens with mask True, an array of ids all its
            tokens.
        trained: The trainer's records, in the same order. A position after the end of its record is a difference.

    Raises:
        InvalidSample: If the numbers of records differ, or a record is not a flat array of token ids.
    """
    pairs = [_as_list("sampled", sampled), _as_list("trained", trained)]
    if len(pairs[0]) != len(pairs[1]):
        raise InvalidSample(
            f"sampled has {len(pairs[0])} records and trained has {len(pairs[1])}; expected the same records in the "
            "same order"
        )
    count = same = differing = 0
    first: tuple[int, int] | None = None
    for index, (left, right) in enumerate(zip(*pairs, strict=True)):
        tokens, others = (
            token_ids(f"record {index}", record.tokens if isinstance(record, Sample) else record)
            for record in (left, right)
        )
        positions = np.flatnonzero(left.mask) if isinstance(left, Sample) else np.arange(len(tokens))
        is_same = np.zeros(len(positions), dtype=np.bool_)
        inside = positions < len(others)
        is_same[inside] = tokens[positions[inside]] == others[positions[inside]]
        count, same = count + len(positions), same + int(is_same.sum())
        if not is_same.all():
            differing += 1
            first = first or (index, int(positions[int(np.argmin(is_same))]))
    return TokenMatch(count, same, len(pairs[0]), differing, first)


def _as_list(name: str, records: Any) -> list[Tokens]:
    try:
        return list(records)
    except TypeError as error:
        raise InvalidSample(f"{name} is {type_of(records)}; expected a list of records") from error
