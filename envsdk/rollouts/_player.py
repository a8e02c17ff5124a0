"""Plays jobs in one event loop: many episodes at a time, each call with a deadline, each error with its kind."""

import asyncio
import contextlib
import inspect
import logging
import math
import sys
import time
import traceback
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..authoring._driver import Driver, driver_of, not_cancelled
from ..authoring._env import Env
from ..authoring._making import make
from ..contexts._protocol import Action
from ..episodes._agent import StepResult
from ..episodes._episode import MethodCall
from ..episodes._turn import Turn
from ..errors import (
    ActionError,
    ConfigError,
    DeadlineExceeded,
    EngineDead,
    EpisodeError,
    MissingPackage,
    PluginError,
    PolicyError,
    PolicyUnavailable,
    ServerMismatch,
    ServerUnreachable,
    TokenizerMismatch,
    UnknownName,
    WorkerLost,
    describe_error,
)
from ..limits import StopReason
from ..policies._find import asks_environment, find_policy, why_not_sampled
from ..policies._policy import PolicyLike
from ..trajectories._trajectory import ErrorKind, Trajectory
from ._deadlines import Call as ThreadCall
from ._deadlines import MethodThread, Places
from ._jobs import Job
from ._runner import EpisodeRunner
from ._simple import check_is_env
from ._statistics import PlayStatistics

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)
T = TypeVar("T")

_GRACE_S = 5.0
"""How long a coroutine that was cancelled may take to end, in seconds."""
_MAX_ABANDONED = 256
"""How many methods may hang at the same time, before the run ends."""
_LAG_PAUSE_S = 0.05
_TURNS = 8
"""How many steps may begin in an iteration of the event loop, so that timers and sockets stay in time.

Without it, a thousand replies that arrive together are a thousand steps before the loop looks at anything else.
"""


@dataclass(frozen=True)
class PlaySettings:
    """How episodes are played; `Rollouts` documents the fields.

    It is pickled for worker processes.
    """

    env: str | Callable[..., Any]
    env_options: Mapping[str, Any]
    policy: PolicyLike
    policy_timeout_s: float | None = 600.0
    method_timeout_s: float | None = 60.0
    episode_timeout_s: float | None = None
    max_retries: int = 2
    retry_wait_s: float = 1.0
    max_threads: int = 16
    infrastructure_errors: tuple[type[BaseException], ...] = (
        PolicyUnavailable,
        WorkerLost,
        ConnectionError,
        TimeoutError,
    )

    def make_env(self) -> Env:
        """Make an environment.

        Raises:
            ConfigError: If it is not one.
        """
        if isinstance(self.env, str):
            return make(self.env, **self.env_options)
        env: object = self.env(**self.env_options)
        check_is_env(env, "the function that makes environments returned")
        assert isinstance(env, Env)
        return env


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a job.

    Attributes:
        trajectory: Its episode, finished or failed.
        traceback: The traceback of what failed; an empty string if nothing did.
        error: What failed; None if nothing did, or if it was in another process.
    """

    trajectory: Trajectory
    traceback: str = ""
    error: Exception | None = None


@dataclass(eq=False)
class _Seat:
    """An environment, its thread, and the threads of its sub-agents that have their own."""

    env: Env
    thread: MethodThread | None = None
    """The thread of its episode; None if nothing has run in one yet."""
    others: dict[int, MethodThread] = field(default_factory=dict[int, MethodThread])
    is_lost: bool = False
    """Whether a coroutine that does not end when it is cancelled still uses it."""

    def thread_of(self, env: Any) -> MethodThread | None:
        """Return the thread that the methods of an environment of the episode run in; None for the event loop."""
        if env.blocking is False:
            return None
        if env.blocking and env is not self.env:
            if id(env) not in self.others:
                self.others[id(env)] = MethodThread()
            return self.others[id(env)]
        if self.thread is None:
            self.thread = MethodThread()
        return self.thread

    def is_stuck(self) -> bool:
        """Return whether a method has not returned."""
        threads = [*([] if self.thread is None else [self.thread]), *self.others.values()]
        return self.is_lost or any(thread.is_busy for thread in threads)


class _SharedEnvironment(ConfigError):
    """Two episodes would share an environment."""


class Player:
    """Plays jobs in the running event loop.

    Args:
        settings: How to play.
        env: An environment that was made already; None makes the first one when it is needed.
        thread: The thread that it was made in.
    """

    def __init__(self, settings: PlaySettings, env: Env | None = None, thread: MethodThread | None = None) -> None:
        self.settings = settings
        self._statistics = PlayStatistics()
        self.policy_version: int | None = None
        self._seats = [] if env is None else [_Seat(env, thread)]
        self._made = weakref.WeakSet([] if env is None else [env])
        self._logged: set[tuple[Any, ...]] = set()
        self._waits: set[_Wait] = set()
        self._turns = asyncio.Semaphore(_TURNS)
        self._places = Places(settings.max_threads)
        self._may_sample = asyncio.Event()
        self._may_sample.set()
        self._in_flight = 0
        self._no_call = asyncio.Event()
        self._no_call.set()
        self._stuck: list[Callable[[], bool]] = []
        self._is_first = env is None
        self._has_made = asyncio.Event()
        if env is not None:
            self._has_made.set()
        self._housekeeping = asyncio.create_task(self._keep_house())

    @property
    def statistics(self) -> PlayStatistics:
        """What happened so far."""
        return self._statistics

    async def play(self, job: Job, policy: PolicyLike | None = None) -> Played:
        """Play an episode. Whatever fails in it is recorded; after an infrastructure error it begins again.

        It does not if the engine of the policy's server has died (`EngineDead`).

        Args:
            job: The episode.
            policy: Its policy; None for that of the settings.

        Raises:
            ConfigError: If the policy and the environment do not fit, which holds for every job.
            UnknownName, PluginError, MissingPackage: If this process lacks what the environment is made of.
            WorkerLost: If too many methods hang.
        """
        attempt = 0
        while True:
            played = await self._attempt(job, self.settings.policy if policy is None else policy)
            trajectory = played.trajectory
            is_final = attempt == self.settings.max_retries or isinstance(played.error, EngineDead)
            if trajectory.error_kind != "infrastructure" or is_final:
                return played
            if isinstance(played.error, ServerUnreachable) and not self._statistics.steps:
                return played
            self.statistics.retries[(trajectory.error or "").partition(":")[0]] += 1
            await asyncio.sleep(min(30.0, self.settings.retry_wait_s * 2**attempt))
            attempt += 1

    # Weights.

    async def pause(self, *, abort: bool = True) -> None:
        """Let no call of the policy begin, and wait until none is running.

        Args:
            abort: Whether to abort those that are running, if the policy can; the replies continue after `resume`.
        """
        self._may_sample.clear()
        aborts = self._methods_of_policies("abort") if abort else []
        while self._in_flight:
            for end in aborts:
                ended = end()
                if inspect.isawaitable(ended):
                    await ended
            with contextlib.suppress(TimeoutError):  # a call that began just before may not have reached the server
                async with asyncio.timeout(1.0 if aborts else None):
                    await self._no_call.wait()

    def resume(self, policy_version: int | None = None) -> None:
        """Let calls of the policy begin again.

        Args:
            policy_version: The version of the weights for actions whose policy does not tell; None leaves it.
        """
        if policy_version is not None:
            self.policy_version = policy_version
            for use_weights in self._methods_of_policies("use_weights"):
                use_weights(policy_version)
        self._may_sample.set()

    def _methods_of_policies(self, name: str) -> list[Callable[..., Any]]:
        """Return a method of the policy, or of the policy of each role, where it has one."""
        policy: Any = self.settings.policy
        policies: list[Any] = list(policy.values()) if isinstance(policy, Mapping) else [policy]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return [method for one in policies if (method := getattr(one, name, None)) is not None]

    async def aclose(self) -> None:
        """End what is running, and close the environments."""
        closing, self._seats = [asyncio.create_task(self._close(seat)) for seat in self._seats], []
        try:
            await _until_done(closing)
        finally:
            self._housekeeping.cancel()
            await asyncio.gather(self._housekeeping, return_exceptions=True)

    # One attempt.

    async def _attempt(self, job: Job, policy: PolicyLike) -> Played:
        play: _Play | None = None
        try:
            play = _Play(self, await self._take_seat(), job, policy)
            try:
                played = Played(await play.result())
            finally:
                self._leave(play.seat)
            _forget(play.seat)
            return played
        except Exception as error:  # the code of users may raise anything
            kind = self._kind_of(error, play)
            if kind is None:
                raise
            self._log_failure(job, error, kind)
            trajectory = _failed(None if play is None else play.seat.env, job, error, kind)
            if play is not None:
                _forget(play.seat)
            return Played(trajectory, "".join(traceback.format_exception(error)), error)

    def _log_failure(self, job: Job, error: Exception, kind: ErrorKind) -> None:
        """Log a line for each failure, and the traceback of the first of its kind."""
        frames = traceback.extract_tb(error.__traceback__)
        place = (type(error), *((frames[-1].filename, frames[-1].lineno) if frames else ()))
        is_new = place not in self._logged and not isinstance(error, ServerUnreachable)  # no code has failed
        self._logged.add(place)
        text = describe_error(error, with_notes=False)
        _log.warning("%s failed (%s): %.300s", job.id, kind, text, exc_info=error if is_new else None)

    def _kind_of(self, error: Exception, play: "_Play | None") -> ErrorKind | None:
        """Return whose error it is; None if it holds for every episode."""
        if play is None and isinstance(error, (UnknownName, PluginError, MissingPackage)):
            return None
        blamed = play is not None and error is play.policy_error
        if isinstance(error, (TokenizerMismatch, ServerMismatch, _SharedEnvironment)):
            return None
        if isinstance(error, WorkerLost):
            return None if len(self._stuck) > _MAX_ABANDONED else "infrastructure"
        if blamed:
            return "infrastructure" if isinstance(error, self.settings.infrastructure_errors) else "policy"
        return "policy" if isinstance(error, (ActionError, PolicyError)) else "environment"

    # Environments.

    async def _take_seat(self) -> _Seat:
        if self._seats:
            return self._seats.pop()
        self._stuck = [is_stuck for is_stuck in self._stuck if is_stuck()]
        if len(self._stuck) > _MAX_ABANDONED:
            raise WorkerLost(
                f"{len(self._stuck)} methods of environments have not returned, and each holds a thread. Let them end "
                "(with timeouts of their own), or run with executor='processes', where envsdk ends the process"
            )
        is_first, self._is_first = self._is_first, False
        if not is_first:
            await self._has_made.wait()  # the others find in caches what the first one loaded
        thread = MethodThread()
        try:
            env = await self._call(None, thread, "making the environment", self.settings.make_env)
        except BaseException:
            thread.stop()
            if thread.is_busy:
                self._abandon(lambda: thread.is_busy)
            raise
        finally:
            self._has_made.set()
        return _Seat(self._new(env), thread)

    def _new(self, env: Env) -> Env:
        """Return an environment, unless it was returned before: each episode that runs at the same time needs its own.

        Raises:
            _SharedEnvironment: If it was.
        """
        if env in self._made:
            raise _SharedEnvironment(
                "the function that makes environments returned the same environment object twice; expected a new one "
                "from each call, because each episode that runs at the same time needs its own"
            )
        self._made.add(env)
        return env

    def _leave(self, seat: _Seat) -> None:
        """Keep an environment for the next episode, or replace it if one of its methods has not returned."""
        for thread in seat.others.values():
            thread.stop()
        if not seat.is_stuck():
            seat.others.clear()
            self._seats.append(seat)
            return
        self._abandon(seat.is_stuck)
        if seat.thread is not None:
            seat.thread.stop()

    def _abandon(self, is_stuck: Callable[[], bool]) -> None:
        self.statistics.abandoned += 1
        self._stuck.append(is_stuck)

    async def _close(self, seat: _Seat) -> None:
        try:
            await self._call(None, seat.thread_of(seat.env), "close()", seat.env.close)
        except Exception as error:
            _log.warning("%r could not be closed", seat.env, exc_info=error)
        if seat.thread is not None:
            seat.thread.stop()

    # Calls.

    async def call_method(self, play: "_Play", driver: Driver, request: MethodCall) -> Any:
        """Call a method of an environment of an episode."""
        env, method = driver.env, request.method
        what = driver.what_runs(method) if isinstance(method, str) else f"the summarizer of {env.name}"

        def call() -> Any:
            returned = driver.call_method(request)
            return driver.now(returned) if inspect.iscoroutine(returned) and not driver.needs_loop() else returned

        try:
            return await self.call(play, env, what, call)
        except SystemExit as error:  # it would end the program with all its episodes
            raise EpisodeError(f"{what} called sys.exit({error.code!r})") from error

    async def call(self, play: "_Play", env: object, what: str, function: Callable[[], Any]) -> Any:
        """Call code of an author where that environment's methods run; `what` describes it in the error of a deadline.

        Raises:
            DeadlineExceeded: If it took longer than `method_timeout_s`.
        """
        return await self._call(play, play.seat.thread_of(env), what, function)

    async def _call(
        self, play: "_Play | None", thread: MethodThread | None, what: str, function: Callable[[], Any]
    ) -> Any:
        seconds = self.settings.method_timeout_s
        if thread is None:
            returned = function()
            if isinstance(returned, Turn) or not inspect.isawaitable(returned):  # usually a turn
                return returned
            return await self._within(play, "method", what, not_cancelled(returned), seconds)
        call = ThreadCall(function, asyncio.get_running_loop())
        await self._places.take(call)
        try:
            return await self._within(play, "method", what, thread.result(call), seconds, call)
        finally:
            self._places.leave(call)

    async def _within(
        self,
        play: "_Play | None",
        cause: str,
        what: str,
        awaitable: Awaitable[T],
        seconds: float | None,
        call: ThreadCall | None = None,
    ) -> T:
        """Await something that has to be ready in time. If it ignores that it is cancelled, the attempt is given up.

        This is `asyncio.timeout` without a timer for each call: `_keep_house` looks at all of them. The time of a call
        in a thread begins when the thread does: the methods of parallel sub-agents may share one.

        Raises:
            DeadlineExceeded: If it took longer.
        """
        since = time.monotonic()
        task = asyncio.current_task()
        assert task is not None
        wait = _Wait(task, play, what, math.inf if seconds is None else seconds, since, call)
        self._waits.add(wait)
        try:
            value = await awaitable
            if wait.late_at is not None:  # it was ready, although it was cancelled
                task.uncancel()
            return value
        except asyncio.CancelledError as error:
            if wait.late_at is not None and task.uncancel() == 0:
                text = f"{what} took longer than {seconds:g} s; raise {cause}_timeout_s if it may"
                raise DeadlineExceeded(text) from error
            raise
        finally:
            self._waits.discard(wait)
            self._waited(cause, time.monotonic() - since)

    async def call_policy(self, play: "_Play", call: Callable[[], Any]) -> Any:
        """Call the policy, once it may be called, and take a turn in the event loop."""
        try:
            action = await self._sampled(play, call)
            self._count(action)
        except Exception as error:
            play.policy_error = error
            raise
        await self.take_turn()
        return action

    async def take_turn(self) -> None:
        """Wait until the event loop has time for a step."""
        since = time.monotonic()
        async with self._turns:
            await asyncio.sleep(0)
        self._waited("turn", time.monotonic() - since)

    def _count(self, action: object) -> None:
        if isinstance(action, Action) and hasattr(action.tokens, "__len__"):  # the environment refuses other actions
            self._statistics.steps += action.finish_reason != "abort"  # an aborted reply continues in the same step
            self._statistics.sampled_tokens += len(action.tokens)

    async def _sampled(self, play: "_Play", call: Callable[[], Any]) -> Any:
        while True:
            while not self._may_sample.is_set():
                await self._within(play, "pause", "a pause", self._may_sample.wait(), None)
            version = self.policy_version
            action = await self._timed(play, call)
            if not isinstance(action, Action):
                return action
            if action.finish_reason == "abort" and not len(action.tokens) and not self._may_sample.is_set():
                continue  # it was aborted before its first token: call again after the pause
            if action.policy_version is None and version is not None:
                action = replace(action, policy_version=version)
            return action

    async def _timed(self, play: "_Play", call: Callable[[], Any]) -> Any:
        self._in_flight += 1
        self._no_call.clear()
        try:
            action = call()
            if not inspect.isawaitable(action):
                return action
            return await self._within(play, "policy", "the policy", action, self.settings.policy_timeout_s)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._no_call.set()

    def _waited(self, cause: str, seconds: float) -> None:
        waiting = self._statistics.waiting_s
        waiting[cause] = waiting.get(cause, 0.0) + seconds

    # Housekeeping.

    async def _keep_house(self) -> None:
        """Measure the lag of the event loop, and end what takes too long."""
        now = asyncio.get_running_loop().time
        limits = (self.settings.policy_timeout_s, self.settings.method_timeout_s)
        pause = min([1.0, *(seconds / 4 for seconds in limits if seconds is not None)])
        look_at = 0.0
        while True:
            due = now() + _LAG_PAUSE_S
            await asyncio.sleep(_LAG_PAUSE_S)
            self.statistics.lag.add(max(0.0, now() - due))
            if now() > look_at:
                look_at = now() + pause
                for wait in list(self._waits):
                    wait.look()
                    del wait  # it holds an episode while this task sleeps


@dataclass(eq=False, slots=True)
class _Wait:
    """A task that waits for a call with a deadline."""

    task: "asyncio.Task[Any]"
    play: "_Play | None"
    what: str
    seconds: float
    since: float
    call: ThreadCall | None
    late_at: float | None = None
    """When it was cancelled at its deadline."""

    def look(self) -> None:
        """Cancel the task at the deadline; if it has not ended some time after that, give up the attempt."""
        now, since = time.monotonic(), self.since if self.call is None else self.call.began_at
        if self.late_at is None:
            if since is not None and now - since > self.seconds:
                self.late_at = now
                self.task.cancel()
        elif now - self.late_at > _GRACE_S and self.play is not None and not self.play.given_up.done():
            text = f"{self.what} was cancelled at its deadline, and has not ended {_GRACE_S:g} s later"
            self.play.given_up.set_exception(DeadlineExceeded(text))


class _Play:
    """One attempt to play a job."""

    def __init__(self, player: Player, seat: _Seat, job: Job, policy: PolicyLike) -> None:
        self.seat = seat
        self.given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets an error if a coroutine of the episode does not end when it is cancelled."""
        self.policy_error: Exception | None = None
        """What the policy raised."""
        self._deadline: BaseException | None = None
        """The deadline of the episode, or of a coroutine that was given up, once it has passed."""
        self._player = player
        self._job = job
        self._policy = policy

    async def result(self) -> Trajectory:
        """Play the episode and return its trajectory.

        Raises:
            DeadlineExceeded: If the episode took too long.
            Exception: Whatever the environment or the policy raised.
        """
        task = asyncio.create_task(self._run())
        seconds = self._player.settings.episode_timeout_s
        try:
            done, _ = await asyncio.wait({task, self.given_up}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if self.given_up in done:
                self._deadline = self.given_up.exception()
            elif not done:
                self._deadline = DeadlineExceeded(f"the episode took longer than {seconds:g} s")
        finally:
            if task.done():
                _drop_result(task)  # if the run ends meanwhile; otherwise it is taken below
            else:
                await self._end(task)
            if not self.given_up.done():
                self.given_up.cancel()
        if self._deadline is not None:
            raise self._deadline
        return _result_of(task)

    async def _end(self, task: "asyncio.Task[Trajectory]") -> None:
        """Cancel a task; leave it alone if it does not end."""
        task.cancel()
        try:
            await _until_done([task], 0.0 if self.given_up.done() else _GRACE_S)
        finally:
            if task.done():
                _drop_result(task)
            else:
                self.seat.is_lost = True
                task.add_done_callback(_drop_result)

    async def _run(self) -> Trajectory:
        env, job, player = self.seat.env, self._job, self._player
        driver = driver_of(env)
        policy = find_policy(self._policy, env, job.seed)
        driver.use_policy(partial(why_not_sampled, policy))
        await player.take_turn()
        await player.call(self, env, "reading the task", lambda: driver.begin(job.seed, job.options))
        try:
            first = await driver.drive_async(env.episode.begin(), None, partial(player.call_method, self))
            assert isinstance(first, StepResult)
            return await _Runner(env, policy, player, self).run(first.observation, first.info)
        finally:
            driver.use_policy(None)
            error = self._deadline or sys.exception()
            if driver.tasks_are_left() and not self.seat.is_stuck():  # they end in the thread that runs them
                await player.call(self, env, "ending its tasks", lambda: driver.aend_tasks(error))
            else:
                await driver.aend_tasks(error)


class _Runner(EpisodeRunner):
    """Plays an episode with the deadlines and turns of a player."""

    def __init__(self, env: Env, policy: Callable[..., Any], player: Player, play: _Play) -> None:
        super().__init__(env, policy)
        self._player, self._play = player, play
        self.call_method = partial(player.call_method, play)

    async def call_policy(self, prompt: "NDArray[np.int32]", request: Mapping[str, Any]) -> Any:
        """Call the policy as the player allows it; if the environment is asked for its reply, as a method of it."""
        player, play = self._player, self._play
        call = partial(self._policy, prompt, **request)
        if asks_environment(self._policy, request["role"]):
            env = cast("Env", self._episode.pending_reply(request["context"]).env)
            return await player.call_policy(play, lambda: player.call(play, env, f"the reply of {env.name}", call))
        return await player.call_policy(play, call)


async def _until_done(tasks: "Sequence[asyncio.Task[Any]]", seconds: float = math.inf) -> None:
    """Wait until tasks have ended, also if the caller is cancelled meanwhile, as `run_all` does a second time.

    Raises:
        CancelledError: Once they have ended, or after so many seconds, if the caller was cancelled.
    """
    ends_at, cancelled = time.monotonic() + seconds, None
    while (left := [task for task in tasks if not task.done()]) and (left_s := ends_at - time.monotonic()) > 0:
        try:
            await asyncio.wait(left, timeout=None if left_s == math.inf else left_s)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def _result_of(task: "asyncio.Task[Trajectory]") -> Trajectory:
    if task.cancelled():  # not by us
        raise EpisodeError("something that the episode waited for was cancelled")
    return task.result()


def _drop_result(task: "asyncio.Task[Trajectory]") -> None:
    """Take the exception of a task that nobody waits for, which asyncio would log."""
    if not task.cancelled():
        task.exception()


def _forget(seat: _Seat) -> None:
    """Let an environment that waits for its next episode let go of the last one."""
    if not seat.is_stuck():
        driver_of(seat.env).forget()


def _failed(env: Env | None, job: Job, error: Exception, kind: ErrorKind) -> Trajectory:
    """Return the trajectory of an episode that failed."""
    episode = None if env is None else driver_of(env).episode
    if env is None or episode is None or episode.id != job.id or episode.is_over:
        return failed_before_it_began(job, error, kind)
    trajectory = env.fail(error)
    trajectory.error_kind = kind
    return trajectory


def failed_before_it_began(job: Job, error: Exception, kind: ErrorKind) -> Trajectory:
    """Return the trajectory of an episode that has no step."""
    return Trajectory(
        id=job.id,
        env=job.env,
        seed=job.seed,
        status="error",
        stop_reason=str(StopReason.ERROR),
        contexts={},
        steps=[],
        group_id=job.group_id,
        error=describe_error(error),
        error_kind=kind,
    )
