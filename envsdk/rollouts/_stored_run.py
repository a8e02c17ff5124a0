"""Reads a run folder, on any machine: it holds the tokenizer and the chat template that its tokens need.

The file of trajectories has batches: lines, or Zstandard frames with a checksum, so that a batch that was cut off is
recognized there, too.
"""

import hashlib
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import orjson
from pydantic import TypeAdapter, ValidationError

from .._packages import load
from .._registry import get_renderer
from .._untrusted import MAX_RECORD_MIB, MIB, check_values, max_line_bytes, open_file, read_lines
from .._visible import brief
from ..errors import EnvsdkError, InvalidRecord, RunFolderError
from ..rendering.renderer import Renderer
from ..rendering.tokenizers import Tokenizer, load_tokenizer
from ..trajectories._media import MEDIA
from ..trajectories._trajectory import ErrorKind, Status, Trajectory
from ._run_description import Manifest, RunDescription

PLAIN, COMPRESSED = "trajectories.jsonl", "trajectories.jsonl.zst"
TIMES = "times.jsonl"
_log = logging.getLogger(__name__)
_CHUNK = 1 << 16
_FED = 1 << 10
"""The number of bytes that are decompressed at once: they may expand to 32 MiB."""
_MAX_LINES = 4096
"""The maximum number of lines in a frame that is read."""
_FRAME = b"\x28\xb5\x2f\xfd"
"""The magic number at the start of each frame (RFC 8878)."""
_MAX_TIME_BYTES = 1 << 16
_MAX_DAMAGED_TIMES = 1000
"""The maximum number of damaged lines of times that are skipped; lines after them are not read."""


# Batches of lines.


class Batch(NamedTuple):
    """Lines that were read from a file, in order.

    Attributes:
        lines: The lines, without line ends.
        stop: The position in the file after them, in bytes.
    """

    lines: list[bytes]
    stop: int


def read_batches(path: Path, start: int = 0, inside: Path | None = None) -> Iterator[Batch]:
    """Read the complete batches of a file. Bytes after the last one were cut off, and are not yielded.

    Args:
        path: The file. It is compressed if its name ends with `.zst`.
        start: Where a batch begins, in bytes: 0, or the `stop` of a batch.
        inside: The folder that the file has to be in; None for any folder.

    Raises:
        InvalidRecord: If a frame of a compressed file is damaged, a line or a frame is too long (see
            `ENVSDK_MAX_RECORD_MIB`), or it is not a regular file in the folder.
        MissingPackage: If the file is compressed and the package for that is not installed.
    """
    with open_file(path, inside) as file:
        file.seek(start)
        if path.suffix == ".zst":
            yield from _read_frames(file, start)
            return
        for line in read_lines(file):
            if line.endswith(b"\n"):
                start += len(line)
                yield Batch([line[:-1]], start)


def _read_frames(file: BinaryIO, start: int) -> Iterator[Batch]:
    zstandard, rest = load_zstandard(), b""
    while True:
        frame, content, lines, length = zstandard.ZstdDecompressor().decompressobj(), bytearray(), 0, 0
        while not frame.eof and (chunk := rest or file.read(_FED)):
            try:
                part = frame.decompress(chunk)
            except zstandard.ZstdError as error:
                raise InvalidRecord(f"the frame at byte {start} is damaged: {error}") from error
            content += part
            lines += part.count(b"\n")
            if len(content) > max_line_bytes() or lines > _MAX_LINES:
                raise InvalidRecord(
                    f"the frame at byte {start} expands to more than {max_line_bytes() // MIB:,} MiB or "
                    f"{_MAX_LINES:,} lines, the most that is read. Set {MAX_RECORD_MIB} to read longer ones"
                )
            length, rest = length + len(chunk), b""
        if not frame.eof:
            _check_cut_off(file, start, zstandard)
            return
        rest = frame.unused_data
        start += length - len(rest)
        yield Batch(bytes(content).splitlines(), start)


def _check_cut_off(file: BinaryIO, start: int, zstandard: Any) -> None:
    """Check that a frame without an end was cut off: a damaged frame may seem longer, but then other frames follow it.

    Raises:
        InvalidRecord: If a whole frame follows, or more data than fits into one frame.
    """
    file.seek(start)
    most = 2 * max_line_bytes()  # an incompressible frame is hardly longer than its content
    data, work = file.read(most + 1), 0
    at = data.find(_FRAME, 1)
    while at > 0 and work <= most:
        frame, place = zstandard.ZstdDecompressor().decompressobj(), at
        with suppress(zstandard.ZstdError):  # the same bytes inside a frame
            while not frame.eof and place < len(data) and work <= most:
                work += len(frame.decompress(data[place : place + _FED])) + _FED
                place += _FED
            if frame.eof:
                raise InvalidRecord(f"the frame at byte {start} is damaged: it does not end before the next one")
        at = data.find(_FRAME, at + 1)
    if max(len(data), work) > most:
        raise InvalidRecord(f"the frame at byte {start} is damaged: it does not end within {most // MIB:,} MiB")


def load_zstandard() -> Any:
    """Import zstandard and return it.

    Raises:
        MissingPackage: If it is not installed.
    """
    return load("zstandard", "A compressed run folder needs", "pip install 'envsdk[zstd]'")


def digest_of(path: Path, length: int, inside: Path | None = None) -> Any:
    """Return the SHA-256 of a file's first `length` bytes, as an object of `hashlib` that can be updated."""
    digest, left = hashlib.sha256(), length
    with open_file(path, inside) as file:
        while left and (chunk := file.read(min(_CHUNK, left))):
            digest.update(chunk)
            left -= len(chunk)
    return digest


def difference_from_manifest(file: Path, manifest: Manifest) -> str | None:
    """Return how the beginning of a file differs from the length and checksum in the manifest; None if it does not.

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
            f"{file} was changed: its first {manifest.bytes:,} bytes do not have the checksum in "
            f"{Manifest.file_name}. Restore the file"
        )
    return None


# Reading a run.


class StoredRun:
    """A run folder that is read. It may still be written: incomplete lines are left out.

    A warning is logged if the folder has no manifest, because its trajectories are then not verified.

    Args:
        path: The folder.
        segment: The number of the segment to read, from 1, or -1 for the last one; None for the whole run. A run has
            several if it was continued with `allow_changed`.

    Raises:
        RunFolderError: If it is not a run folder, its `run.json` or `manifest.json` is damaged, or it has no such
            segment.
    """

    def __init__(self, path: Path | str, *, segment: int | None = None) -> None:
        self.path = Path(path)
        try:
            description = RunDescription.read(self.path)
            manifest = Manifest.read(self.path)
        except OSError as error:
            raise RunFolderError(f"{str(self.path)!r} cannot be read: {error}. Expected a run folder") from error
        if description is None:
            raise RunFolderError(
                f"{str(self.path)!r} is not a run folder: it has no {RunDescription.file_name}. Expected a folder that "
                "a run with out=... wrote"
            )
        self.description = description
        """The configuration of the run, and the versions that it ran with."""
        self.manifest = manifest
        """The manifest as it was last written; None if it is missing."""
        segments = [*pairwise([0, *(one.episodes for one in description.segments), sys.maxsize])]
        if segment not in (None, -1, *range(1, len(segments) + 1)):
            raise RunFolderError(
                f"{str(self.path)!r} has {len(segments)} segments, and no segment {brief(segment, 20)}"
            )
        self._lines = (0, sys.maxsize) if segment is None else segments[max(segment - 1, -1)]
        if manifest is None:
            _log.warning("%s has no %s, so its trajectories are not verified", self.path, Manifest.file_name)

    @property
    def configuration(self) -> Mapping[str, Any]:
        """The arguments that the caller of the run gave."""
        return self.description.configuration

    def trajectories(self, *, check: bool = True) -> Iterator[Trajectory]:
        """Read the trajectories, in the order in which the episodes ended.

        If lines are missing that `manifest.json` counts, or the last one was cut off, a warning states how many.

        Args:
            check: Whether to compare the file with the length and the checksum in `manifest.json` before it is read.
                False reads as much as possible of a file that was cut or changed.

        Raises:
            RunFolderError: If the file was cut or changed, or a line is damaged; the message names it.
        """
        file, number, stop = self.path / self.description.trajectories, 0, 0
        try:
            if check and self.manifest is not None and (difference := difference_from_manifest(file, self.manifest)):
                left = sum(1 for _ in StoredRun(self.path).trajectories(check=False)) if file.exists() else 0
                raise RunFolderError(
                    f"{difference}, or read the {left} of {self.manifest.episodes} episodes that it has: "
                    "trajectories(check=False)"
                )
            for batch in read_batches(file, inside=self.path):
                for line in batch.lines:
                    number += 1
                    if self._lines[0] < number <= self._lines[1]:
                        yield Trajectory.from_json(line, media=self.path / MEDIA)
                stop = batch.stop
            cut = file.stat().st_size - stop
            left_out = max(0 if self.manifest is None else self.manifest.episodes - number, int(cut > 0))
            if left_out:
                what = "1 line is left out" if left_out == 1 else f"{left_out} lines are left out"
                why = f"{cut} bytes of a line that was cut off, or is being written" if cut else "the end is missing"
                _log.warning("%s: after %d lines, %s: %s", file, number, what, why)
        except InvalidRecord as error:
            raise RunFolderError(f"{file}, line {number}: {error}") from error
        except OSError as error:
            raise RunFolderError(f"{file} cannot be read: {error}") from error

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the environment's renderer. It needs neither that renderer nor the environment."""
        return self._tokenizer(next(iter(self.description.renderers.values())).folder)

    @property
    def renderer(self) -> Renderer:
        """The environment's renderer."""
        return next(iter(self.renderers.values()))

    @cached_property
    def renderers(self) -> Mapping[str, Renderer]:
        """The renderer of each role.

        Raises:
            UnknownName: If no renderer of that name is installed.
            TokenizerError: If the files of a tokenizer are damaged.
            RunFolderError: If the options of a renderer are damaged.
        """
        made: dict[str, Renderer] = {}
        for role, stored in self.description.renderers.items():
            options = dict(stored.specification)
            options.pop("processor", None)  # images are processed already; the model's files may be missing
            try:
                made[role] = get_renderer(options.pop("name", None), self._tokenizer(stored.folder), **options)
            except EnvsdkError:
                raise
            except (TypeError, ValueError, LookupError, AttributeError) as error:  # options of wrong types
                raise RunFolderError(
                    f"the renderer of {role!r} in {str(self.path)!r} cannot be made of "
                    f"{brief(stored.specification, 200)}: {type(error).__name__}: {error}"
                ) from error
        return made

    @cached_property
    def tokenizers(self) -> Mapping[str, Tokenizer]:
        """Each tokenizer by its fingerprint."""
        folders = {stored.tokenizer: stored.folder for stored in self.description.renderers.values()}
        return {fingerprint: self._tokenizer(folder) for fingerprint, folder in folders.items()}

    def tokenizer_of(self, trajectory: Trajectory, context: str | None = None) -> Tokenizer:
        """Return the tokenizer of an episode, or of one of its contexts.

        Raises:
            RunFolderError: If the folder does not have it.
        """
        own = "" if context is None else trajectory.contexts[context].tokenizer
        fingerprint = own or trajectory.tokenizer
        if fingerprint not in self.tokenizers:
            raise RunFolderError(
                f"{str(self.path)!r} does not have the tokenizer {fingerprint} of {trajectory.id!r}, context "
                f"{context!r}; it has {', '.join(self.tokenizers)}"
            )
        return self.tokenizers[fingerprint]

    def _tokenizer(self, folder: str) -> Tokenizer:
        if not (self.path / folder).resolve().is_relative_to(self.path.resolve()):
            raise RunFolderError(f"{str(self.path / folder)!r} is a link to a folder outside of the run folder")
        return load_tokenizer(self.path / folder)

    def __repr__(self) -> str:
        count = "" if self.manifest is None else f", {self.manifest.episodes} episodes"
        return f"<StoredRun {str(self.path)!r}{count}>"


class EpisodeTime(NamedTuple):
    """The time at which an episode ended.

    Attributes:
        id: The episode's id.
        ended: The time: ISO 8601, in UTC, in seconds.
        duration_s: How long it took, in seconds, with retries and pauses; None if that is not known.
    """

    id: str
    ended: str
    duration_s: float | None


_TIME = TypeAdapter(EpisodeTime)


def read_times(folder: Path) -> Mapping[str, EpisodeTime]:
    """Return the end times of the episodes of a folder by id. Lines that cannot be read are left out.

    Raises:
        OSError: If the file exists and cannot be read.
    """
    found: dict[str, EpisodeTime] = {}
    damaged = 0
    try:
        with open_file(folder / TIMES, inside=folder) as file:
            for line in read_lines(file):
                if len(line) > _MAX_TIME_BYTES:
                    raise InvalidRecord(f"a line has more than {_MAX_TIME_BYTES:,} bytes")
                try:
                    time = _TIME.validate_json(line)
                    found[time.id] = time
                except ValidationError:  # a line that is being written, or was cut off
                    damaged += 1
                    if damaged > _MAX_DAMAGED_TIMES:
                        raise InvalidRecord(f"more than {_MAX_DAMAGED_TIMES:,} lines are damaged") from None
    except FileNotFoundError:
        pass
    except InvalidRecord as error:
        _log.warning("%s is not read further, so episodes have no times: %s", folder / TIMES, error)
    return found


# Reading a run that is to continue.


class StoredEpisode(NamedTuple):
    """The facts of a stored episode that a run folder counts.

    Attributes:
        id: The episode's id.
        status: How it ended: `terminated`, `truncated` or `error`.
        error_kind: The kind of its error, if that was recorded.
    """

    id: str
    status: Status
    error_kind: ErrorKind | None

    @classmethod
    def of_line(cls, line: bytes, *, is_known: bool) -> Self:
        """Return the facts of a line. A line that is known to be intact is not checked again."""
        if is_known:
            check_values(line)
            with suppress(ValueError, LookupError, TypeError):  # the full check names what is wrong
                record = orjson.loads(line)
                return cls(record["id"], record["status"], record["error_kind"])
        trajectory = Trajectory.from_json(line)
        return cls(trajectory.id, trajectory.status, trajectory.error_kind)


@dataclass
class StoredEpisodes:
    """The contents of a file of trajectories.

    Attributes:
        episodes: Its episodes by id, in the order of the file.
        length: The length of the complete lines, in bytes. Bytes after them were cut off.
    """

    episodes: dict[str, StoredEpisode] = field(default_factory=dict[str, StoredEpisode])
    length: int = 0


def recover(file: Path, manifest: Manifest | None) -> StoredEpisodes:
    """Read the trajectories of a run that is to continue.

    The manifest has the checksum of the beginning of the file. Lines after it were written by a run that was killed
    before it wrote the next manifest: each of them is checked, and a last line that was cut off is left out, with a
    warning.

    Raises:
        RunFolderError: If the file is shorter than in the manifest, or was changed; a line is damaged and
            others follow; or two lines have the same id. The message names the line.
    """
    difference = None if manifest is None else difference_from_manifest(file, manifest)
    known = 0 if manifest is None else manifest.bytes  # these bytes must not be damaged
    found, lines, number = StoredEpisodes(), dict[str, int](), 0
    damage: RunFolderError | None = None
    try:
        for batch in read_batches(file, inside=file.parent) if file.exists() else ():
            if damage is not None:
                raise damage
            for line in batch.lines:
                number += 1
                try:
                    episode = StoredEpisode.of_line(line, is_known=difference is None and batch.stop <= known)
                except InvalidRecord as error:
                    damage = RunFolderError(f"{file}, line {number} is damaged: {error}. Restore the file")
                    if file.name == COMPRESSED or batch.stop <= known:  # a line that was cut off has no checksum
                        raise damage from error
                    break
                if episode.id in lines:
                    raise RunFolderError(
                        f"{file} has the episode {episode.id!r} twice, in the lines {lines[episode.id]} and {number}"
                    )
                lines[episode.id] = number
                found.episodes[episode.id] = episode
            else:
                found.length = batch.stop
    except InvalidRecord as error:
        raise RunFolderError(f"{file}, after line {number}: {error}. Restore the file") from error
    if difference is not None:
        raise RunFolderError(f"{difference}, or begin another run folder")
    if manifest is not None and len(found.episodes) < manifest.episodes:
        raise RunFolderError(
            f"{file} has {len(found.episodes)} episodes, but {Manifest.file_name} counts {manifest.episodes}"
        )
    cut = (file.stat().st_size if file.is_file() else 0) - found.length
    if cut > 0:
        _log.warning(
            "%s: the last %d bytes were cut off when the run was interrupted; they are removed, and their episodes "
            "run again",
            *(file, cut),
        )
    return found
