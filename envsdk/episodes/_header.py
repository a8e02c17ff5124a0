"""What the record of an episode has besides its contexts: what identifies it, and errors as text."""

from dataclasses import dataclass, field
from typing import Any

from ..errors import encodable, message_of
from ..trajectories._steps import Origin


@dataclass(slots=True)
class EpisodeHeader:
    """What identifies an episode, as its trajectory has it."""

    id: str
    seed: int | None
    config: dict[str, Any]
    """The environment's own options."""
    group_id: str | None
    origins: list[Origin] = field(default_factory=list[Origin])
    """The episodes that it was forked from."""
    records_roles: bool = False
    """Whether its contexts record what each token belongs to."""


def describe_error(error: BaseException, *, with_notes: bool = True) -> str:
    """Return an exception as a record has it: its type, its message, and its notes."""
    notes: list[str] = getattr(error, "__notes__", []) if with_notes else []
    return " ".join([f"{type(error).__name__}: {message_of(error)}", *(encodable(str(note)) for note in notes)])
