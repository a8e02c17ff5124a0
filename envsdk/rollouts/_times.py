"""When each episode of a run ended and how long it took, in a file of its own: trajectories do not depend on time."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import orjson
from pydantic import TypeAdapter, ValidationError

from .._untrusted import open_file, read_lines
from ..errors import InvalidRecord
from ._run_description import now

TIMES = "times.jsonl"
_MAX_LINE_BYTES = 1 << 16
_MAX_DAMAGED = 1000
"""The most lines that are passed over; what follows is not read."""
_log = logging.getLogger(__name__)


class EpisodeTime(NamedTuple):
    """When an episode ended.

    Attributes:
        id: The episode's id.
        ended: When it ended: ISO 8601, in UTC, in seconds.
        duration_s: How long it took, in seconds, with retries and pauses; None if that is not known.
    """

    id: str
    ended: str
    duration_s: float | None


_ADAPTER = TypeAdapter(EpisodeTime)


def append_times(folder: Path, durations: Sequence[tuple[str, float | None]]) -> None:
    """Note that episodes have ended now. If that fails, a warning is logged: the times are not worth a run.

    Args:
        folder: The run folder.
        durations: The id of each episode, and how long it took, in seconds.
    """
    ended = now()
    lines = [orjson.dumps({"id": name, "ended": ended, "duration_s": duration}) + b"\n" for name, duration in durations]
    try:
        with (folder / TIMES).open("ab") as file:
            file.write(b"".join(lines))
    except OSError as error:
        _log.warning("%s cannot be written, so these episodes have no times: %s", folder / TIMES, error)


def read_times(folder: Path) -> Mapping[str, EpisodeTime]:
    """Return when the episodes of a folder ended, by their ids. Lines that cannot be read are left out.

    Raises:
        OSError: If the file is there and cannot be read.
    """
    found: dict[str, EpisodeTime] = {}
    damaged = 0
    try:
        with open_file(folder / TIMES, inside=folder) as file:
            for line in read_lines(file):
                try:
                    if len(line) > _MAX_LINE_BYTES:
                        raise InvalidRecord(f"a line has more than {_MAX_LINE_BYTES:,} bytes")
                    time = _ADAPTER.validate_json(line)
                    found[time.id] = time
                except ValidationError:  # a line that is being written, or was cut off
                    damaged += 1
                    if damaged > _MAX_DAMAGED:
                        raise InvalidRecord(f"more than {_MAX_DAMAGED:,} lines are damaged") from None
    except FileNotFoundError:
        pass
    except InvalidRecord as error:
        _log.warning("%s is not read further, so episodes have no times: %s", folder / TIMES, error)
    return found
