"""The folder of a run while it is written: each trajectory is on disk before it is reported, and a run can continue.

    run.json            the configuration, and the versions of the packages that it depends on
    tokenizer/          the tokenizer and its chat template; tokenizer-2/ and so on if roles have others
    trajectories.jsonl  one trajectory per line, in the order in which the episodes ended (or trajectories.jsonl.zst)
    manifest.json       the number of trajectories, and the length and the checksum of their file
    times.jsonl         the time at which each episode ended, and its duration
    run.lock            locked by the process that writes

A separate thread writes: all waiting lines are written with one `write` and one `fsync`, so the event loop is never
blocked, and many episodes that end together cost one of each.
"""

import asyncio
import errno
import hashlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import orjson

from .._packages import load
from .._untrusted import max_line_bytes
from .._visible import type_of
from ..errors import RunFolderError, StorageError
from ..rendering.renderer import Renderer
from ..trajectories._media import MEDIA, write_images
from ..trajectories._trajectory import Trajectory
from ..trajectories.records import storing
from ._run_description import CHANGEABLE, EXTENDABLE, Manifest, RunDescription, Segment, described, now
from ._stored_run import (
    COMPRESSED,
    PLAIN,
    TIMES,
    StoredEpisode,
    StoredEpisodes,
    StoredRun,
    digest_of,
    load_zstandard,
    recover,
)
from ._unequal import unequal

if TYPE_CHECKING:
    from filelock import BaseFileLock

_log = logging.getLogger(__name__)
_LOCK = "run.lock"
_BATCH = 256
"""The maximum number of trajectories that are written at once."""
_MANIFEST_INTERVAL_S = 5.0


class Journal:
    """The file of trajectories, open for appending: each batch of lines is on disk before the next one begins.

    Args:
        path: The file; it is created.
        length: Where to append, in bytes; bytes after it are cut off.

    Raises:
        OSError: If it cannot be opened.
        MissingPackage: If it is compressed and the package for that is not installed.
    """

    def __init__(self, path: Path, length: int) -> None:
        self.length = length
        self.digest = digest_of(path, length) if length else hashlib.sha256()
        self._path = path
        is_compressed = path.name == COMPRESSED
        self._compressor: Any = load_zstandard().ZstdCompressor(write_checksum=True) if is_compressed else None
        self._file = path.open("ab", buffering=0)
        self._file.truncate(length)
        os.fsync(self._file.fileno())

    def append(self, lines: Sequence[bytes]) -> None:
        """Write lines, and wait until they are on disk.

        Raises:
            OSError: If they cannot be written. The file is then unchanged, unless it could not be cut off.
        """
        frames = [bytearray()]  # each with at most as many bytes as a reader accepts, or one line
        for line in lines:
            if self._compressor is not None and frames[-1] and len(frames[-1]) + len(line) >= max_line_bytes():
                frames.append(bytearray())
            frames[-1] += line + b"\n"
        data = b"".join(frames if self._compressor is None else map(self._compressor.compress, map(bytes, frames)))
        if os.fstat(self._file.fileno()).st_size != self.length:
            raise OSError(errno.EIO, "it does not end where it should: lines could not be cut off")
        try:
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
            self.check_place()
        except OSError:
            with suppress(OSError):
                self._file.truncate(self.length)
                os.fsync(self._file.fileno())
            raise
        self.length += len(data)
        self.digest.update(data)

    def check_place(self) -> None:
        """Check that the file has not been removed or replaced: then writes succeed, but are lost when it is closed.

        Raises:
            OSError: If it has been removed or replaced.
        """
        if not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
            raise OSError(errno.ESTALE, "another file has taken its place")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _QueuedTrajectory(NamedTuple):
    """A trajectory that is waiting to be written."""

    trajectory: Trajectory
    duration_s: float | None
    written: "Future[None]"


class RunFolder(AbstractContextManager["RunFolder", None]):
    """A run folder that is open for appending; make one with `RunFolder.create`.

    Attributes:
        path: The folder.
        finished: The episodes that were in the folder when it was opened, by id.
    """

    def __init__(
        self, path: Path, description: RunDescription, found: StoredEpisodes, journal: Journal, lock: "BaseFileLock"
    ) -> None:
        self.path = path
        self.finished: Mapping[str, StoredEpisode] = found.episodes
        self._journal, self._lock = journal, lock
        self._known = set(found.episodes)
        self._tokenizers = {renderer.tokenizer for renderer in description.renderers.values()}
        self._by_status, self._by_error_kind = Counter[str](), Counter[str]()
        for episode in found.episodes.values():
            self._count(episode)
        self._mutex = threading.Lock()
        self._waiting: list[_QueuedTrajectory] = []
        self._is_writing = False
        self._failure: Exception | None = None
        self._manifest_due = time.monotonic()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="run folder")
        self._write_manifest()

    @classmethod
    def create(
        cls,
        path: Path | str,
        configuration: Mapping[str, Any],
        renderers: Mapping[str, Renderer],
        *,
        resume: bool = False,
        extends: Mapping[str, Any] | None = None,
        allow_changed: bool = False,
        compress: bool = False,
    ) -> Self:
        """Make a run folder, or open one to continue its run.

        Args:
            path: The folder. It is created with its parents.
            configuration: The run's configuration, as JSON: the environment's id and options, the policy, the tasks or
                seeds, and so on. A run that continues has to have the same one.
            renderers: The renderer of each role; the first is the environment's.
            resume: Whether to continue a run. A folder without a trajectory begins a new run in any case.
            extends: The configuration that the folder has to have, if `configuration` is the same with more episodes.
            allow_changed: Whether a run continues although the environment's code, options, limits or task data have
                changed. A new segment of the run then begins: `run.json` has the changes, and after how many episodes
                they were made.
            compress: Whether the trajectories are compressed, which requires the package zstandard.

        Raises:
            RunFolderError: If the folder is in use, is damaged, or has another configuration (the message lists each
                difference), a run although `resume` is False, or files that are not of a run.
            StorageError: If the folder cannot be written.
            MissingPackage: If `compress` is set and zstandard is not installed.
        """
        folder = Path(path).absolute()
        if not renderers:
            raise RunFolderError("renderers is empty; expected the renderer of the environment, such as {'main': ...}")
        if compress:
            load_zstandard()
        given = RunDescription.of(configuration, renderers, COMPRESSED if compress else PLAIN)
        file = folder / given.trajectories
        with storing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            filelock = load("filelock", "A run folder needs", "pip install filelock")
            lock: BaseFileLock = filelock.FileLock(folder / _LOCK, timeout=0, thread_local=False)
            try:
                lock.acquire()  # the operating system releases it if the process is killed
            except filelock.Timeout:
                raise RunFolderError(
                    f"{str(folder)!r} is in use: another run writes to it. Wait until that has ended, or choose "
                    "another folder"
                ) from None
            try:
                before = given if extends is None else RunDescription.of(extends, renderers, given.trajectories)
                found = _continued(folder, given, before, resume, allow_changed)
                if found is None:
                    for name in (PLAIN, COMPRESSED, Manifest.file_name, TIMES):
                        (folder / name).unlink(missing_ok=True)
                    tokenizers = {given.renderers[role].folder: one.tokenizer for role, one in renderers.items()}
                    for name, tokenizer in tokenizers.items():
                        _write_tokenizer(folder / name, tokenizer)
                    given.write(folder)
                    found = StoredEpisodes()
                return cls(folder, given, found, Journal(file, found.length), lock)
            except BaseException:
                lock.release()
                raise

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
            RunFolderError: If the folder already has an episode with that id.
            InvalidRecord: If the trajectory cannot be written as JSON.
            StorageError: If it cannot be written, or an earlier one could not. The message states what was kept.
        """
        for name, log in trajectory.contexts.items():
            fingerprint = log.tokenizer or trajectory.tokenizer
            if fingerprint not in self._tokenizers:
                self._tokenizers.add(fingerprint)
                _log.warning(
                    "%s: the context %r of %r has a tokenizer (%s) that is not in the folder, so its tokens cannot be "
                    "decoded from it",
                    *(self.path, name, trajectory.id, fingerprint),
                )
        written: Future[None] = Future()
        written.set_running_or_notify_cancel()  # a line may have been written already, so it cannot be canceled
        with self._mutex:
            if self._failure is not None:
                raise self._storage_error(self._failure) from self._failure
            if not self._lock.is_locked:
                raise RunFolderError(f"the run folder {str(self.path)!r} is closed")
            if trajectory.id in self._known:
                raise RunFolderError(f"{str(self.path)!r} has an episode {trajectory.id!r} already; ids must differ")
            self._known.add(trajectory.id)
            self._waiting.append(_QueuedTrajectory(trajectory, duration_s, written))
            if not self._is_writing:
                self._is_writing = True
                self._thread.submit(self._write_all)
        await asyncio.wrap_future(written)

    def close(self, *, is_complete: bool = False) -> None:
        """Wait for pending writes, write the manifest, and release the lock. It may be called again.

        Args:
            is_complete: Whether the run is complete, which the manifest then records.

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

    def __exit__(self, *error: object) -> None:
        self.close()

    # In the writing thread.

    def _write_all(self) -> None:
        """Write batches until the queue is empty."""
        while True:
            with self._mutex:
                waiting, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
                self._is_writing = bool(waiting)
            if not waiting:
                return
            batch: list[tuple[_QueuedTrajectory, bytes]] = []
            for item in waiting:
                try:
                    write_images(item.trajectory.images, self.path / MEDIA)  # before a reader can see the line
                    batch.append((item, item.trajectory.to_json(embed_images=False)))
                except Exception as error:  # it concerns only this trajectory, such as an InvalidRecord
                    with self._mutex:
                        self._known.discard(item.trajectory.id)
                    item.written.set_exception(error)
            self._write(batch)
            if self._failure is None and time.monotonic() >= self._manifest_due:
                try:
                    self._write_manifest()
                except OSError as error:
                    self._failure = error

    def _write(self, batch: list[tuple[_QueuedTrajectory, bytes]]) -> None:
        """Write as many lines as there is room for; in any case, all waiting calls are answered."""
        ended, times = now(), self.path / TIMES
        entries = [{"id": item.trajectory.id, "ended": ended, "duration_s": item.duration_s} for item, _ in batch]
        try:  # before a reader can see the lines
            with times.open("ab") as file:
                file.write(b"".join(orjson.dumps(entry) + b"\n" for entry in entries))
        except OSError as error:  # the times are not worth a run
            _log.warning("%s cannot be written, so these episodes have no times: %s", times, error)
        count = 0
        if self._failure is None and batch:
            try:
                self._journal.append([line for _, line in batch])
                count = len(batch)
            except Exception:
                try:
                    for _, line in batch:
                        self._journal.append([line])
                        count += 1
                except Exception as error:
                    self._failure = error
        for item, _ in batch[:count]:
            self._count(item.trajectory)
            item.written.set_result(None)
        for item, _ in batch[count:]:
            assert self._failure is not None
            item.written.set_exception(self._storage_error(self._failure))

    def _count(self, episode: StoredEpisode | Trajectory) -> None:
        self._by_status[episode.status] += 1
        if episode.status == "error":
            self._by_error_kind[episode.error_kind or "unknown"] += 1

    def _write_manifest(self, *, is_complete: bool = False) -> None:
        self._journal.check_place()  # the folder of another run is left alone
        Manifest(
            is_complete=is_complete,
            episodes=self._by_status.total(),
            by_status=dict(sorted(self._by_status.items())),
            by_error_kind=dict(sorted(self._by_error_kind.items())),
            bytes=self._journal.length,
            sha256=self._journal.digest.hexdigest(),
            updated=now(),
        ).write(self.path)
        self._manifest_due = time.monotonic() + _MANIFEST_INTERVAL_S

    def _storage_error(self, error: Exception) -> StorageError:
        number, why = (error.errno, error.strerror) if isinstance(error, OSError) else (None, None)
        return StorageError(
            number,
            f"the run folder {str(self.path)!r} cannot be written: {why or error}. It keeps the "
            f"{self._by_status.total()} episodes that were stored before. Make room or restore the permission, and "
            "continue the run with --resume, or resume=True",
        )


# Opening a folder.


def _continued(
    folder: Path, given: RunDescription, before: RunDescription, resume: bool, allow_changed: bool
) -> StoredEpisodes | None:
    """Return the episodes of the run that continues in a folder; None if the folder has no run.

    The folder has to have the description `before`; from now on, it has `given`.
    """
    stored, manifest = RunDescription.read(folder), Manifest.read(folder)
    files = (folder / name for name in (PLAIN, COMPRESSED))
    file = next((file for file in files if file.is_file() and file.stat().st_size), None)
    if stored is None and file is not None:
        raise RunFolderError(
            f"{str(folder)!r} has a {file.name}, but no {RunDescription.file_name}, so it is not a run folder. Choose "
            "another folder"
        )
    if stored is None or (file is None and (manifest is None or not manifest.episodes)):
        return None
    differences = stored.differences_to(before)
    changed = list(map(described, differences))
    keys = {one.path.partition("configuration.")[2].partition(".")[0] for one in differences}
    if changed and not (allow_changed and keys <= {*CHANGEABLE}):
        instead = "choose another folder, or give the same"
        if keys <= {*CHANGEABLE}:
            instead += (
                ". To continue it in a new segment, which reports keep apart, add --allow-changed, or "
                "allow_changed=True"
            )
        elif keys <= {*EXTENDABLE} and before is given:
            instead += ". To play further seeds after those that it has, add --extend, or extend=True"
        raise RunFolderError(
            f"{str(folder)!r} holds a run of another configuration. What changed: {'; '.join(changed)}. Go back, "
            f"{instead}"
        )
    if not resume:
        raise RunFolderError(
            f"{str(folder)!r} holds trajectories of this run already. Continue it with --resume, or resume=True; or "
            "choose another folder"
        )
    versions = "; ".join(map(described, unequal(stored.versions, given.versions)))
    if versions:
        _log.warning("%s: the run continues with other versions: %s", folder, versions)
    found = recover(folder / given.trajectories, manifest)
    segments = stored.segments
    if changed:
        count = len(found.episodes)
        what = "; ".join(changed)
        _log.warning("%s: a new segment begins after %d episodes, because this changed: %s", folder, count, what)
        segments = [*segments, Segment(at=now(), episodes=count, changed=changed)]
    stored.model_copy(update={"configuration": given.configuration, "segments": segments}).write(folder)
    return found


def _write_tokenizer(folder: Path, tokenizer: Any) -> None:
    """Write the files of a tokenizer, and wait until they are on disk."""
    if not hasattr(tokenizer, "save"):
        raise RunFolderError(
            f"the tokenizer {tokenizer.name!r} is {type_of(tokenizer)}, which has no method save(folder), so "
            "the run folder could not be decoded on its own. Write that method, or give load_tokenizer(...) what the "
            "tokenizer is made from"
        )
    tokenizer.save(folder)
    for file in folder.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
