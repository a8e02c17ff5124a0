"""Plays jobs in one event loop: many episodes at a time, each call with a deadline, each error with its kind."""

import asyncio
import contextlib
import inspect
import logging
import sys
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast

import numpy as np

from .._describing import describe_error
from .._spans import EpisodeSpan, inside, recorded
from .._visible import brief
from ..authoring._concurrent import take_error, until_ended
from ..authoring._driver import Driver, driver_of
from ..authoring._env import Env
from ..authoring._event_loops import MethodCall, MethodThread
from ..authoring._making import make
from ..contexts._protocol import Action
from ..episodes._agent import StepResult
from ..episodes._episode import CallMethod
from ..episodes._turn import Turn
from ..errors import (
    ActionError,
    ConfigError,
    ContainerLost,
    DeadlineExceeded,
    EngineDead,
    EpisodeError,
    MissingPackage,
    PluginError,
    PolicyError,
    PolicyUnavailable,
    RemoteEnvError,
    ServerMismatch,
    ServerUnreachable,
    TokenizerMismatch,
    UnknownName,
    WorkerLost,
)
from ..limits import StopReason
from ..policies._built_in import ReplyPolicy
from ..policies._client import Usage
from ..policies._find import find_policy, of_role, why_not_sampled
from ..policies._policy import PolicyLike
from ..trajectories._trajectory import ErrorKind, Trajectory
from ._jobs import EpisodeJob
from ._runner import EpisodeRunner, check_is_env
from ._statistics import PlayStatistics

if TYPE_CHECKING:
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)
T = TypeVar("T")

_GRACE_S = 5.0
"""The maximum time that a cancelled coroutine may take to end, in seconds."""
_MAX_ABANDONED = 256
"""The maximum number of hanging methods; with more, the run ends."""
_TICK_S = 0.05
_TURNS = 8
"""The maximum number of steps that begin in an iteration of the event loop, so that timers and sockets are on time.

Without it, a thousand replies that arrive together cause a thousand steps before the loop handles anything else.
"""


@dataclass(frozen=True)
class PlaySettings:
    """The settings for playing episodes; `Rollouts` documents the fields.

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
    spans: Literal["timing", "content"] | None = None
    """Whether spans are recorded, and whether they have content."""
    infrastructure_errors: tuple[type[BaseException], ...] = (
        PolicyUnavailable,
        WorkerLost,
        ConnectionError,
        TimeoutError,
    )

    def make_env(self) -> Env:
        """Make an environment.

        Raises:
            ConfigError: If the result is not an environment.
        """
        if isinstance(self.env, str):
            return make(self.env, **self.env_options)
        try:
            inspect.signature(self.env).bind(**self.env_options)
        except TypeError as error:
            name, given = getattr(self.env, "__name__", self.env), ", ".join(self.env_options) or "no arguments"
            raise ConfigError(f"{name}, which makes environments, is called with {given}: {error}") from None
        env: object = self.env(**self.env_options)
        check_is_env(env, "the function that makes environments returned")
        assert isinstance(env, Env)
        return env


class Deadlines(TypedDict, total=False):
    """The deadlines and the number of retries; `Rollouts` documents them and their defaults."""

    policy_timeout_s: float | None
    method_timeout_s: float | None
    episode_timeout_s: float | None
    max_retries: int


def check_deadlines(given: Mapping[str, Any]) -> Deadlines:
    """Check the names and values of options, and return them.

    Raises:
        ConfigError: If there is no such option, or its value is invalid.
    """
    for name, value in given.items():
        if name not in Deadlines.__annotations__:
            raise ConfigError(f"there is no option {name!r}; expected one of {', '.join(Deadlines.__annotations__)}")
        if name == "max_retries":
            check_count(name, value, 0)
        else:
            check_seconds(name, value)
    return cast("Deadlines", dict(given))


def check_count(name: str, value: object, least: int = 1) -> None:
    """Check that an option is an integer of at least `least`, or None.

    Raises:
        ConfigError: If it is not.
    """
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        raise ConfigError(f"{name} is {brief(value)}; expected an integer of at least {least}")


def check_seconds(name: str, value: object) -> None:
    """Check that an option is a number above 0, or None.

    Raises:
        ConfigError: If it is not.
    """
    if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0):
        raise ConfigError(f"{name} is {brief(value)}; expected a number of seconds above 0, or None")


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """The result of a job.

    Attributes:
        trajectory: The episode, finished or failed.
        traceback: The traceback of the failure; empty without one.
        error: The exception; None without a failure, or if it was raised in another process.
        spans: The span of each attempt, if they are recorded.
    """

    trajectory: Trajectory
    traceback: str = ""
    error: Exception | None = None
    spans: tuple[EpisodeSpan, ...] = ()


@dataclass(eq=False)
class _Seat:
    """An environment, its thread, and the threads of its sub-agents that have their own."""

    env: Env
    thread: MethodThread | None = None
    """The thread of its episode; None if no thread was needed yet."""
    others: dict[int, MethodThread] = field(default_factory=dict[int, MethodThread])
    is_lost: bool = False
    """Whether a coroutine that does not end when it is cancelled still uses it."""

    def thread_of(self, env: Any) -> MethodThread | None:
        """Return the thread that the methods of an environment of the episode run in; None for the event loop."""
        if env.blocking is False:
            return None
        if env.blocking and env is not self.env:
            return self.others.get(id(env)) or self.others.setdefault(id(env), MethodThread())
        self.thread = self.thread or MethodThread()
        return self.thread

    def is_stuck(self) -> bool:
        """Return whether a method has not returned."""
        return self.is_lost or any(one is not None and one.is_busy for one in (self.thread, *self.others.values()))


class _SharedEnvironment(ConfigError):
    """Two concurrent episodes would share an environment."""


class Player:
    """Plays jobs in the running event loop.

    Args:
        settings: The settings.
        env: The first environment, if it exists already; None makes it when it is needed.
        thread: The thread that it was made in.
    """

    def __init__(self, settings: PlaySettings, env: Env | None = None, thread: MethodThread | None = None) -> None:
        self.settings = settings
        self.statistics = PlayStatistics()
        """The statistics so far."""
        self.policy_version: int | None = None
        self.users = 0
        """The number of calls of `play_one` that use it."""
        self.ticked_at = time.monotonic()
        """The time at which its event loop last ran (`time.monotonic`)."""
        self._seats = [] if env is None else [_Seat(env, thread)]
        self._made = weakref.WeakSet([] if env is None else [env])
        self._is_first = env is None
        self._has_made = asyncio.Event()
        if env is not None:
            self._has_made.set()
        self._stuck: list[Callable[[], bool]] = []
        self._logged: set[tuple[Any, ...]] = set()
        self._turns = asyncio.Semaphore(_TURNS)
        self._places = asyncio.Semaphore(settings.max_threads)
        self._computing: set[MethodCall] = set()
        self._may_sample, self._no_call = asyncio.Event(), asyncio.Event()
        self._may_sample.set()
        self._no_call.set()
        self._in_flight = 0
        policy: Any = settings.policy
        self._policies: list[Any] = list(policy.values()) if isinstance(policy, Mapping) else [policy]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        self._retries_before = self._request_retries()
        self._starter = ThreadPoolExecutor(1, "envsdk-starter")  # starting a thread waits until it runs
        self._housekeeping = asyncio.create_task(self._keep_house())

    async def play(self, job: EpisodeJob, policy: PolicyLike | None = None) -> EpisodeResult:
        """Play an episode. Its failures are recorded; after an infrastructure error, it is restarted.

        It is not restarted if the engine of the policy's server has died (`EngineDead`).

        Args:
            job: The episode.
            policy: Its policy; None for the policy of the settings.

        Raises:
            ConfigError: If the policy and the environment do not fit together, which affects every job.
            UnknownName, PluginError, MissingPackage: If this process lacks code that the environment needs.
            WorkerLost: If too many methods hang.
        """
        attempt, spans = 0, list[EpisodeSpan]()
        while True:
            detail = self.settings.spans
            span = None if detail is None else EpisodeSpan("episode", job.id, detail == "content")
            with inside(span):
                result = await self._attempt(job, self.settings.policy if policy is None else policy)
            trajectory, error = result.trajectory, result.error
            if span is not None:
                names = ("env", "seed", "group_id", "status", "stop_reason", "error_kind", "scored_reward")
                span.facts |= {name: getattr(trajectory, name) for name in names}
                span.error = None if trajectory.error is None else trajectory.error.partition(":")[0]
                spans.append(span)
                result = replace(result, spans=tuple(spans))
            is_unreachable = isinstance(error, ServerUnreachable) and not self.statistics.steps
            is_final = attempt == self.settings.max_retries or isinstance(error, EngineDead) or is_unreachable
            if trajectory.error_kind != "infrastructure" or is_final:
                return result
            self.statistics.retries[(trajectory.error or "").partition(":")[0]] += 1
            await asyncio.sleep(min(30.0, self.settings.retry_wait_s * 2**attempt))
            attempt += 1

    # Weights.

    async def pause(self, *, abort: bool = True) -> None:
        """Keep calls of the policy from beginning, and wait until none is running.

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
            policy_version: The version of the weights for actions whose policy does not report it; None leaves it.
        """
        if policy_version is not None:
            self.policy_version = policy_version
            for use_weights in self._methods_of_policies("use_weights"):
                use_weights(policy_version)
        self._may_sample.set()

    def _methods_of_policies(self, name: str) -> list[Callable[..., Any]]:
        """Return a method of the policy, or of the policy of each role, if it exists."""
        return [method for one in self._policies if (method := getattr(one, name, None)) is not None]

    def _request_retries(self) -> Counter[str]:
        """Return the number of requests that the policies have sent again, by cause."""
        usages = (getattr(one, "usage", None) for one in self._policies)
        return sum((usage.retries for usage in usages if isinstance(usage, Usage)), Counter[str]())

    async def aclose(self) -> None:
        """End the running episodes, and close the environments."""
        closing, self._seats = [asyncio.create_task(self._close(seat)) for seat in self._seats], []
        try:
            await until_ended(closing)
        finally:
            self.statistics.request_retries = self._request_retries() - self._retries_before
            self._starter.shutdown(wait=False)
            self._housekeeping.cancel()
            await asyncio.gather(self._housekeeping, return_exceptions=True)

    # One attempt.

    async def _attempt(self, job: EpisodeJob, policy: PolicyLike) -> EpisodeResult:
        attempt: _Attempt | None = None
        try:
            attempt = _Attempt(self, await self._take_seat(job.fork), job, policy)
            seat = attempt.seat
            try:
                seconds = self.settings.episode_timeout_s
                result = EpisodeResult(await self.within("the episode", attempt.run(), seconds, None, seat))
            finally:  # keep the environment for the next episode, unless one of its methods has not returned
                for thread in seat.others.values():
                    thread.stop()
                if seat.is_stuck():
                    self.statistics.abandoned += 1
                    self._stuck.append(seat.is_stuck)
                    if seat.thread is not None:
                        seat.thread.stop()
                elif job.fork is not None:
                    await self._close(seat)
                else:
                    seat.others.clear()
                    self._seats.append(seat)
        except Exception as error:  # users' code may raise any exception
            kind = self._kind_of(error, attempt)
            if kind is None:
                raise
            frames = traceback.extract_tb(error.__traceback__)
            place = (type(error), *((frames[-1].filename, frames[-1].lineno) if frames else ()))
            # The traceback of the first failure of its kind; without a connection, no code has failed.
            with_traceback = place not in self._logged and not isinstance(error, ServerUnreachable)
            self._logged.add(place)
            text = describe_error(error, with_notes=False)
            _log.warning("%s failed (%s): %.300s", job.id, kind, text, exc_info=error if with_traceback else None)
            env = None if attempt is None else attempt.seat.env
            episode = None if env is None else driver_of(env).episode
            if env is None or episode is None or episode.id != job.id or episode.is_over:
                trajectory = failed_before_it_began(job, error, kind)
            else:
                trajectory = env.fail(error)
                trajectory.error_kind = kind
            result = EpisodeResult(trajectory, "".join(traceback.format_exception(error)), error)
        if attempt is not None and not attempt.seat.is_stuck():
            driver_of(attempt.seat.env).forget()  # its environment may wait long for the next episode
        return result

    def _kind_of(self, error: Exception, attempt: "_Attempt | None") -> ErrorKind | None:
        """Return the kind of an error; None if it affects every episode."""
        if attempt is None and isinstance(error, (UnknownName, PluginError, MissingPackage)):
            return None
        if isinstance(error, (TokenizerMismatch, ServerMismatch, _SharedEnvironment)):
            return None
        if isinstance(error, WorkerLost):
            return None if len(self._stuck) > _MAX_ABANDONED else "infrastructure"
        if isinstance(error, (ContainerLost, RemoteEnvError)):
            return "infrastructure"
        if attempt is not None and error is attempt.policy_error:
            return "infrastructure" if isinstance(error, self.settings.infrastructure_errors) else "policy"
        return "policy" if isinstance(error, (ActionError, PolicyError)) else "environment"

    # Environments.

    async def _take_seat(self, fork: Callable[[], Env] | None) -> _Seat:
        """Return the environment of an episode: the fork that the function makes; else a free one, or a new one."""
        if self._seats and fork is None:
            return self._seats.pop()
        self._stuck = [is_stuck for is_stuck in self._stuck if is_stuck()]
        if len(self._stuck) > _MAX_ABANDONED:
            raise WorkerLost(
                f"{len(self._stuck)} methods of environments have not returned, and each holds a thread. Let them end "
                "(set timeouts in their code), or run with executor='processes', where envsdk ends the process"
            )
        is_first, self._is_first = self._is_first, False
        if not is_first:
            await self._has_made.wait()  # the others use the caches that the first one filled
        thread = await asyncio.get_running_loop().run_in_executor(self._starter, MethodThread)
        made, is_dropped = list[Env](), threading.Event()

        def make_env() -> Env:
            made.append(env := (fork or self.settings.make_env)())
            if is_dropped.is_set() and made:  # the run has ended in the meantime
                made.pop().close()
            return env

        try:
            env = await self.call(None, thread, "making the environment", make_env)
        except BaseException:
            is_dropped.set()
            if made:
                await self._close(_Seat(made.pop(), thread))
            thread.stop()
            if thread.is_busy:
                self.statistics.abandoned += 1
                self._stuck.append(lambda: thread.is_busy)
            raise
        finally:
            self._has_made.set()
        if env in self._made:
            thread.stop()
            raise _SharedEnvironment(
                "the function that makes environments returned the same environment object twice; expected a new one "
                "from each call, because each episode that runs at the same time needs its own"
            )
        self._made.add(env)
        return _Seat(env, thread)

    async def _close(self, seat: _Seat) -> None:
        try:
            await self.call(seat, seat.thread_of(seat.env), "close()", seat.env.close)
        except Exception as error:
            _log.warning("%r could not be closed", seat.env, exc_info=error)
        finally:  # also if closing takes too long, and is cancelled
            if seat.thread is not None:
                seat.thread.stop()

    # Calls.

    async def call(
        self, seat: _Seat | None, thread: MethodThread | None, what: str, function: Callable[[], Any]
    ) -> Any:
        """Call an author's code, in a thread or, for None, here; `what` describes the call in the error of a deadline.

        Raises:
            DeadlineExceeded: If it took longer than `method_timeout_s`.
        """
        seconds = self.settings.method_timeout_s
        if thread is None:
            returned = function()
            if isinstance(returned, Turn) or not inspect.isawaitable(returned):  # usually a turn
                return returned
            return await self.within(what, returned, seconds, "method", seat)
        call = MethodCall(function)
        await self._places.acquire()
        self._computing.add(call)
        try:
            return await self.within(what, thread.result(call), seconds, "method", seat, call)
        finally:
            self._free_place(call)

    def _free_place(self, call: MethodCall) -> None:
        if call in self._computing:
            self._computing.discard(call)
            self._places.release()

    async def within(
        self,
        what: str,
        awaitable: Awaitable[T],
        seconds: float | None,
        cause: str | None,
        seat: _Seat | None = None,
        call: MethodCall | None = None,
    ) -> T:
        """Await something with a deadline. If it does not end when it is cancelled, it is abandoned.

        Args:
            what: The name of the call in the error.
            awaitable: The awaitable.
            seconds: The maximum time, in seconds.
            cause: The key of `PlayStatistics.waiting_s` that the time is added to; None for none.
            seat: The seat that is lost if it does not end.
            call: A call in a thread, whose time starts when the thread starts it: the methods of parallel sub-agents
                may share one.

        Raises:
            DeadlineExceeded: If it took longer.
            EpisodeError: If something that it waited for was cancelled, but not the caller.
        """
        since, is_late = time.monotonic(), False
        task = asyncio.ensure_future(awaitable)
        try:
            left = seconds
            while not task.done() and not is_late:
                await asyncio.wait({task}, timeout=left)
                began = since if call is None else call.began_at
                if seconds is not None:
                    left = seconds if began is None else began + seconds - time.monotonic()
                    is_late = left <= 0 and not task.done()
        finally:
            if not task.done():
                task.cancel()
                await until_ended([task], _GRACE_S)
            if not task.done() and seat is not None:
                seat.is_lost = True
            task.add_done_callback(take_error)  # if the caller is cancelled, or it ends later
            if cause is not None:
                self.statistics.waited(cause, time.monotonic() - since)
        if is_late and (not task.done() or task.cancelled() or task.exception() is not None):
            raise _too_late(what, seconds, cause)
        if task.cancelled() and cause != "policy":
            raise EpisodeError(f"something that {what} waited for was cancelled")
        return task.result()

    async def call_policy(self, call: Callable[[], Any]) -> Any:
        """Call the policy once it is not paused, and take a turn in the event loop."""
        seconds = self.settings.policy_timeout_s
        while True:
            while not self._may_sample.is_set():
                await self.within("a pause", self._may_sample.wait(), None, "pause")
            version = self.policy_version
            self._in_flight += 1
            self._no_call.clear()
            try:
                action = call()
                if inspect.isawaitable(action):
                    action = await self.within("the policy", action, seconds, "policy")
            finally:
                self._in_flight -= 1
                if not self._in_flight:
                    self._no_call.set()
            if not isinstance(action, Action):
                return action
            if action.finish_reason != "abort" or len(action.tokens) or self._may_sample.is_set():
                break
            # It was aborted before its first token: call again after the pause.
        if action.policy_version is None and version is not None:
            action = replace(action, policy_version=version)
        if hasattr(action.tokens, "__len__"):  # the environment refuses other actions
            self.statistics.steps += action.finish_reason != "abort"  # an aborted reply continues in the same step
            self.statistics.sampled_tokens += len(action.tokens)
        return action

    async def take_turn(self) -> None:
        """Wait until the event loop has time for a step."""
        since = time.monotonic()
        async with self._turns:
            await asyncio.sleep(0)
        self.statistics.waited("turn", time.monotonic() - since)

    async def _keep_house(self) -> None:
        """Measure the lag of the event loop, and free the thread places of calls that wait for something."""
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            self.statistics.lag.add(max(0.0, now - self.ticked_at - _TICK_S))
            self.ticked_at = now
            self.statistics.request_retries = self._request_retries() - self._retries_before
            for call in [call for call in self._computing if not call.computes()]:
                self._free_place(call)


@dataclass(eq=False, repr=False)
class _Attempt:
    """One attempt to play a job."""

    _player: Player
    seat: _Seat
    _job: EpisodeJob
    _policy: PolicyLike
    policy_error: Exception | None = None
    """The exception that the policy raised."""

    async def run(self) -> Trajectory:
        """Play the episode and return its trajectory.

        Raises:
            Exception: Any exception of the environment or the policy.
        """
        env, job, player = self.seat.env, self._job, self._player
        driver = driver_of(env)
        policy = find_policy(self._policy, env, job.seed)
        driver.why_not_sampled = partial(why_not_sampled, policy) if driver.program is not None else None
        await player.take_turn()
        if job.fork is None:
            await self._call(env, "reading the task", lambda: driver.begin(job.seed, job.options))
        try:
            if job.fork is None:
                first = await driver.drive_async(env.episode.begin(), None, self._call_method)
                assert isinstance(first, StepResult)
            else:
                first = env.episode.pending()
            runner = EpisodeRunner(env, policy, self._call_method, partial(self._call_policy, policy))
            return await runner.run(first.observation, first.info)
        finally:
            driver.why_not_sampled = None
            error = sys.exception()
            if isinstance(error, asyncio.CancelledError) and player.settings.episode_timeout_s is not None:
                error = _too_late("the episode", player.settings.episode_timeout_s, None)
            if self.seat.is_lost:
                driver.end_tasks(error)
            elif driver.tasks_are_left() and not self.seat.is_stuck():  # they end in the thread that runs them
                await self._call(env, "ending its tasks", lambda: driver.aend_tasks(error))
            else:
                await driver.aend_tasks(error)

    async def _call(self, env: object, what: str, function: Callable[[], Any]) -> Any:
        """Call an author's code in the thread of that environment's methods; see `Player.call`."""
        return await self._player.call(self.seat, self.seat.thread_of(env), what, function)

    async def _call_method(self, driver: Driver, request: CallMethod) -> Any:
        """Call a method of an environment of the episode."""
        env, method = driver.env, request.method
        what = f"{method}() of {env.name}" if isinstance(method, str) else f"the summarizer of {env.name}"
        if driver.program is not None:
            what = f"waiting for a request of the program of {env.name}"

        returned: Any = None

        def call() -> Any:
            nonlocal returned
            with _contained(what):
                returned = driver.call_method(request)
                if isinstance(returned, Turn) or not inspect.isawaitable(returned):
                    return returned
                if inspect.iscoroutine(returned) and not driver.needs_loop():
                    return driver.now(returned)
            return awaited(returned)

        async def awaited(returned: Awaitable[Any]) -> Any:
            with _contained(what):
                return await returned

        try:
            with recorded("method", method if isinstance(method, str) else "summarizer", env=env.name):
                return await self._call(env, what, call)
        finally:  # a task that was cancelled before it ran has not touched the coroutine
            if inspect.iscoroutine(returned) and inspect.getcoroutinestate(returned) == inspect.CORO_CREATED:
                returned.close()

    async def _call_policy(
        self, policy: Callable[..., Any], prompt: "NDArray[np.int32]", request: Mapping[str, Any]
    ) -> Any:
        """Call the policy when the player allows it; a policy that asks the environment is called as its method."""
        own, context = of_role(policy, request["role"]), request["context"]
        call = partial(policy, prompt, **request)
        if isinstance(own, ReplyPolicy):
            env = cast("Env", self.seat.env.episode.pending_reply(context).env)
            of_env = partial(self._call, env, f"the reply of {env.name}", call)
        else:
            of_env = call
        provider = str(getattr(own, "name", None) or getattr(own, "__name__", type(own).__name__))
        model = getattr(own, "model", None)
        facts = {"provider": provider, "context": context, "prompt_tokens": len(prompt)}
        asked = {name: request[name] for name in ("max_tokens", "stop", "sampling")}
        with recorded("policy", model if isinstance(model, str) else provider, **facts, **asked) as span:
            shown, (tail, begun) = None, ((), ())
            if span is not None and span.has_content:
                shown = self.seat.env.episode.pending_reply(context).context
                (tail, begun), span.facts["input"] = shown.reply_tokens(), list(shown.view)
            try:
                action = await self._player.call_policy(of_env)
            except Exception as error:
                self.policy_error = error
                raise
            if span is not None and isinstance(action, Action) and hasattr(action.tokens, "__len__"):
                span.facts |= {
                    "sampled_tokens": len(action.tokens),
                    "finish_reason": action.finish_reason,
                    "temperature": action.temperature,
                    "policy_version": action.policy_version,
                    "cached_tokens": action.extra.get("cached_tokens"),
                }
                if shown is not None:
                    with contextlib.suppress(Exception):  # the episode refuses tokens that cannot be read
                        tokens = np.asarray([*begun, *action.tokens])
                        span.facts["output"] = shown.renderer.parse(tokens, prompt_tail=tail, tools=shown.tools)
        await self._player.take_turn()
        return action


@contextlib.contextmanager
def _contained(what: str) -> Generator[None]:
    """Turn `sys.exit()`, which would end the program with all its episodes, into an error of the episode."""
    try:
        yield
    except SystemExit as error:
        raise EpisodeError(f"{what} called sys.exit({error.code!r})") from error


def _too_late(what: str, seconds: float | None, cause: str | None) -> DeadlineExceeded:
    advice = "" if cause is None else f"; raise {cause}_timeout_s if it may"
    return DeadlineExceeded(f"{what} took longer than {seconds or 0:g} s{advice}")


def failed_before_it_began(job: EpisodeJob, error: Exception, kind: ErrorKind) -> Trajectory:
    """Return the trajectory of an episode that failed before its first step."""
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


# Episodes that share a player, for trainers that request one episode after another from an event loop.


_open: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[Player]] = weakref.WeakKeyDictionary()


async def play_one(settings: PlaySettings, job: EpisodeJob, policy: PolicyLike) -> Trajectory:
    """Play an episode. Episodes that run at the same time with equal settings share a player and its environments.

    Args:
        settings: The settings.
        job: The episode.
        policy: Its policy.

    Raises:
        Exception: The failure of the episode: after the retries, if it was an infrastructure error.
    """
    players = _open.setdefault(asyncio.get_running_loop(), [])
    player = next((one for one in players if one.settings == settings), None)
    if player is None:
        player = Player(settings)
        players.append(player)
    player.users += 1
    try:
        result = await player.play(job, policy)
    finally:
        player.users -= 1
        if not player.users:
            players.remove(player)
            await player.aclose()
    if result.error is not None:
        raise result.error
    return result.trajectory
