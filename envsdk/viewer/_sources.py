"""Reads runs for a front end: rows as their lines appear, one checked episode at a time, and tokenizers."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import orjson

from .._untrusted import open_file, read_lines
from ..errors import ConfigError, EnvsdkError, InvalidRecord
from ..rendering.renderer import Renderer
from ..rendering.tokenizers import Tokenizer
from ..rollouts._run_description import RunDescription
from ..rollouts._stored_run import (
    COMPRESSED,
    PLAIN,
    EpisodeTime,
    StoredRun,
    difference_from_manifest,
    read_batches,
    read_times,
)
from ..trajectories._media import MEDIA
from ..trajectories._trajectory import Trajectory
from ._contents import Contents, Match
from ._filters import Filter
from ._rows import EpisodeRow, read_row

_SAMPLES = "samples.jsonl"
_MAX_DAMAGED = 1000
"""The maximum number of damaged lines: a file with more is not a file of records."""
_OWNER = re.compile(rb'"trajectory_id":("(?:[^"\\]|\\.)*")')


class _LinePlace(NamedTuple):
    """The place of a line: number `offset` in the batch that begins at byte `start`."""

    start: int
    offset: int


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A description of a source: the facts that hold for all its episodes.

    Attributes:
        name: A short name for headings: the folder's, or the file's.
        path: The path of the source.
        env: The environment's id; empty if there is no `run.json`, and so for all below.
        policy: The policy's name.
        model: The model's name, if the policy has one.
        renderer: The renderer's name.
        history: The history policy's name.
        created: When the run began: ISO 8601, in UTC.
        episodes: The planned number of episodes; 0 if that is unknown.
        is_complete: Whether the run is complete; None if that is unknown.
        versions: The versions of the packages that it ran with.
        configuration: The arguments that the caller of the run gave.
        segments: The segments after the first one: when each began (`at`), the number of `episodes` before it, and what
            had `changed`; see `Rollouts(allow_changed=...)`.
    """

    name: str
    path: str
    env: str = ""
    policy: str = ""
    model: str = ""
    renderer: str = ""
    history: str = ""
    created: str = ""
    episodes: int = 0
    is_complete: bool | None = None
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    configuration: Mapping[str, Any] = field(default_factory=dict[str, Any])
    segments: tuple[Mapping[str, Any], ...] = ()


class Source:
    """A run folder, or a file of trajectories, which may still grow.

    Args:
        path: A run folder, a folder with `trajectories.jsonl`, or a file such as `trajectories.jsonl` or
            `trajectories.jsonl.zst`.
        tokenizers: The tokenizers by their fingerprints; None for those that the run folder has.

    Raises:
        ConfigError: If there is no such file or folder, or the folder has no trajectories.
        RunFolderError: If its `run.json` or `manifest.json` is damaged.

    Attributes:
        path: The path that was given.
        file: The file of trajectories.
        rows: The rows that were read so far; see `refresh`.
        generation: How often the file was replaced by another one, so that `rows` began again.
    """

    @property
    def renderers(self) -> Mapping[str, Renderer] | None:
        """The renderer of each role; None if there is no run folder."""
        return None if self._stored is None else self._stored.renderers

    def __init__(self, path: Path | str, tokenizers: Mapping[str, Tokenizer] | None = None) -> None:
        self.path = Path(path)
        self._tokenizers: Mapping[str, Tokenizer] | None = tokenizers
        self.file, self._stored = _found(self.path)
        self._folder = self.path if self.path.is_dir() else None
        self.rows: list[EpisodeRow] = []
        self.generation = 0
        self._places: list[_LinePlace] = []
        self._stop = 0
        self._is_damaged = self._is_compared = False
        self._times: Mapping[str, EpisodeTime] = {}
        self._samples: tuple[int, Mapping[str, list[int]]] = (0, {})

    @property
    def info(self) -> RunInfo:
        """A description of the source."""
        name = (self.path if self.path.is_dir() else self.file).resolve().name
        if self._stored is None:
            return RunInfo(name, str(self.path))
        stored = StoredRun(self.path)  # read anew, since a run in progress rewrites its manifest
        configuration = stored.configuration
        policy, model = _policy_and_model(configuration.get("policy"))
        texts = {"env": configuration.get("env")}
        for key in ("renderer", "history"):
            given: Any = configuration.get(key)
            texts[key] = given.get("name") if isinstance(given, dict) else given  # pyright: ignore[reportUnknownMemberType]
        episodes = configuration.get("episodes")
        return RunInfo(
            name=name,
            path=str(self.path),
            **{key: text if isinstance(text, str) else "" for key, text in texts.items()},
            policy=policy,
            model=model,
            created=stored.description.created,
            episodes=episodes if isinstance(episodes, int) else 0,
            is_complete=None if stored.manifest is None else stored.manifest.is_complete,
            versions=stored.description.versions,
            configuration=configuration,
            segments=tuple([segment.model_dump() for segment in stored.description.segments]),
        )

    def refresh(self, *, most: int | None = None) -> int:
        """Read the rows of the lines that were completed since the last call.

        A line that is still being written is left for a later call. A file that became shorter was replaced: its rows
        are read from the start.

        Args:
            most: The maximum number of batches to read; None for all.

        Returns:
            The number of new rows.

        Raises:
            OSError: If the file cannot be read.
        """
        if self.file.exists() and self.file.stat().st_size < self._stop:
            self.rows, self._places, self._stop, self._is_damaged = [], [], 0, False
            self.generation += 1
        before, damage = len(self.rows), None
        if self._is_damaged or not self.file.exists():
            return 0
        damaged_lines, has_read_times = sum(row.is_damaged for row in self.rows), False
        try:
            for count, batch in enumerate(read_batches(self.file, self._stop, self._folder), start=1):
                for index, line in enumerate(batch.lines):
                    row = read_row(len(self.rows) + 1, line)
                    if row.id not in self._times and not has_read_times:  # a run writes the time before the line
                        self._times, has_read_times = read_times(self.file.parent), True
                    if (time := self._times.get(row.id)) is not None:
                        row = replace(row, ended=time.ended, duration_s=time.duration_s)
                    damaged_lines += row.is_damaged
                    self.rows.append(row)
                    self._places.append(_LinePlace(self._stop, index))
                self._stop = batch.stop
                if damaged_lines > _MAX_DAMAGED:
                    damage = f"more than {_MAX_DAMAGED:,} lines are damaged; what follows is not read"
                    break
                if count == most:
                    break
            else:
                if self._stored is not None and self._stored.manifest is not None and not self._is_compared:
                    self._is_compared = True  # a run in progress is not read again and again
                    damage = difference_from_manifest(self.file, self._stored.manifest)
        except InvalidRecord as error:  # such as a damaged compressed frame: lines after it cannot be found
            damage = f"{error}; what follows cannot be read"
        if damage:
            self._is_damaged = True
            self._places.append(_LinePlace(self._stop, 0))
            self.rows.append(EpisodeRow.damaged(len(self.rows) + 1, damage))
        return len(self.rows) - before

    @property
    def unread_bytes(self) -> int:
        """The number of bytes after the last row: a line that is being written, or was cut off."""
        return max(0, self.file.stat().st_size - self._stop) if self.file.exists() else 0

    def line(self, number: int) -> bytes:
        """Return a line as it is in the file, without the line end.

        Args:
            number: The number of the line, from 1; `rows` has it.

        Raises:
            InvalidRecord: If there is no such line, or it cannot be read.
        """
        if not 1 <= number <= len(self._places):
            raise InvalidRecord(f"{self.file} has no line {number}; expected 1 to {len(self._places)}")
        place = self._places[number - 1]
        batch = next(read_batches(self.file, place.start, self._folder), None)
        if batch is None or place.offset >= len(batch.lines):
            raise InvalidRecord(f"{self.file}, line {number} is gone: the file was changed")
        return batch.lines[place.offset]

    def trajectory(self, number: int) -> Trajectory:
        """Read one episode, and check all of it.

        Args:
            number: The number of its line, from 1.

        Raises:
            InvalidRecord: If there is no such line, or it is damaged; the message names the damage.
        """
        line = self.line(number)
        try:
            return Trajectory.from_json(line, media=self.media)
        except InvalidRecord as error:
            raise InvalidRecord(f"{self.file}, line {number}: {error}") from error

    def episodes(self) -> Iterator[tuple[EpisodeRow, Trajectory | None]]:
        """Read all episodes once, in order, and check all of each. One is in memory at a time.

        Yields:
            The row of each line with its episode; None if the line is damaged, and the row reports why.

        Raises:
            OSError: If the file cannot be read.
        """
        self.refresh()
        rows = [*self.rows]
        lines = self._lines_from(_LinePlace(0, 0)) if self.file.exists() else iter(())
        for row in rows:
            trajectory, line = None, next(lines, None)
            if line is not None and not row.is_damaged:
                try:
                    trajectory = Trajectory.from_json(line, media=self.media)
                except InvalidRecord as error:
                    row = EpisodeRow.damaged(row.line, str(error))
            yield row, trajectory

    def _lines_from(self, place: _LinePlace) -> Iterator[bytes]:
        left_out = place.offset
        with suppress(InvalidRecord):  # a damaged compressed frame: the last row reports it
            for batch in read_batches(self.file, place.start, self._folder):
                yield from batch.lines[left_out:]
                left_out = 0

    def search(self, chosen: Filter, after: int = 0) -> Iterator[tuple[EpisodeRow, Match | None]]:
        """Search the rows that were read. The file is read only if the filter is about contents, as far as needed.

        Args:
            chosen: The filter.
            after: The number of rows to skip at the start.

        Yields:
            Each row with its match; with None if it does not match.

        Raises:
            OSError: If the file cannot be read.
        """
        rows = self.rows[after:]
        if not chosen.texts or not rows:
            return ((row, Match(row.line) if chosen.matches(row) else None) for row in rows)
        lines = self._lines_from(self._places[after])

        def searched() -> Iterator[tuple[EpisodeRow, Match | None]]:
            for row in rows:
                contents = Contents(next(lines, b""))  # empty for a line that cannot be read
                is_match = chosen.matches(row, contents)
                yield row, contents.match(row.line, chosen.searched) if is_match else None

        return searched()

    def tokenizer_of(self, trajectory: Trajectory, context: str) -> Tokenizer | None:
        """Return the tokenizer of a context, by its fingerprint; None if the source has no intact one."""
        if self._tokenizers is None:
            self._tokenizers = dict[str, Tokenizer]()
            with suppress(EnvsdkError, OSError):  # its files are damaged or gone: tokens are then shown by their ids
                if self._stored is not None:
                    self._tokenizers = self._stored.tokenizers
        return self._tokenizers.get(trajectory.contexts[context].tokenizer or trajectory.tokenizer)

    @property
    def media(self) -> Path:
        """The folder with the files of the images, next to the file."""
        return self.file.parent / MEDIA

    def sample_lines(self, trajectory_id: str) -> list[bytes]:
        """Return the lines of one episode in the `samples.jsonl` next to the file, in order.

        Raises:
            InvalidRecord: If it has a line that is too long, or is not a regular file in the folder.
            OSError: If the file cannot be read.
        """
        path = self.file.parent / _SAMPLES
        size = path.stat().st_size if path.is_file() else 0
        if not size:
            return []
        with open_file(path, inside=path.parent) as file:
            if size != self._samples[0]:  # find where the samples of each episode begin, without reading their arrays
                places, start = dict[str, list[int]](), 0
                for line in read_lines(file):
                    with suppress(ValueError):
                        if (owner := _OWNER.search(line)) is not None:
                            places.setdefault(str(orjson.loads(owner[1])), []).append(start)
                    start += len(line)
                self._samples = size, places
            lines: list[bytes] = []
            for start in self._samples[1].get(trajectory_id, ()):
                file.seek(start)
                lines.append(next(read_lines(file), b"").removesuffix(b"\n"))
            return lines


def _found(path: Path) -> tuple[Path, StoredRun | None]:
    """Return the file of trajectories, and the run folder that it is in, if any."""
    if path.is_file():
        return path, None
    if not path.is_dir():
        raise ConfigError(f"{str(path)!r} does not exist; expected a run folder or a trajectories.jsonl file")
    if (path / RunDescription.file_name).exists():
        stored = StoredRun(path)
        return path / stored.description.trajectories, stored
    found = next((path / name for name in (PLAIN, COMPRESSED) if (path / name).is_file()), None)
    if found is None:
        raise ConfigError(
            f"{str(path)!r} has neither a {RunDescription.file_name} nor a {PLAIN}; expected a run folder, which a run "
            "with --out wrote, or a file of trajectories"
        )
    return found, None


def _policy_and_model(policy: Any) -> tuple[str, str]:
    """Return the names of a policy and of its model; of several policies, those of each role."""
    match policy:
        case str():
            return policy, ""
        case {"name": str(name)} | {"class": str(name)}:
            model = policy.get("model")
            return name.rpartition(":")[2], model if isinstance(model, str) else ""
        case dict():
            named = {role: _policy_and_model(one) for role, one in cast("dict[str, Any]", policy).items()}
            names = ", ".join(f"{role}: {name}" for role, (name, _) in named.items())
            return names, ", ".join(dict.fromkeys(model for _, model in named.values() if model))
        case _:
            return "", ""
