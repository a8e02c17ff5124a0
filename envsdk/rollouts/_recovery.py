"""Reads the trajectories of a run that is to continue, and recognizes what was cut off or damaged."""

import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import orjson

from .._untrusted import check_values
from ..errors import InvalidRecord, RunFolderError
from ..trajectories._trajectory import ErrorKind, Status, Trajectory
from ._journal import COMPRESSED, digest_of, read_batches
from ._run_description import Manifest

_log = logging.getLogger(__name__)


class FinishedEpisode(NamedTuple):
    """What a run needs to know of an episode that is stored.

    Attributes:
        id: The episode's id.
        group_id: The id of its group, or None.
        status: How it ended: `terminated`, `truncated` or `error`.
        error_kind: Whose error it was, if that was recorded.
        reward: The sum of its rewards.
        steps: How many steps it has.
        sampled_tokens: How many tokens the policy sampled.
    """

    id: str
    group_id: str | None
    status: Status
    error_kind: ErrorKind | None
    reward: float
    steps: int
    sampled_tokens: int

    @classmethod
    def of(cls, trajectory: Trajectory) -> Self:
        """Return it for a trajectory."""
        return cls(
            id=trajectory.id,
            group_id=trajectory.group_id,
            status=trajectory.status,
            error_kind=trajectory.error_kind,
            reward=trajectory.reward,
            steps=len(trajectory.steps),
            sampled_tokens=trajectory.sampled_tokens,
        )

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Self:
        """Return it for a line that is known to be the one that was written."""
        steps: list[dict[str, Any]] = record["steps"]
        return cls(
            id=record["id"],
            group_id=record["group_id"],
            status=record["status"],
            error_kind=record["error_kind"],
            reward=math.fsum(step["reward"] or 0.0 for step in steps),
            steps=len(steps),
            sampled_tokens=sum(step["parts"][-1]["stop"] - step["action_start"] for step in steps if step["parts"]),
        )


@dataclass
class Recovered:
    """What a file of trajectories holds.

    Attributes:
        episodes: Its episodes by id, in the order of the file.
        length: The length of the whole lines, in bytes. What follows was cut off.
    """

    episodes: dict[str, FinishedEpisode] = field(default_factory=dict[str, FinishedEpisode])
    length: int = 0


def difference_from_manifest(file: Path, manifest: Manifest) -> str | None:
    """Return how the beginning of a file differs from what the manifest of the run vouches for; None if it does not.

    Raises:
        OSError: If the file cannot be read.
        InvalidRecord: If it is not a regular file in the folder.
    """
    size = file.stat().st_size if file.exists() else 0
    if size < manifest.bytes:
        return (
            f"{file} has {size:,} bytes, but {Manifest.file_name} counts {manifest.bytes:,}: its end is missing. "
            "Restore the file"
        )
    if manifest.bytes and digest_of(file, manifest.bytes, file.parent).hexdigest() != manifest.sha256:
        return (
            f"{file} was changed: its first {manifest.bytes:,} bytes have another checksum than {Manifest.file_name} "
            "has. Restore the file"
        )
    return None


def recover(file: Path, manifest: Manifest | None) -> Recovered:
    """Read the trajectories of a run that is to continue.

    The manifest vouches for the beginning of the file. What follows was written by a run that was killed before it
    wrote the next manifest: each line there is checked, and a last line that was cut off is left out, with a warning.

    Raises:
        RunFolderError: If the file is shorter than the manifest says, or differs from what was written; a line is
            damaged and others follow; or two lines have the same id. The message names the line.
    """
    difference = None if manifest is None else difference_from_manifest(file, manifest)
    if difference is not None and not file.exists():
        raise RunFolderError(f"{difference}, or begin another run folder")
    recovered = _read(file, 0 if manifest is None else manifest.bytes, is_intact=difference is None)
    if difference is not None:
        raise RunFolderError(f"{difference}, or begin another run folder")
    if manifest is not None and len(recovered.episodes) < manifest.episodes:
        raise RunFolderError(
            f"{file} has {len(recovered.episodes)} episodes, but {Manifest.file_name} counts {manifest.episodes}"
        )
    size = file.stat().st_size if file.is_file() else 0
    if size > recovered.length:
        _log.warning(
            "%s: the last %d bytes were cut off when the run was interrupted; they are removed, and their episodes "
            "run again",
            *(file, size - recovered.length),
        )
    return recovered


def _read(file: Path, known: int, *, is_intact: bool) -> Recovered:
    """Read the lines. None in the first `known` bytes may be damaged; if they are intact, they are not checked."""
    recovered, lines, damage = Recovered(), dict[str, int](), None
    number = 0
    try:
        for batch in read_batches(file, inside=file.parent):
            if damage is not None:
                raise damage
            for line in batch.lines:
                number += 1
                try:
                    episode = _episode(line, is_known=is_intact and batch.stop <= known)
                except InvalidRecord as error:
                    damage = RunFolderError(f"{file}, line {number} is damaged: {error}. Restore the file")
                    if file.name == COMPRESSED or batch.stop <= known:  # nothing that was cut off has a checksum
                        raise damage from error
                    break
                if episode.id in lines:
                    raise RunFolderError(
                        f"{file} has the episode {episode.id!r} twice, in the lines {lines[episode.id]} and {number}"
                    )
                lines[episode.id] = number
                recovered.episodes[episode.id] = episode
            else:
                recovered.length = batch.stop
    except InvalidRecord as error:
        raise RunFolderError(f"{file}, after line {number}: {error}. Restore the file") from error
    return recovered


def _episode(line: bytes, *, is_known: bool) -> FinishedEpisode:
    if is_known:
        check_values(line)
        with suppress(ValueError, LookupError, TypeError, AttributeError):  # the full check names what is wrong
            return FinishedEpisode.of_record(cast("dict[str, Any]", orjson.loads(line)))
    return FinishedEpisode.of(Trajectory.from_json(line))
