"""The engine: rolls out many episodes, in groups, and reports each as it ends."""

import asyncio
import inspect
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal, NoReturn

from .._cards import card, named
from .._visible import brief
from ..authoring._concurrent import run_all
from ..authoring._env import Env
from ..authoring._event_loops import MethodThread, run
from ..errors import ConfigError, EpisodeError, RunFailed, ServerUnreachable
from ..policies._find import find_policy
from ..policies._policy import PolicyLike
from ..trajectories._trajectory import Trajectory
from ._jobs import EpisodeJob, Group, jobs_of
from ._player import EpisodeResult, Player, PlaySettings, check_count, check_seconds
from ._progress import Progress, find_progress
from ._reporting import Reporting
from ._run_description import RunDescription, configuration_of
from ._run_folder import RunFolder
from ._statistics import Statistics
from ._trackers import LogTo, find_tracker
from ._worker import WeightState
from ._workers import Executor, WorkerPool, check_sendable

_END = object()


class Rollouts(AbstractAsyncContextManager["Rollouts", None]):
    """Rolls out many episodes with bounded concurrency, deadlines and retries, and reports each as it ends.

    ```python
    rollouts = Rollouts("envsdk/Calculator-v1", policy, seeds=range(500), group_size=8)
    async for trajectory in rollouts: ...          # or: async for group in rollouts.groups(): ...
    trajectories = rollouts.run()                  # in a program without an event loop
    ```

    Whatever happens to an episode is recorded in its trajectory, and the others continue: `status == "error"`, the
    error, its kind (`error_kind`), and the steps before it. An object runs once.

    Args:
        env: The id of a registered environment; or a function that makes an environment, such as its class. It is
            called for each episode that runs at the same time, with `env_options`.
        policy: A policy, the name of a built-in one, or a mapping from roles to either; see `arollout`.
        seeds: The seeds, one for each task: a number N, for 0 to N - 1; or a sequence, such as `range(100, 116)`. Give
            either these or `tasks`.
        tasks: The tasks: the number of the environment's own tasks, from the first; or a sequence of tasks.
        group_size: The number of episodes of each task, such as 8 for a trainer that compares them. They form a
            group, with one `group_id`.
        env_options: The keyword arguments for `env`, such as `{"tokenizer": "Qwen/Qwen3-8B", "history": "strip"}`.
        max_concurrency: The maximum number of episodes that run at the same time.
        policy_timeout_s: The maximum time of a call of the policy, in seconds; None for no limit. A policy
            that takes longer is an infrastructure error.
        method_timeout_s: The same for a method of the environment; exceeding it is an error of the environment. An
            `async def` method is cancelled. One that does not return is abandoned in its thread; see `Env.blocking`.
        episode_timeout_s: The same for an episode; exceeding it is an error of the environment.
        max_retries: How many times an episode is restarted, with the same seed, after an infrastructure error. A
            policy on a server also retries requests. A server that cannot be reached at the beginning ends the run at
            once.
        retry_wait_s: The time to wait before the first retry, in seconds. It doubles each time, up to 30 s.
        fail_fast: Raise `RunFailed` after this many episodes in a row that failed in the environment's code.
        max_threads: How many methods of environments may compute at the same time; methods that wait for something
            do not count. More than 16 may delay the event loop.
        executor: Where episodes run. None: in this event loop. `processes`: in worker processes of this machine, which
            play on more cores. `ray`: in workers of a Ray cluster (`envsdk[ray]`). Workers make their own environments,
            and their own copies of the policy, which has to be one that can be pickled, such as `VLLM`.
        n_workers: How many worker processes; None for one for each core of this machine, or each CPU of the cluster.
        max_staleness: The maximum number of weight versions between the oldest token of an episode and
            `policy_version` when it ends; None for any number.
        on_stale: `drop`: a stale trajectory is counted and not reported. `keep`: it is reported; see `is_stale`.
        on_trajectory: A function that is called with each trajectory that is reported; plain or `async def`.
        out: A folder for the run (see `RunFolder`). Each trajectory is on disk before it is reported. One that failed
            because of the infrastructure is not stored: resuming the run plays it again.
        resume: Whether to continue the run in that folder: the episodes that it has are not played again.
        extend: Whether to continue it with further seeds or tasks, after those that it has.
        allow_changed: Whether to continue although the environment's code, options, limits or task data have changed
            since the run began. A new segment of the run then begins, which reports keep apart.
        compress: Whether to compress the trajectories in the folder (`envsdk[zstd]`).
        progress: True: show the progress on standard error, live on a terminal and otherwise as a line every 30 s.
            `auto`: only on a terminal. A rich console: live there.
        log_to: Where to log the statistics every 10 s and at the end: `trackio` or `trackio:PROJECT/RUN`; `wandb` or
            `wandb:PROJECT/RUN`; `tensorboard` or `tensorboard:FOLDER`; or a function of the number of episodes that
            have ended and the values by name. It is called in a separate thread. docs/how-to/scale.md lists the
            names. `otel` sends spans of the episodes instead; see docs/how-to/traces.md.

    Raises:
        ConfigError: If an argument has the wrong type or value.
        RunFailed: While it runs: see `fail_fast` and `max_retries`.
        MissingPackage: If the package that `log_to` names is not installed.
        UnknownName: If no environment or policy has that name.
        RunFolderError: If the folder is in use, has another configuration, or has a run and `resume` is False.
        StorageError: If the folder cannot be written; also later, while the run goes on. What was stored is kept.
    """

    def __init__(
        self,
        env: str | Callable[..., Env],
        policy: PolicyLike = "random",
        *,
        seeds: int | str | Sequence[int | None] | None = None,
        tasks: int | Sequence[Any] | None = None,
        group_size: int = 1,
        env_options: Mapping[str, Any] | None = None,
        max_concurrency: int = 64,
        policy_timeout_s: float | None = 600.0,
        method_timeout_s: float | None = 60.0,
        episode_timeout_s: float | None = None,
        max_retries: int = 2,
        retry_wait_s: float = 1.0,
        fail_fast: int | None = None,
        max_threads: int = 16,
        executor: Executor | None = None,
        n_workers: int | None = None,
        max_staleness: int | None = None,
        on_stale: Literal["drop", "keep"] = "drop",
        on_trajectory: Callable[[Trajectory], Any] | None = None,
        out: str | Path | None = None,
        resume: bool = False,
        extend: bool = False,
        allow_changed: bool = False,
        compress: bool = False,
        progress: Progress = False,
        log_to: LogTo | None = None,
    ) -> None:
        check_count("group_size", group_size)
        check_count("max_concurrency", max_concurrency)
        check_count("max_threads", max_threads)
        check_count("max_retries", max_retries, 0)
        check_count("fail_fast", fail_fast)
        check_count("n_workers", n_workers)
        check_count("max_staleness", max_staleness, 0)
        check_seconds("policy_timeout_s", policy_timeout_s)
        check_seconds("method_timeout_s", method_timeout_s)
        check_seconds("episode_timeout_s", episode_timeout_s)
        check_seconds("retry_wait_s", retry_wait_s)
        if executor not in (None, "processes", "ray"):
            raise ConfigError(f"executor is {brief(executor)}; expected None, 'processes' or 'ray'")
        if on_stale not in ("drop", "keep"):
            raise ConfigError(f"on_stale is {brief(on_stale)}; expected 'drop' or 'keep'")
        if (seeds is None) == (tasks is None):
            raise ConfigError("give either seeds, such as seeds=range(100), or tasks")
        is_env = isinstance(env, Env)
        if is_env or not (isinstance(env, str) or callable(env)):
            what = f"the environment {env!r}" if is_env else brief(env)
            raise ConfigError(
                f"the rollouts got {what}; expected a way to make an environment for each concurrent episode: an id, "
                "a class, or a function without arguments, such as functools.partial(MyEnv, history='strip')"
            )
        self.statistics = Statistics()
        """The statistics of the run so far."""
        tracker = self._tracker = None if log_to is None else find_tracker(log_to)
        reporters = [find_progress(progress), tracker]
        self._reporting = Reporting(self.statistics, [one for one in reporters if one is not None])
        self._settings = PlaySettings(
            env=env,
            env_options=dict(env_options or {}),
            policy=policy,
            policy_timeout_s=policy_timeout_s,
            method_timeout_s=method_timeout_s,
            episode_timeout_s=episode_timeout_s,
            max_retries=max_retries,
            retry_wait_s=retry_wait_s,
            max_threads=max_threads,
            spans=None if tracker is None else tracker.spans,
        )
        if executor is not None:
            check_sendable(self._settings, executor)
        self._executor: Executor | None = executor
        self._n_workers = n_workers
        self._fail_fast = fail_fast
        self._max_concurrency = max_concurrency
        self._max_staleness, self._on_stale = max_staleness, on_stale
        self._on_trajectory = on_trajectory
        self._thread = MethodThread()
        self._first: Env = self._thread.wait(self._settings.make_env)
        self.reward_range = self._first.reward_range
        """The lowest and the highest reward of an episode that the environment declares."""
        find_policy(policy, self._first, None)
        self._jobs = jobs_of(self._first, seeds, tasks, group_size)
        self._stored_jobs: list[EpisodeJob] = []
        self._sizes = Counter(job.group_id for job in self._jobs)
        self.statistics.total = len(self._jobs)
        self.folder: RunFolder | None = None
        """The run folder, which is open until the run ends."""
        if out is not None:
            extends: dict[str, Any] | None = None
            if extend and (stored := RunDescription.read(Path(out))) is not None:
                before = self._jobs[: stored.configuration.get("episodes")]
                extends = configuration_of(self._settings, self._first, before, group_size)
            self.folder = RunFolder.create(
                out,
                configuration_of(self._settings, self._first, self._jobs, group_size),
                {"main": self._first.renderer},
                resume=resume or extend,
                extends=extends,
                allow_changed=allow_changed,
                compress=compress,
            )
            self._stored_jobs = [job for job in self._jobs if job.id in self.folder.finished]
            self._jobs = [job for job in self._jobs if job.id not in self.folder.finished]
            self.statistics.resumed = len(self._stored_jobs)
        self._policy_version: int | None = None
        self._is_paused = False
        self._player: Player | WorkerPool | None = None
        self._running: AsyncGenerator[tuple[EpisodeJob, Trajectory | None]] | None = None
        self._failed_in_a_row = 0
        self._first_failure: EpisodeResult | None = None
        self._stored = 0

    def _repr_html_(self) -> str:
        """Return a card for notebooks with the statistics of the run so far."""
        done, tally = self.statistics, self.statistics.tally
        facts = {
            "episodes": f"{done.resumed + done.episodes:,} of {done.total:,}",
            "scored": f"{tally.scored:,} of {done.episodes:,}" if tally.not_scored else None,
            "not scored": named(tally.not_scored),
            "mean reward": f"{done.mean_reward:.4g}" if tally.scored else None,
            "rewards": named({name: total / tally.scored for name, total in tally.rewards.items()}),
            "steps": f"{tally.steps:,}",
            "sampled": f"{tally.sampled_tokens:,} tokens",
            "breaks": named(tally.breaks),
            "ended": named(tally.stop_reasons),
            "failed": named(tally.failures),
            "errors": named(tally.errors),
            "stale": done.stale or None,
            "folder": None if self.folder is None else self.folder.path,
        }
        return card(f"Rollouts of {self._first.name}", facts)

    # Running.

    def run(self) -> list[Trajectory]:
        """Roll out all episodes, and return the trajectories in the order of the tasks.

        It runs in the event loop that `rollout` uses; inside an event loop, use `async for`.
        """
        return run(self.arun())

    async def arun(self) -> list[Trajectory]:
        """As `run`, inside an event loop."""
        found: list[tuple[int, Trajectory]] = []
        async for job, trajectory in self._results():
            if trajectory is not None:
                found.append((job.index, trajectory))
        return [trajectory for _, trajectory in sorted(found, key=lambda item: item[0])]

    def __iter__(self) -> NoReturn:
        raise EpisodeError("Rollouts are iterated with `async for`; in a program without an event loop, call run()")

    async def __aiter__(self) -> AsyncGenerator[Trajectory]:
        async for _, trajectory in self._results():
            if trajectory is not None:
                yield trajectory

    async def groups(self) -> AsyncGenerator[Group]:
        """Yield each group once all of its episodes have ended.

        In a resumed run, these are the groups with a missing episode, including their stored episodes.
        """
        ended = Counter[str]()
        found: dict[str, list[tuple[int, Trajectory]]] = defaultdict(list)
        missing = {job.group_id for job in self._jobs}
        stored = {job.id: job for job in self._stored_jobs if job.group_id in missing}
        if stored and self.folder is not None:
            for trajectory in RunFolder.open(self.folder.path).trajectories():
                if (job := stored.get(trajectory.id)) is not None:
                    ended[job.group_id] += 1
                    found[job.group_id].append((job.index, trajectory))
        async for job, trajectory in self._results():
            name = job.group_id
            ended[name] += 1
            if trajectory is not None:
                found[name].append((job.index, trajectory))
            if ended[name] == self._sizes[name]:
                members = sorted(found.pop(name, []), key=lambda item: item[0])
                yield Group(name, tuple(one for _, one in members), self._sizes[name])

    async def aclose(self) -> None:
        """End the episodes that are running, and close the environments. Call it after leaving a run early."""
        if self._running is not None:
            await self._running.aclose()
        if self.folder is not None:  # the run never began
            self.folder.close()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # WeightState.

    async def pause(self, *, abort: bool = True) -> None:
        """Pause the policy before an update of the weights: no call begins, and those that are running are awaited.

        Args:
            abort: Whether to abort the replies that are being sampled, if the policy can. They continue after `resume`,
                as another part with the new weights. If False, wait until they have ended.
        """
        self._is_paused = True
        if self._player is not None:
            await self._player.pause(abort=abort)

    def resume(self, policy_version: int | None = None) -> None:
        """Resume the policy after an update of the weights: calls begin again.

        Args:
            policy_version: The version of the new weights. It applies to actions whose policy does not report one.
        """
        self._is_paused = False
        if policy_version is not None:
            self._policy_version = policy_version
        if self._player is not None:
            self._player.resume(policy_version)

    def is_stale(self, trajectory: Trajectory) -> bool:
        """Return whether the oldest token of a trajectory is older than `max_staleness` allows."""
        if self._max_staleness is None or self._policy_version is None:
            return False
        parts = (part for step in trajectory.steps for part in step.parts)
        versions = [part.policy_version for part in parts if part.policy_version is not None]
        return bool(versions) and self._policy_version - min(versions) > self._max_staleness

    # The run.

    def _results(self) -> AsyncGenerator[tuple[EpisodeJob, Trajectory | None]]:
        if self._running is not None:
            raise ConfigError("this run has begun already: make another Rollouts object")
        self._running = self._run()
        return self._running

    async def _run(self) -> AsyncGenerator[tuple[EpisodeJob, Trajectory | None]]:
        """Yield each job as it ends, with its trajectory if that is reported."""
        ended: asyncio.Queue[Any] = asyncio.Queue()
        room = asyncio.Semaphore(self._max_concurrency)  # a slow reader slows the run down
        running = asyncio.create_task(self._play_all(ended, room))
        running.add_done_callback(lambda _: ended.put_nowait(_END))
        try:
            while (item := await ended.get()) is not _END:
                room.release()
                yield item
            running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            self.statistics.ended_at = time.monotonic()
            try:
                if self.folder is not None:
                    done = self.statistics.resumed + self._stored
                    await asyncio.to_thread(self.folder.close, is_complete=done == self.statistics.total)
            finally:
                await self._reporting.end()

    async def _play_all(self, ended: "asyncio.Queue[Any]", room: asyncio.Semaphore) -> None:
        self.statistics.began_at = time.monotonic()
        at_once = max(1, min(self._max_concurrency, len(self._jobs)))
        if self._executor is None:
            player: Player | WorkerPool = Player(self._settings, self._first, self._thread)
            player.resume(self._policy_version)
        else:
            self._first.close()
            self._thread.stop()
            weights = WeightState(self._policy_version)
            player = WorkerPool(self._executor, self._settings, self._n_workers, at_once, weights)
        self._player = player
        self.statistics.read_play = lambda: player.statistics
        jobs = iter(self._jobs)

        async def work() -> None:
            """Play jobs, one after another, until none is left."""
            for job in jobs:
                began = time.monotonic()
                result = await player.play(job)
                reported = await self._report(result, time.monotonic() - began)
                await room.acquire()
                ended.put_nowait((job, reported))

        try:
            await self._reporting.begin()
            if self._is_paused:
                await player.pause()
            await run_all(work() for _ in range(at_once))
        finally:
            await player.aclose()

    async def _report(self, result: EpisodeResult, duration_s: float) -> Trajectory | None:
        """Count a trajectory, and return it if it is to be reported.

        Raises:
            RunFailed: If the failure of the episode affects all of them; see `fail_fast`.
        """
        trajectory = result.trajectory
        if self.folder is not None and trajectory.error_kind != "infrastructure":
            await self.folder.append(trajectory, duration_s)
            self._stored += 1
        self.statistics.add(trajectory)
        if self._tracker is not None:
            self._tracker.take(result.spans)
        error = trajectory.error or ""
        if error.startswith(ServerUnreachable.__name__) and not self.statistics.play.steps:
            raise RunFailed(f"no reply was sampled. {error}")
        if trajectory.error_kind == "environment":
            self._failed_in_a_row += 1
            first = self._first_failure = self._first_failure or result
            if self._fail_fast is not None and self._failed_in_a_row >= self._fail_fast:
                raise RunFailed(
                    f"{self._failed_in_a_row} episodes in a row failed in the environment's code (fail_fast="
                    f"{self._fail_fast}). The first was {first.trajectory.id}:\n{first.traceback}"
                )
        else:
            self._failed_in_a_row, self._first_failure = 0, None
        if self.is_stale(trajectory):
            self.statistics.stale += 1
            if self._on_stale == "drop":
                return None
        if self._on_trajectory is not None:
            returned = self._on_trajectory(trajectory)
            if inspect.isawaitable(returned):
                await returned
        return trajectory


async def arollout_many(
    env: Callable[[], Env] | str,
    policy: PolicyLike = "random",
    *,
    seeds: int | Sequence[int | None],
    max_concurrency: int = 64,
    on_end: Callable[[Trajectory], Any] | None = None,
) -> list[Trajectory]:
    """Roll out one episode for each seed, inside an event loop. There are no retries and no deadlines.

    Args:
        env: A function that creates an environment, such as its class; or the id of a registered environment. It is
            called once for each episode that runs at the same time.
        policy: A policy, or the name of a built-in one; see `arollout`.
        seeds: The seed of each episode; see `Rollouts`. Episodes with the same seed have the same task and form a
            group: their `group_id` is `name/seed`, and their ids are `name/seed`, `name/seed#1`, ...
        max_concurrency: The maximum number of episodes that run at the same time.
        on_end: A function that is called with each trajectory when its episode ends. If it raises, `arollout_many`
            cancels the other episodes and raises the same error.

    Returns:
        The trajectories, in the order of the seeds. A failed one has `status == "error"`, the text of the error, and
        the steps before it.

    Raises:
        UnknownName: If no environment or policy has that name.
        ConfigError: If an argument has the wrong type or value.
        TokenizerMismatch: See `arollout`.
    """
    rollouts = Rollouts(
        env,
        policy,
        seeds=seeds,
        max_concurrency=max_concurrency,
        policy_timeout_s=None,
        method_timeout_s=None,
        max_retries=0,
        on_trajectory=on_end,
    )
    return await rollouts.arun()


def rollout_many(
    env: Callable[[], Env] | str,
    policy: PolicyLike = "random",
    *,
    seeds: int | Sequence[int | None],
    max_concurrency: int = 64,
    on_end: Callable[[Trajectory], Any] | None = None,
) -> list[Trajectory]:
    """Roll out one episode for each seed; see `arollout_many`. It runs in the same event loop as `rollout`."""
    return run(arollout_many(env, policy, seeds=seeds, max_concurrency=max_concurrency, on_end=on_end))
