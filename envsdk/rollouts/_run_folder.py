"""The folder of a run while it is written: each trajectory is on disk before it is reported, and a run can continue.

    run.json            what was configured, and the versions of what it depends on
    tokenizer/          the tokenizer and its chat template; tokenizer-2/ and so on if roles have others
    trajectories.jsonl  one trajectory per line, in the order in which the episodes ended (or trajectories.jsonl.zst)
    manifest.json       how many there are, and the length and the checksum of the file
    times.jsonl         when each episode ended, and how long it took
    run.lock            locked by the process that writes

A thread of its own writes: whatever waits is written with one `write` and one `fsync`, so the event loop is never
blocked, and many episodes that end together cost one of both.
"""

import asyncio
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from .._packages import load
from ..errors import RunFolderError, StorageError
from ..rendering.renderer import Renderer
from ..trajectories._media import MEDIA, write_images
from ..trajectories._trajectory import Trajectory
from ..trajectories.records import storing
from ._journal import COMPRESSED, PLAIN, Journal
from ._recovery import FinishedEpisode, Recovered, recover
from ._run_description import (
    CHANGES,
    Manifest,
    RunDescription,
    StoredRenderer,
    as_json,
    counted,
    described,
    differences,
    is_changeable,
    is_unknown,
    now,
    versions,
)
from ._stored_run import StoredRun
from ._times import TIMES, append_times
from ._unequal import unequal

if TYPE_CHECKING:
    from filelock import BaseFileLock

_log = logging.getLogger(__name__)
_LOCK = "run.lock"
_BATCH = 256
"""The maximum number of trajectories that are written at once."""
_MANIFEST_INTERVAL_S = 5.0


class _Waiting(NamedTuple):
    """A trajectory that waits until it is on disk."""

    trajectory: Trajectory
    duration_s: float | None
    written: "Future[None]"


class _Line(NamedTuple):
    """Its line."""

    line: bytes
    id: str
    duration_s: float | None
    episode: FinishedEpisode
    written: "Future[None]"


class RunFolder:
    """A run folder that is open for appending; make one with `RunFolder.create`.

    Attributes:
        path: The folder.
        finished: The episodes that were in the folder when it was opened, by id.
    """

    def __init__(
        self, path: Path, description: RunDescription, recovered: Recovered, journal: Journal, lock: "BaseFileLock"
    ) -> None:
        self.path = path
        self.finished: Mapping[str, FinishedEpisode] = recovered.episodes
        self._journal, self._lock = journal, lock
        self._known = set(recovered.episodes)
        self._tokenizers = {renderer.tokenizer for renderer in description.renderers.values()}
        self._by_status, self._by_error_kind = Counter[str](), Counter[str]()
        for episode in recovered.episodes.values():
            self._count(episode)
        self._mutex = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._is_writing = False
        self._failure: Exception | None = None
        self._manifest_due = time.monotonic()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="run folder")

    @classmethod
    def create(
        cls,
        path: Path | str,
        configuration: Mapping[str, Any],
        renderers: Mapping[str, Renderer],
        *,
        resume: bool = False,
        allow_changed: bool = False,
        compress: bool = False,
    ) -> Self:
        """Make a run folder, or open one to continue its run.

        Args:
            path: The folder. It is created with its parents.
            configuration: What the run is made of, as JSON: the environment's id and options, the policy, the tasks or
                seeds, and so on. A run that continues has to have the same.
            renderers: The renderer of each role; the first is that of the environment.
            resume: Whether to continue a run. A folder without a trajectory begins a new run in any case.
            allow_changed: Whether a run continues although the environment's code, options, limits or task data have
                changed. `run.json` then has what changed, and after how many episodes.
            compress: Whether the trajectories are compressed, which takes the package zstandard.

        Raises:
            RunFolderError: If the folder is in use, holds another configuration (the message lists each difference), a
                run although `resume` is False, or something else; or if it is damaged.
            StorageError: If the folder cannot be written.
            MissingPackage: If `compress` is set and zstandard is not installed.
        """
        folder, name = Path(path).absolute(), COMPRESSED if compress else PLAIN
        if not renderers:
            raise RunFolderError("renderers is empty; expected the renderer of the environment, such as {'main': ...}")
        if compress:
            load("zstandard", "A compressed run folder needs", "pip install 'envsdk[zstd]'")
        given = RunDescription(
            configuration=as_json(configuration),
            renderers=_stored_renderers(renderers),
            trajectories=name,
            versions=versions(),
            created=now(),
        )
        with storing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock = _locked(folder)
            try:
                return cls._opened(folder, given, renderers, resume, allow_changed, lock)
            except BaseException:
                lock.release()
                raise

    @classmethod
    def _opened(
        cls,
        folder: Path,
        given: RunDescription,
        renderers: Mapping[str, Renderer],
        resume: bool,
        allow_changed: bool,
        lock: "BaseFileLock",
    ) -> Self:
        stored, manifest = RunDescription.read(folder), Manifest.read(folder)
        file, other = folder / given.trajectories, _with_trajectories(folder)
        if stored is None and other is not None:
            raise RunFolderError(
                f"{str(folder)!r} has a {other}, but no {RunDescription.file_name}, so it is not a run folder. Choose "
                "another folder"
            )
        if stored is not None and (other is not None or (manifest is not None and manifest.episodes)):
            changed = _check_same_run(folder, stored, given, resume, allow_changed)
            recovered = recover(file, manifest)
            if changed:
                _record_change(folder, stored, given, changed, len(recovered.episodes))
        else:
            for name in (PLAIN, COMPRESSED, Manifest.file_name, TIMES):
                (folder / name).unlink(missing_ok=True)
            _write_tokenizers(folder, given, renderers)
            given.write(folder)
            recovered = Recovered({}, 0)
        run = cls(folder, given, recovered, Journal(file, recovered.length), lock)
        run._write_manifest()
        return run

    @staticmethod
    def open(path: Path | str) -> StoredRun:
        """Open a run folder to read it; see `StoredRun`."""
        return StoredRun(path)

    def has(self, episode_id: str) -> bool:
        """Return whether an episode is in the folder, or is being written."""
        with self._mutex:
            return episode_id in self._known

    async def append(self, trajectory: Trajectory, duration_s: float | None = None) -> None:
        """Store a trajectory; return once it is on disk. It must not change before that.

        Args:
            trajectory: The trajectory.
            duration_s: How long its episode took, in seconds, for `times.jsonl`; None if that is not known.

        Raises:
            RunFolderError: If the folder has an episode of that id already.
            InvalidRecord: If the trajectory cannot be written as JSON.
            StorageError: If it cannot be written, or an earlier one could not. The message names what was kept.
        """
        self._note_tokenizers(trajectory)
        written: Future[None] = Future()
        written.set_running_or_notify_cancel()  # a line that may be written already cannot be canceled
        with self._mutex:
            if self._failure is not None:
                raise self._storage_error(self._failure) from self._failure
            if not self._lock.is_locked:
                raise RunFolderError(f"the run folder {str(self.path)!r} is closed")
            if trajectory.id in self._known:
                raise RunFolderError(f"{str(self.path)!r} has an episode {trajectory.id!r} already; ids must differ")
            self._known.add(trajectory.id)
            self._waiting.append(_Waiting(trajectory, duration_s, written))
            if not self._is_writing:
                self._is_writing = True
                self._thread.submit(self._write_all)
        await asyncio.wrap_future(written)

    def close(self, *, is_complete: bool = False) -> None:
        """Wait for what is being written, write the manifest, and release the lock. It may be called again.

        Args:
            is_complete: Whether the run came to its end, which the manifest then records.

        Raises:
            StorageError: If the manifest cannot be written; the trajectories are kept. An error that `append` has
                reported is not raised again.
        """
        if not self._lock.is_locked:
            return
        self._thread.shutdown(wait=True)
        try:
            self._write_manifest(is_complete=is_complete)
        except OSError as error:
            if self._failure is None:
                raise self._storage_error(error) from error
        finally:
            self._journal.close()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # In the thread that writes.

    def _write_all(self) -> None:
        """Write batch after batch until nothing waits."""
        while waiting := self._taken():
            self._write([line for item in waiting if (line := self._line_of(item)) is not None])
            if self._failure is None and time.monotonic() >= self._manifest_due:
                try:
                    self._write_manifest()
                except OSError as error:
                    self._failure = error

    def _taken(self) -> list[_Waiting]:
        """Take what waits, up to a number of trajectories; an empty list ends the writing."""
        with self._mutex:
            taken, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
            self._is_writing = bool(taken)
            return taken

    def _line_of(self, item: _Waiting) -> _Line | None:
        try:
            trajectory = item.trajectory
            episode = FinishedEpisode.of(trajectory)
            write_images(trajectory.images, self.path / MEDIA)  # before a reader can see the line
            line = trajectory.to_json(embed_images=False)
            return _Line(line, trajectory.id, item.duration_s, episode, item.written)
        except Exception as error:  # this trajectory's own, such as an InvalidRecord
            with self._mutex:
                self._known.discard(item.trajectory.id)
            item.written.set_exception(error)
            return None

    def _write(self, batch: list[_Line]) -> None:
        append_times(self.path, [(item.id, item.duration_s) for item in batch])  # before a reader can see the lines
        count = self._count_written([item.line for item in batch])
        for item in batch[:count]:
            self._count(item.episode)
            item.written.set_result(None)
        for item in batch[count:]:
            assert self._failure is not None
            item.written.set_exception(self._storage_error(self._failure))

    def _count_written(self, lines: list[bytes]) -> int:
        """Write lines, and return how many are on disk: all of them, or as many as there is room for."""
        if self._failure is not None or not lines:
            return 0
        count = 0
        try:
            self._journal.append(lines)
            return len(lines)
        except Exception:  # whatever it is, everything that waits has to be answered
            try:
                for line in lines:
                    self._journal.append([line])
                    count += 1
            except Exception as error:
                self._failure = error
            return count

    def _count(self, episode: FinishedEpisode) -> None:
        self._by_status[episode.status] += 1
        if episode.status == "error":
            self._by_error_kind[episode.error_kind or "unknown"] += 1

    def _write_manifest(self, *, is_complete: bool = False) -> None:
        self._journal.check_place()  # the folder of another run is left alone
        Manifest(
            is_complete=is_complete,
            episodes=self._by_status.total(),
            by_status=counted(self._by_status),
            by_error_kind=counted(self._by_error_kind),
            bytes=self._journal.length,
            sha256=self._journal.digest.hexdigest(),
            updated=now(),
        ).write(self.path)
        self._manifest_due = time.monotonic() + _MANIFEST_INTERVAL_S

    # Messages.

    def _storage_error(self, error: Exception) -> StorageError:
        number, why = (error.errno, error.strerror) if isinstance(error, OSError) else (None, None)
        return StorageError(
            number,
            f"the run folder {str(self.path)!r} cannot be written: {why or error}. It keeps the "
            f"{self._by_status.total()} episodes that were stored before. Make room or restore the permission, and "
            "continue the run with --resume, or resume=True",
        )

    def _note_tokenizers(self, trajectory: Trajectory) -> None:
        """Log each tokenizer that the folder does not have; the tokens of its contexts cannot be decoded."""
        for name, log in trajectory.contexts.items():
            fingerprint = log.tokenizer or trajectory.tokenizer
            if fingerprint not in self._tokenizers:
                self._tokenizers.add(fingerprint)
                _log.warning(
                    "%s: the context %r of %r has a tokenizer (%s) that is not in the folder, so its tokens cannot be "
                    "decoded from it",
                    *(self.path, name, trajectory.id, fingerprint),
                )


def _locked(folder: Path) -> "BaseFileLock":
    """Return the lock of a folder, which the operating system releases if the process is killed."""
    filelock = load("filelock", "A run folder needs", "pip install filelock")
    lock: BaseFileLock = filelock.FileLock(folder / _LOCK, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise RunFolderError(
            f"{str(folder)!r} is in use: another run writes to it. Wait until that has ended, or choose another folder"
        ) from None
    return lock


def _with_trajectories(folder: Path) -> str | None:
    """Return the name of the file in a folder that has trajectories, or None."""
    files = (folder / name for name in (PLAIN, COMPRESSED))
    return next((file.name for file in files if file.is_file() and file.stat().st_size), None)


def _check_same_run(
    folder: Path, stored: RunDescription, given: RunDescription, resume: bool, allow_changed: bool
) -> list[str]:
    """Refuse a folder that holds a run, unless it is this one and it is to be continued; return what changed."""
    found = [one for one in unequal(stored.compared, given.compared) if not is_unknown(one)]
    changed, may_change = list(map(described, found)), all(map(is_changeable, found))
    if found and not (allow_changed and may_change):
        instead = "choose another folder, or give the same"
        if may_change:
            instead += (
                ". To mix episodes from before and after these changes, add --allow-changed, or allow_changed=True"
            )
        raise RunFolderError(
            f"{str(folder)!r} holds a run of another configuration: {'; '.join(changed)}. Go back, {instead}"
        )
    if not resume:
        raise RunFolderError(
            f"{str(folder)!r} holds trajectories of this run already. Continue it with --resume, or resume=True; or "
            "choose another folder"
        )
    versions = differences(stored.versions, given.versions)
    if versions:
        _log.warning("%s: the run continues with other versions: %s", folder, "; ".join(versions))
    return changed


def _record_change(
    folder: Path, stored: RunDescription, given: RunDescription, changed: list[str], episodes: int
) -> None:
    """Write what changed into `run.json`, which from then on has what the run continues with."""
    _log.warning("%s: the run continues after %d episodes, although this changed: %s", folder, episodes, changed)
    entry = {"at": now(), "episodes": episodes, "changed": changed}
    changes = [*stored.configuration.get(CHANGES, ()), entry]
    stored.model_copy(update={"configuration": {**given.configuration, CHANGES: changes}}).write(folder)


def _stored_renderers(renderers: Mapping[str, Renderer]) -> dict[str, StoredRenderer]:
    folders: dict[tuple[str, int], str] = {}
    stored: dict[str, StoredRenderer] = {}
    for role, renderer in renderers.items():
        tokenizer = renderer.tokenizer
        key = (tokenizer.fingerprint, tokenizer.vocab_size)
        name = folders.setdefault(key, f"tokenizer-{len(folders) + 1}" if folders else "tokenizer")
        stored[role] = StoredRenderer(
            specification=as_json(renderer.specification()),
            tokenizer=key[0],
            vocab_size=key[1],
            folder=name,
            chosen_because=renderer.chosen_because,
        )
    return stored


def _write_tokenizers(folder: Path, description: RunDescription, renderers: Mapping[str, Renderer]) -> None:
    written: set[str] = set()
    for role, renderer in renderers.items():
        name = description.renderers[role].folder
        if name in written:
            continue
        written.add(name)
        save: Any = getattr(renderer.tokenizer, "save", None)
        if save is None:
            raise RunFolderError(
                f"the tokenizer {renderer.tokenizer.name!r} is a {type(renderer.tokenizer).__name__}, which has no "
                "method save(folder), so the run folder could not be decoded on its own. Write that method, or give "
                "load_tokenizer(...) what the tokenizer is made from"
            )
        save(folder / name)
        for file in (folder / name).iterdir():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
