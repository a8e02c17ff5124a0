"""A worker process: an event loop that plays jobs, and the calls that bring jobs and fetch results."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import queue
import signal
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

from .._describing import describe_error
from ..authoring._event_loops import LoopThread
from ..errors import EnvsdkError, WorkerLost
from ._jobs import EpisodeJob
from ._player import EpisodeResult, Player, PlaySettings
from ._statistics import PlayStatistics

_WAIT_S = 0.1
"""The time that a worker waits for a result before it answers without one, in seconds."""
_NO_JOB = -1


@dataclass(frozen=True, slots=True)
class WeightState:
    """The state of the weights, as far as a worker has to know it.

    Attributes:
        policy_version: See `Player.resume`.
        is_paused: Whether calls of the policy are paused.
        abort: Whether a pause aborts the replies that are being sampled.
    """

    policy_version: int | None = None
    is_paused: bool = False
    abort: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """The answer of a worker.

    Attributes:
        played: The jobs that ended, by index, with their results.
        error: The error that ends the whole run, or None.
        statistics: The statistics of the worker so far.
        stalled_s: The time since its event loop last ran, in seconds.
        weights: The state of the weights that it has reached: a pause once no call of the policy is running.
    """

    played: Sequence[tuple[int, EpisodeResult]] = ()
    error: BaseException | None = None
    statistics: PlayStatistics = field(default_factory=PlayStatistics)
    stalled_s: float = 0.0
    weights: WeightState = field(default_factory=WeightState)


class Worker:
    """Plays jobs in an event loop that runs in a separate thread.

    `exchange` therefore answers even if a method blocks that loop.

    Args:
        settings: The settings.
        weights: The state of the weights.
    """

    def __init__(self, settings: PlaySettings, weights: WeightState) -> None:
        self._settings = settings
        self._wanted = self._weights = WeightState()
        self._changing: Future[None] | None = None
        self._ended: queue.SimpleQueue[tuple[int, EpisodeResult | BaseException]] = queue.SimpleQueue()
        self._thread = LoopThread("envsdk-worker")
        self._player: Player = self._thread.submit(self._begin()).result()
        self._change(weights)

    def exchange(self, jobs: Sequence[EpisodeJob], weights: WeightState) -> Report:
        """Take jobs, and return those that ended since the last call; wait a moment if there are none."""
        if weights != self._wanted:
            self._change(weights)
        for job in jobs:
            self._thread.submit(self._play(job))
        ended: list[tuple[int, EpisodeResult]] = []
        try:
            item = self._ended.get(timeout=_WAIT_S)
            while True:
                index, played = item
                if isinstance(played, BaseException):
                    return Report(error=_sendable(played))
                ended.append((index, played))
                item = self._ended.get_nowait()
        except queue.Empty:
            pass
        return Report(ended, None, self._player.statistics, time.monotonic() - self._player.ticked_at, self._weights)

    def end(self) -> PlayStatistics:
        """Close the environments and the policy; return the statistics of the worker."""
        self._thread.submit(self._close()).result()
        return self._player.statistics

    async def _begin(self) -> Player:
        return Player(self._settings)

    async def _play(self, job: EpisodeJob) -> None:
        try:
            played = await self._player.play(job)
            if isinstance(played.error, WorkerLost):  # a new process can play it
                raise played.error
            self._ended.put((job.index, replace(played, error=None)))  # not every error can be pickled
        except BaseException as error:  # it ends the run, or the worker is closed
            self._ended.put((job.index, error))

    def _change(self, weights: WeightState) -> None:
        """Begin to change the weights. A pause may take as long as a call of the policy, and `exchange` answers."""
        self._wanted = weights
        if self._changing is not None:
            self._changing.cancel()  # an unfinished pause is no longer needed
        self._changing = self._thread.submit(self._changed(weights))

    async def _changed(self, weights: WeightState) -> None:
        try:
            if weights.is_paused:
                await self._player.pause(abort=weights.abort)
            else:
                self._player.resume(weights.policy_version)
        except Exception as error:  # from the policy's own abort()
            self._ended.put((_NO_JOB, error))
        self._weights = weights

    async def _close(self) -> None:
        await self._player.aclose()
        close: Any = getattr(self._settings.policy, "aclose", None)  # this process has its own copy
        if close is not None:
            await close()


def _sendable(error: BaseException) -> BaseException:
    """Return an exception that can be sent to another process, with a note that names this one."""
    error.add_note(f"This happened in a worker: process {os.getpid()} on {socket.gethostname()}.")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return EnvsdkError(describe_error(error))
    return error


# In a process of this machine, which has one worker.


def serve(connection: Connection, settings: PlaySettings, weights: WeightState) -> None:
    """Make this process's worker, and answer the calls that arrive, until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides

    def end_with_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            multiprocessing.connection.wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=end_with_parent, name="envsdk-parent", daemon=True).start()
    worker = Worker(settings, weights)
    with contextlib.suppress(EOFError):
        while True:
            name, arguments = connection.recv()
            try:
                answer: tuple[Any, BaseException | None] = getattr(worker, name)(*arguments), None
            except BaseException as error:  # the caller receives it
                answer = None, _sendable(error)
            connection.send(answer)
