"""Workers on a Ray cluster, each in an actor. Ray places the actors, carries the calls, and notices when one ends."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._packages import load
from .._visible import shorten
from ..errors import ConfigError, WorkerLost
from ._jobs import EpisodeJob
from ._player import PlaySettings
from ._statistics import PlayStatistics
from ._worker import Report, WeightState, Worker

_log = logging.getLogger(__name__)
_FIRST_LINE_S = 10.0
"""The time that a worker waits for a CPU before a line is logged, in seconds."""
_LINE_S = 60.0
"""The time between two such lines, in seconds."""

_connecting = threading.Lock()
_n_connected = 0
_is_ours = False
"""True if a run connected this process; the last of the runs that use the connection ends it."""


def load_ray() -> Any:
    """Import Ray and return it.

    Raises:
        MissingPackage: If it is not installed.
    """
    return load("ray", "executor='ray' needs", "pip install 'envsdk[ray]'")


class RayWorker:
    """A worker in an actor.

    Ray runs a class that has coroutines, such as `Worker`, in an event loop, which `exchange` would block.
    """

    def __init__(self, settings: PlaySettings, weights: WeightState) -> None:
        self._worker = Worker(settings, weights)

    def begin(self) -> None:
        """Return once the worker has begun."""

    def exchange(self, jobs: Sequence[EpisodeJob], weights: WeightState) -> Report:
        """See `Worker.exchange`."""
        return self._worker.exchange(jobs, weights)

    def end(self) -> PlayStatistics:
        """See `Worker.end`."""
        return self._worker.end()


class RayHosts:
    """Makes actors on the Ray cluster that this process is connected to, or connects it."""

    def __init__(self) -> None:
        self._ray = load_ray()
        # A worker that ends is replaced by `WorkerPool`, which knows its episodes: Ray must not restart or retry.
        self._make_actor = self._ray.remote(
            num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )(RayWorker)
        self._logged_at = 0.0

    def connect(self) -> int:
        """Connect to a cluster as `ray.init()` does, unless that was done; return the number of its CPUs.

        Raises:
            ConnectionError: If no cluster is at the address in `RAY_ADDRESS`.
        """
        global _n_connected, _is_ours
        with _connecting:
            _n_connected += 1
            if not self._ray.is_initialized():
                _is_ours = True
                self._ray.init()
            return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def disconnect(self) -> None:
        """Shut Ray down if `connect` started it, and no other run needs it."""
        global _n_connected, _is_ours
        with _connecting:
            _n_connected -= 1
            if _is_ours and not _n_connected:
                _is_ours = False
                self._ray.shutdown()

    def new(self, settings: PlaySettings, weights: WeightState) -> "RayHost":
        """Create an actor, which begins when a CPU is free."""
        return RayHost(self._ray, self._make_actor.remote(settings, weights), self)

    async def still_waiting(self, seconds: float) -> None:
        """Check that Ray runs on the node of this process, and log that an actor has waited for a CPU.

        One line a minute is logged for all of them.

        Raises:
            WorkerLost: If Ray has ended there, so that no actor would ever begin.
        """
        nodes: list[dict[str, Any]] = await asyncio.to_thread(self._ray.nodes)
        own = self._ray.get_runtime_context().get_node_id()
        if any(node["NodeID"] == own and not node["Alive"] for node in nodes):
            raise WorkerLost(
                f"Ray has ended on the node of this program (its raylet, node {own}), so no worker can begin: start "
                "Ray there again, and then the program; with a run folder, it continues where it stopped"
            )
        if time.monotonic() - self._logged_at < _LINE_S:
            return
        self._logged_at = time.monotonic()
        total, free = await asyncio.to_thread(lambda: (self._ray.cluster_resources(), self._ray.available_resources()))
        _log.warning(
            "a Ray worker has waited for %.0f s: it needs a CPU, and %g of %g in the cluster are free. The run "
            "continues with the workers that have begun; n_workers= requests fewer",
            seconds,
            free.get("CPU", 0),
            total.get("CPU", 0),
        )


@dataclass(eq=False, repr=False)
class RayHost:
    """An actor with a worker."""

    _ray: Any
    _actor: Any
    _hosts: RayHosts

    async def begin(self) -> None:
        """Wait until the actor has a CPU and the worker has begun.

        Raises:
            ConfigError: If the worker cannot begin, for example because an import fails there.
            WorkerLost: If the actor has ended, or Ray on the node of this process.
        """
        since = time.monotonic()
        begun = asyncio.ensure_future(self._answer(self._actor.begin.remote()))
        try:
            while not begun.done():
                await asyncio.wait({begun}, timeout=_FIRST_LINE_S)
                if not begun.done():
                    await self._hosts.still_waiting(time.monotonic() - since)
            begun.result()
        finally:
            begun.cancel()

    async def exchange(self, jobs: Sequence[EpisodeJob], weights: WeightState) -> Report:
        """Call the worker.

        Raises:
            WorkerLost: If the actor has ended.
        """
        return await self._answer(self._actor.exchange.remote(jobs, weights))

    async def end(self) -> PlayStatistics:
        """End the worker and its process."""
        try:
            return await self._answer(self._actor.end.remote())
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process at once."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor, no_restart=True)

    async def _answer(self, reference: Any) -> Any:
        try:
            return await reference
        except self._ray.exceptions.RayTaskError as error:  # the worker's own code raised it
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            if getattr(error, "actor_init_failed", False):
                raise ConfigError(
                    "a Ray worker could not begin. Every node needs what the environment and the policy import; see "
                    f"runtime_env in ray.init(). {error}"
                ) from error
            raise WorkerLost(f"a Ray worker ended: {shorten(' '.join(str(error).split()), 300)}") from error
