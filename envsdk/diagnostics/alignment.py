"""Two logs of tokens side by side: are the tokens that are trained the tokens that were sampled?"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..errors import InvalidSample
from ..trajectories.samples import Sample
from .given import token_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray

Tokens: TypeAlias = "Sample | Sequence[int] | NDArray[np.integer[Any]]"
"""A sample, or token ids of shape (n,)."""


@dataclass(frozen=True, slots=True)
class TokenMatch:
    """How many of the sampled tokens are the same at the same position."""

    sampled: int
    """Tokens that were sampled."""
    same: int
    """Those of them that the other log has at the same position."""
    records: int
    break_: int
    """How many records have a sampled token that is another, or is missing."""
    first: tuple[int, int] | None
    """The first difference: the record's index and the position in it; None if there is none."""

    @property
    def share(self) -> float:
        """`same / sampled`; 1.0 if nothing was sampled."""
        return self.same / self.sampled if self.sampled else 1.0

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {"share": self.share, **asdict(self)}

    def __str__(self) -> str:
        where = "" if self.first is None else f"; the first at position {self.first[1]} of record {self.first[0]}"
        return (
            f"{self.share:.1%} of the sampled tokens are the same at the same position ({self.same:,} of "
            f"{self.sampled:,}); {self.break_} of {self.records} records differ{where}"
        )


def token_match(sampled: Sequence[Tokens], trained: Sequence[Tokens]) -> TokenMatch:
    """Compare what was sampled with what a trainer has in its place, position by position.

    Args:
        sampled: The records of the sampler: of a `Sample` the tokens with mask True count, of plain ids all.
        trained: The same records of the trainer, in the same order. A position behind a record's end is a difference.

    Raises:
        InvalidSample: If there are not as many records, or one is no flat array of ids.
    """
    records = [_listed("sampled", sampled), _listed("trained", trained)]
    if len(records[0]) != len(records[1]):
        raise InvalidSample(f"there are {len(records[0])} sampled records and {len(records[1])} trained ones")
    count = same = break_ = 0
    first: tuple[int, int] | None = None
    for index, (left, right) in enumerate(zip(*records, strict=True)):
        positions, is_same = _compare(index, left, right)
        count, same = count + len(positions), same + int(is_same.sum())
        if not is_same.all():
            break_ += 1
            first = first or (index, int(positions[int(np.argmin(is_same))]))
    return TokenMatch(count, same, len(records[0]), break_, first)


def _compare(index: int, left: Tokens, right: Tokens) -> "tuple[NDArray[np.intp], NDArray[np.bool_]]":
    """The positions of the sampled tokens, and whether the other record has the same token there."""
    tokens, others = (
        token_ids(f"record {index}", record.tokens if isinstance(record, Sample) else record)
        for record in (left, right)
    )
    positions = np.flatnonzero(left.mask) if isinstance(left, Sample) else np.arange(len(tokens))
    is_same = np.zeros(len(positions), dtype=np.bool_)
    inside = positions < len(others)
    is_same[inside] = tokens[positions[inside]] == others[positions[inside]]
    return positions, is_same


def _listed(name: str, records: Any) -> list[Tokens]:
    try:
        return list(records)
    except TypeError as error:
        raise InvalidSample(f"{name} is a {type(records).__name__}; expected a list of records") from error
