"""Play jobs in other processes, on this machine or on a Ray cluster. A process that ends is replaced.

A worker is called repeatedly like a function, `exchange(jobs, weights) -> Report`, over a pipe or by Ray.
"""

import asyncio
import atexit
import logging
import math
import multiprocessing
import os
import pickle
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from ..authoring._concurrent import run_all
from ..authoring._event_loops import MethodThread
from ..errors import ConfigError, WorkerLost
from . import _worker as worker
from ._jobs import EpisodeJob
from ._player import EpisodeResult, PlaySettings, failed_before_it_began
from ._ray_workers import RayHost, RayHosts, load_ray
from ._statistics import PlayStatistics
from ._worker import Report, WeightState

_log = logging.getLogger(__name__)
Executor: TypeAlias = Literal["processes", "ray"]
_START_S = 120.0
"""The longest time for the start of a process, in seconds."""
_ANSWER_S = 30.0
"""The longest time for an answer, on top of that of a method of an environment, in seconds."""


class _ProcessHost:
    """A process on this machine. It is called over a pipe, which, unlike a semaphore, ends with its processes."""

    def __init__(self, settings: PlaySettings, weights: WeightState) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy threads and locks in an arbitrary state
        self._connection, self._theirs = context.Pipe()
        self._process = context.Process(target=worker.serve, args=(self._theirs, settings, weights))
        self._thread = MethodThread()
        atexit.register(self.kill)

    async def begin(self) -> None:
        pass  # it starts with the first exchange

    async def exchange(self, jobs: Sequence[EpisodeJob], weights: WeightState) -> Report:
        return await self._thread.call(partial(self._call, "exchange", jobs, weights))

    async def end(self) -> PlayStatistics:
        try:
            return await self._thread.call(partial(self._call, "end"))
        finally:
            self._connection.close()
            await self._thread.call(self._process.join)
            self.kill()

    def kill(self) -> None:
        atexit.unregister(self.kill)
        if self._process.pid is not None:
            self._process.kill()
        self._thread.stop()

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            if self._process.pid is None:
                self._process.start()
                self._theirs.close()
            self._connection.send((name, arguments))
            answer, error = self._connection.recv()
        except (EOFError, OSError) as failure:
            raise WorkerLost("a worker process ended") from failure
        if error is not None:
            raise error
        return answer


_Host: TypeAlias = _ProcessHost | RayHost


@dataclass(eq=False)
class _Assignment:
    """A job that is waiting for a worker, or was given to one."""

    job: EpisodeJob
    played: "asyncio.Future[EpisodeResult]"
    losses: int = 0
    """The number of workers that ended while they had it."""


class WorkerPool:
    """Plays jobs in worker processes, each of which plays many at a time.

    A worker that ends, or whose event loop stalls for longer than `method_timeout_s`, is replaced, and its episodes
    begin again. An episode that has lost as many workers as `max_retries` is played alone the last time, so that
    an episode that ends its process fails, and no other.

    Args:
        executor: The place of the workers: processes of this machine, or Ray.
        settings: The settings.
        n_workers: The number of processes; None for one for each core of the machine, or of the cluster.
        max_concurrency: The number of episodes that run at the same time, in all of them together.
        weights: The state of the weights.
    """

    def __init__(
        self,
        executor: Executor,
        settings: PlaySettings,
        n_workers: int | None,
        max_concurrency: int,
        weights: WeightState,
    ) -> None:
        self._ray = RayHosts() if executor == "ray" else None
        self._settings = settings
        self._capacity = 0
        self._waiting: deque[_Assignment] = deque()
        self._changed = asyncio.Event()
        self._weights = weights
        self._known: list[PlayStatistics] = []
        self._informed: list[WeightState | None] = []  # None: the worker has not begun
        self._all_informed = asyncio.Event()
        self._lost = PlayStatistics()
        self._closing = asyncio.Event()
        self._open: set[_Assignment] = set()
        self._serving = asyncio.create_task(self._serve_all(n_workers, max_concurrency))
        self._serving.add_done_callback(self._end_open)

    @property
    def statistics(self) -> PlayStatistics:
        """The statistics of all workers so far."""
        total = PlayStatistics()
        for known in (*self._known, self._lost):
            total.merge(known)
        return total

    async def play(self, job: EpisodeJob) -> EpisodeResult:
        """Play an episode in one of the workers; see `Player.play`."""
        assignment = _Assignment(job, asyncio.get_running_loop().create_future())
        self._waiting.append(assignment)
        self._open.add(assignment)
        self._changed.set()
        try:
            return await assignment.played
        finally:
            self._open.discard(assignment)

    def _end_open(self, serving: "asyncio.Task[None]") -> None:
        """End the calls of `play` that still wait: the workers have ended."""
        error = None if serving.cancelled() else serving.exception()
        for assignment in self._open:
            if not assignment.played.done():
                assignment.played.set_exception(error or WorkerLost("the workers have ended"))
        self._all_informed.set()

    async def pause(self, *, abort: bool = True) -> None:
        """See `Player.pause`."""
        self._weights = weights = WeightState(self._weights.policy_version, True, abort)
        self._changed.set()
        while any(informed not in (None, weights) for informed in self._informed) and not self._serving.done():
            self._all_informed.clear()
            await self._all_informed.wait()

    def resume(self, policy_version: int | None = None) -> None:
        """See `Player.resume`."""
        version = self._weights.policy_version if policy_version is None else policy_version
        self._weights = WeightState(version)
        self._changed.set()

    async def aclose(self) -> None:
        """End the workers."""
        self._closing.set()
        self._changed.set()
        if not self._serving.done():
            _, left = await asyncio.wait({self._serving}, timeout=_ANSWER_S)
            for task in left:
                task.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)

    def _set_informed(self, number: int, weights: WeightState | None) -> None:
        self._informed[number] = weights
        self._all_informed.set()

    async def _serve_all(self, n_workers: int | None, max_concurrency: int) -> None:
        try:
            n_cores = os.cpu_count() or 1 if self._ray is None else await asyncio.to_thread(self._ray.connect)
            count = min(n_workers or n_cores, max_concurrency)
            self._capacity = math.ceil(max_concurrency / count)
            self._known = [PlayStatistics() for _ in range(count)]
            self._informed = [None] * count
            await run_all(self._serve(number) for number in range(count))
        finally:
            if self._ray is not None:
                await asyncio.to_thread(self._ray.disconnect)

    async def _serve(self, number: int) -> None:
        """Keep one worker busy, and replace it when it ends."""
        running: dict[int, _Assignment] = {}
        failed_starts = 0
        while not self._closing.is_set():
            weights = self._weights
            make_host = _ProcessHost if self._ray is None else self._ray.new
            host = make_host(self._settings, weights)
            try:
                begun = asyncio.ensure_future(host.begin())
                closing = asyncio.ensure_future(self._closing.wait())
                try:
                    await asyncio.wait({begun, closing}, return_when=asyncio.FIRST_COMPLETED)
                    if not begun.done():  # the run ends first
                        host.kill()
                        return
                    begun.result()
                finally:
                    begun.cancel()
                    closing.cancel()
                    await asyncio.gather(begun, closing, return_exceptions=True)
                self._set_informed(number, weights)
                failed_starts = 0
                await self._use(number, host, running)
                self._known[number] = await host.end()
            except WorkerLost as error:
                host.kill()
                if self._informed[number] is None:
                    failed_starts += 1
                    if failed_starts > self._settings.max_retries:
                        raise
                self._lost.merge(self._known[number])
                self._known[number] = PlayStatistics()
                self._lost.abandoned += 1
                _log.warning("%s; its %d episodes begin again", error, len(running))
                for assignment in running.values():
                    assignment.losses += 1
                    if assignment.losses <= self._settings.max_retries:
                        self._lost.retries["WorkerLost"] += 1
                        self._waiting.append(assignment)
                    elif not assignment.played.done():
                        failed = failed_before_it_began(assignment.job, error, "infrastructure")
                        assignment.played.set_result(EpisodeResult(failed))
                running.clear()
                self._changed.set()
                self._set_informed(number, None)
            except BaseException:
                host.kill()
                raise

    async def _use(self, number: int, host: _Host, running: dict[int, _Assignment]) -> None:
        limit = math.inf if self._settings.method_timeout_s is None else self._settings.method_timeout_s + _ANSWER_S
        answer_s: float | None = max(_START_S, limit) if limit < math.inf else None
        while running or not self._closing.is_set():
            jobs = self._take(running)
            if not running and self._weights == self._informed[number]:
                self._changed.clear()
                await self._changed.wait()
                continue
            weights = self._weights
            try:
                async with asyncio.timeout(answer_s):
                    report = await host.exchange(jobs, weights)
            except TimeoutError as error:
                raise WorkerLost(f"a worker has not answered for {answer_s:g} s") from error
            answer_s = limit if limit < math.inf else None
            if report.error is not None:
                raise report.error
            self._set_informed(number, report.weights)
            self._known[number] = report.statistics
            for index, played in report.played:
                assignment = running.pop(index)
                if not assignment.played.done():
                    assignment.played.set_result(played)
            if report.stalled_s > limit:
                raise WorkerLost(f"the event loop of a worker has been blocked for {report.stalled_s:.0f} s")
            if self._closing.is_set():
                return

    def _take(self, running: dict[int, _Assignment]) -> list[EpisodeJob]:
        """Return the jobs to begin now."""
        jobs: list[EpisodeJob] = []
        is_alone = len(running) == 1 and any(self._must_be_alone(one) for one in running.values())
        while self._waiting and len(running) < self._capacity and not is_alone:
            if self._must_be_alone(self._waiting[0]):
                if running:
                    break
                is_alone = True
            assignment = self._waiting.popleft()
            if assignment.played.done():  # its caller no longer waits for it
                continue
            running[assignment.job.index] = assignment
            jobs.append(assignment.job)
        return jobs

    def _must_be_alone(self, assignment: _Assignment) -> bool:
        return assignment.losses > 0 and assignment.losses >= self._settings.max_retries


def check_sendable(settings: PlaySettings, executor: Executor) -> None:
    """Check that the settings can be sent to worker processes.

    Raises:
        ConfigError: If something cannot be pickled. Ray can send more than pickle.
        MissingPackage: If `executor="ray"`, and Ray is not installed.
    """
    dumps: Callable[[object], bytes] = load_ray().cloudpickle.dumps if executor == "ray" else pickle.dumps
    for what in ("env", "env_options", "policy"):
        try:
            dumps(getattr(settings, what))
        except Exception as error:  # pickle and the objects themselves may raise any exception
            raise ConfigError(
                f"the argument {what} cannot be sent to worker processes ({type(error).__name__}: {error}). Use an id, "
                "or a class or function at the top of a module; and a policy that calls a server, such as VLLM"
            ) from error
