"""The driver of an environment's episodes: it begins them, and calls the authors' methods that they request.

The state machine of an episode does no I/O. Everything that waits, runs in a thread, or is cancelled is here.
"""

import copy
import inspect
import re
import time
import types
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import gymnasium
from pydantic import ValidationError

from .._describing import likely, what_is_invalid
from .._registry import find_renderer, refuse_history_options
from .._visible import brief, type_of
from ..contexts._history import HistoryPolicy
from ..episodes._agent import Agent, EpisodeHeader, StepResult
from ..episodes._episode import CallMethod, Episode, EpisodeGenerator, Join, Request, RunChildren
from ..episodes._handoff import Handoff, HandoffResult, is_handoff
from ..episodes._turn import Turn
from ..errors import ConfigError, EpisodeError, HandoffError
from ..limits import Limits, plain_integer
from ..messages import check_text
from ..rendering.renderer import Renderer
from ..trajectories._fragments import fragment
from ._embedded_vision import EMBEDDED_VISION
from ._loop_tasks import Tasks, in_event_loop, not_cancelled
from ._mistakes import explained, warn_at, warn_of, wrong_turn
from .tasks import check_task, find_task, is_sequence, pick_task

T = TypeVar("T")
ChildRunner = Callable[[list[Agent]], Awaitable[list[HandoffResult]]]
"""Runs sub-agents side by side."""
MethodCaller = Callable[["Driver", CallMethod], Awaitable[Any]]
"""Calls a method of an environment (`Driver.call_method`), for example in a thread, and returns its result."""
_WHY_NO_FORK = "its program runs; play the episode again with the same seed"
"""The reason why an episode that a program plays cannot be forked."""
_LONG_S = 0.5
"""A method that keeps an event loop this long from other tasks is warned of."""
_RESET_OPTIONS = ("episode_id", "group_id", "task")


class Driver:
    """The options of an environment, and the episode that it began or that it joined as a sub-agent.

    Args:
        env: The environment.
        config: Its own options.
        renderer: See `Env`, also for the other arguments.
    """

    def __init__(
        self,
        env: Any,
        config: Mapping[str, Any],
        renderer: str | Mapping[str, Any] | Renderer | None,
        tokenizer: Any,
        history: str | Mapping[str, Any] | HistoryPolicy,
        limits: Limits | Mapping[str, Any] | None,
    ) -> None:
        from ..contexts._history import get_history  # the built-in policies

        self.env = env
        self.episode: Episode | None = None
        self.agent: Agent | None = None
        """The environment's agent in that episode."""
        self.tasks = Tasks()
        """The asyncio tasks that its methods started in this episode."""
        self.given_name: str | None = None
        self._is_closed = False
        self.waits: bool | None = None
        """True if a step may have to wait; None if that is to be determined again, since methods or tools changed."""
        self._episodes = 0
        refuse_history_options(config)
        if "context_tools" in config and "context_tools" not in env.Config.model_fields:
            raise ConfigError(
                f"{type(env).__name__} does not take context_tools: they are for a ToolEnv, and for a ProgramEnv whose "
                "Config derives from ProgramEnv.Config"
            )
        try:
            self.config: Any = env.Config.model_validate(config)
        except ValidationError as error:
            own, of_all = [*env.Config.model_fields], ["renderer", "tokenizer", "history", "limits", "tasks"]
            near = [limit for name in config if name not in own for limit in likely(name, Limits.model_fields)]
            meant = f"Did you mean limits={{{near[0]!r}: ...}}? " if near else ""
            raise ConfigError(
                f"{type(env).__name__}: {what_is_invalid(error, own + of_all)}. {meant}Its own options: "
                f"{', '.join(own) or 'none'}. Options of every environment: {', '.join(of_all)}"
            ) from error
        self.inherits_renderer = renderer is None and tokenizer is None
        """True if it has its parent's renderer as a sub-agent."""
        if renderer is None:
            is_embedded = tokenizer is None or getattr(tokenizer, "name", tokenizer) == "embedded"
            renderer = "qwen3" if not env.shows_images else EMBEDDED_VISION if is_embedded else "auto"
        self.renderer = self._own_renderer = find_renderer(renderer, tokenizer)
        if env.shows_images and (advice := self.renderer.images_advice):
            name = self.renderer.name
            raise ConfigError(f"{type(env).__name__} shows images, which the renderer {name!r} cannot write: {advice}")
        self.history = get_history(history)
        for what, specified in (
            ("its options", lambda: self.config.model_dump(mode="json")),
            ("the options of its renderer", self.renderer.specification),
            ("the options of its history policy", self.history.specification),
        ):
            try:
                fragment(specified())
            except ValueError as error:  # pydantic's and ours
                raise ConfigError(f"{type(env).__name__}: {what} cannot be recorded: {error}") from error
        self.limits = Limits.of(limits, env.default_limits)
        self.why_not_sampled: Callable[[str, str, Any], str | None] | None = None
        """Returns why the policy of a role does not honor a sampling parameter with a value, or None if it does. A
        rollout sets it for an episode that a program plays; other environments may be copied, and a policy may not."""
        self.program: Any = None if env._envsdk_program is None else env._envsdk_program(self)
        """The `ProgramDriver` of an environment that a program plays; None if its methods play it."""

    @property
    def running(self) -> Agent:
        """The environment's agent in the episode that is running, or in the last one.

        Raises:
            EpisodeError: Before the first episode.
        """
        if self.agent is None:
            raise EpisodeError("no episode has begun: call reset() first")
        return self.agent

    @property
    def running_episode(self) -> Episode:
        """The episode that is running, or the last one.

        Raises:
            EpisodeError: Before the first episode.
        """
        if self.episode is None:
            raise EpisodeError("no episode has begun: call reset() first")
        return self.episode

    @property
    def is_running(self) -> bool:
        """True if the environment's agent has not ended."""
        episode, agent = self.episode, self.agent
        return episode is not None and agent is not None and not episode.is_over and agent.stop_reason is None

    @property
    def why_no_fork(self) -> str | None:
        """The reason why a running episode cannot be copied, or None."""
        return self.env._envsdk_why_no_fork if self.program is None else _WHY_NO_FORK

    # Episodes.

    def begin(self, seed: int | None, options: dict[str, Any] | None) -> None:
        """Begin a new episode. If an argument is refused, the running episode is unchanged."""
        seed, given = check_seed(seed), _check_options(options)
        chosen = [check_task(find_task(self.env.tasks, given["task"]), self.env.Task)] if "task" in given else None
        if chosen is None and self.is_running:
            bits = self.env.np_random.bit_generator
            state = bits.state
            try:
                chosen = self._drawn(seed)
            except BaseException:
                bits.state = state  # which is the running episode's
                raise
        self._episodes += 1
        self.end_tasks()
        for error in self.close_children():
            import logging

            logging.getLogger(__name__).warning("a sub-agent of %r could not be closed: %r", self.env, error)
        if self.episode is not None:
            self.episode.abandoned = True
        self.renderer = self._own_renderer
        header = EpisodeHeader(
            id=given.get("episode_id") or f"{self.env.name}/{f'#{self._episodes}' if seed is None else seed}",
            seed=seed,
            config=self.config.model_dump(mode="json"),
            group_id=given.get("group_id"),
            records_roles=self.env.records_roles,
        )
        episode = Episode(header, self.env, self.env._envsdk_summarizer)
        self.episode, self.agent, self._is_closed = episode, episode.root, False
        self._prepare(seed, chosen)

    def join(self, episode: Episode, agent: Agent, seed: int | None, task: Any) -> None:
        """Take part in an episode as a sub-agent.

        Raises:
            HandoffError: If the environment is in use already.
            TaskError: If the environment does not have the handoff's task.
        """
        if self.is_running and self.agent is not None and self.episode is not None:
            raise HandoffError(
                f"{self.env!r} is in use already, as {self.agent.name!r} of {self.episode.id!r}: make another object "
                "for each handoff"
            )
        self.episode, self.agent, self._is_closed = episode, agent, False
        self.renderer = self._own_renderer
        if self.inherits_renderer and agent.parent is not None:
            above = agent.parent.current
            self.renderer = agent.parent.env.renderer if above is None else above.renderer
        chosen = None
        if task is not None:
            chosen = [check_task(task if self.env.tasks is None else find_task(self.env.tasks, task), self.env.Task)]
        self._prepare(seed, chosen)

    def _prepare(self, seed: int | None, chosen: list[Any] | None) -> None:
        """Set the random state and the task: the chosen one, or else the one that the seed picks."""
        tasks = self._drawn(seed) if chosen is None else chosen
        gymnasium.Env.reset(self.env, seed=seed)
        self.env.task = None
        for task in tasks:
            self.running.task = task
            self.env.task = copy.deepcopy(task)  # what the author does to it changes neither data nor record
        self.env._envsdk_prepare()
        self.waits = None

    def _drawn(self, seed: int | None) -> list[Any]:
        """Return a list of the task that the seed (or the random state without a seed) picks; empty without rows."""
        rows = self.env.tasks
        return [] if rows is None else [check_task(rows[pick_task(rows, seed, self.env.np_random)], self.env.Task)]

    def forget(self) -> None:
        """Release the last episode, which is large. The environment is kept for the next one."""
        self.episode = self.agent = None
        if self.program is not None:
            self.program.forget()

    # Driving.

    def drive(self, episode: EpisodeGenerator) -> StepResult:
        """Answer the requests of an episode, one after the other, without an event loop around.

        Raises:
            EpisodeError: If there is a running loop, and a method of the environment or of a sub-agent is async.
        """
        is_in_loop = in_event_loop()
        if is_in_loop:
            self.refuse_event_loop()

        async def call_method(driver: Driver, request: CallMethod) -> Any:
            if is_in_loop and driver.needs_loop():
                episode.close()  # the caller is at fault, and not the sub-agent
                self.running_episode.interrupted = True
                driver.refuse_event_loop()
            return driver.now(driver.call_method(request))

        try:
            self.drive_async(episode, call_method=call_method).send(None)
        except StopIteration as stop:
            return stop.value
        raise AssertionError("a method that is called without an event loop has waited")

    async def drive_async(
        self,
        episode: EpisodeGenerator,
        run_children: ChildRunner | None = None,
        call_method: MethodCaller | None = None,
    ) -> StepResult | HandoffResult:
        """Do the same as `drive`, inside an event loop.

        Args:
            episode: The generator.
            run_children: Runs sub-agents side by side, if the episode requests that.
            call_method: Calls the authors' methods, such as with a deadline; None calls them here.
        """
        advance: Callable[[], Request] = partial(next, episode)
        while True:
            try:
                request = advance()
            except StopIteration as stop:
                return stop.value
            try:
                match request:
                    case CallMethod():
                        answer = await driver_of(request.agent.env)._answer(request, call_method)
                    case RunChildren():
                        assert run_children is not None
                        answer = await run_children(request.agents)
                    case Join(agent, seed):
                        assert agent.handoff is not None
                        answer = driver_of(agent.env).join(self.running_episode, agent, seed, agent.handoff.task)
            except BaseException as error:
                advance = partial(episode.throw, error)
            else:
                advance = partial(episode.send, answer)

    async def _answer(self, request: CallMethod, call_method: MethodCaller | None) -> Any:
        """Return the turn or the handoffs of an author's method, or the string of a summarizer.

        An exception gets a note about the method, and is logged if the parent agent receives it.
        """
        method, agent = request.method, self.running
        with self.tasks.collecting():
            try:
                if call_method is None:
                    returned = await not_cancelled(self.call_method(request))
                else:
                    returned = await call_method(self, request)
                if isinstance(method, str) and not isinstance(returned, Turn) and not is_handoff(returned):
                    raise wrong_turn(self.env, method, returned)
                if isinstance(method, str) and isinstance(returned, Turn):
                    warn_of(self.env, method, returned)
                if method == "start":
                    self.env._envsdk_started(returned)
                    self.waits = None
                return returned
            except Exception as failed:
                error = explained(failed, self.env, method) if isinstance(method, str) else failed
                name = method if isinstance(method, str) else f"the summarizer {getattr(method, '__name__', method)}"
                place = f"{self.env.name}, seed {self.running_episode.seed}, step {agent.steps}"
                error.add_note(f"Raised by {name}() of {place}.")
                if agent.parent is not None:  # the parent gets the error as a result, and may answer the model with it
                    import logging

                    logging.getLogger(__name__).warning("the sub-agent %r failed", agent.name, exc_info=error)
                raise error  # noqa: B904 (it has its cause)

    def call_method(self, request: CallMethod) -> Any:
        """Call an author's method; return its turn, or an awaitable of it."""
        if callable(request.method):
            return request.method(request.argument)
        method = getattr(self.env, request.method)
        call: Callable[[], Any] = method if request.method == "start" else partial(method, request.argument)
        if not in_event_loop():
            return call()
        if inspect.iscoroutinefunction(method):
            return self._watched(call, request.method)
        began = time.perf_counter()
        answer = call()
        self._warn_of_block(request.method, time.perf_counter() - began)
        return answer

    @types.coroutine
    def _watched(self, call: Callable[[], Any], method: str) -> Generator[Any, Any, Any]:
        """Run an async method, and warn if it does not return to the event loop for long.

        Its coroutine is made here, so that none is left if the task is canceled before it runs.
        """
        coroutine = call()
        advance: Callable[[], Any] = partial(coroutine.send, None)
        while True:
            began = time.perf_counter()
            try:
                waits_for = advance()
            except StopIteration as stop:
                return stop.value
            finally:
                self._warn_of_block(method, time.perf_counter() - began)
            try:
                sent = yield waits_for
            except BaseException as error:
                advance = partial(coroutine.throw, error)
            else:
                advance = partial(coroutine.send, sent)

    def _warn_of_block(self, method: str, seconds: float) -> None:
        """Warn if a method kept other tasks of its event loop waiting."""
        if seconds < _LONG_S:
            return
        import asyncio

        if len(asyncio.all_tasks()) > 1:
            cls = cast("type[Any]", type(self.env))
            what = f"{cls.__name__}.{method}() kept the event loop, and other tasks, for over {_LONG_S} s"
            advice = "await what it waits for, or call it in a thread: await asyncio.to_thread(...)"
            warn_at([getattr(cls, method)], f"{what}: {advice}")

    # Event loops.

    def needs_loop(self) -> bool:
        """Return whether a step may have to wait for something."""
        if self.waits is None:
            self.waits = bool(self.history.is_async or self.env._envsdk_waits())
        return self.waits

    def refuse_event_loop(self) -> None:
        """Raise an error inside an event loop, where a plain function cannot wait for an async method.

        Raises:
            EpisodeError: If there is a running loop and a method is async.
        """
        if in_event_loop() and self.needs_loop():
            raise EpisodeError("inside an event loop, call `await env.areset(...)` and `await env.astep(...)`")

    def now(self, value: T | Awaitable[T]) -> T:
        """Return a value; if it is awaitable, await it in an event loop of the SDK."""
        if isinstance(value, (Turn, Handoff)) or not inspect.isawaitable(value):
            return value  # pyright: ignore[reportReturnType]
        if not self.needs_loop() and inspect.iscoroutine(value):  # it waits for nothing
            try:
                value.send(None)
            except StopIteration as result:
                return result.value
            value.close()
            raise EpisodeError("a plain function returned an awaitable; declare it `async def`")
        from ._event_loops import run  # which imports asyncio, longer than all of envsdk

        return run(not_cancelled(value))

    # Ends.

    def end_tasks(self, error: BaseException | None = None) -> None:
        """Cancel the asyncio tasks that the methods of the episode's environments left running, and end its program.

        Inside an event loop, they end when the caller lets the loop run.

        Args:
            error: What ended the episode, if it failed.
        """
        if self.program is not None:
            self.program.end(error)
        for driver in self._drivers():
            if in_event_loop():
                driver.tasks.cancel()
            elif driver.tasks.are_left():
                from ._event_loops import run

                run(driver.tasks.end())

    async def aend_tasks(self, error: BaseException | None = None) -> None:
        """Do the same as `end_tasks`, and wait until the tasks have ended."""
        if self.program is not None:
            import asyncio  # which takes longer to import than all of envsdk

            await asyncio.to_thread(self.program.end, error)
        for driver in self._drivers():
            await driver.tasks.end()

    def tasks_are_left(self) -> bool:
        """Return whether a task that a method started has not ended."""
        return any(driver.tasks.are_left() for driver in self._drivers())

    def _drivers(self) -> "list[Driver]":
        """Return the driver itself, and those of the sub-agents of the last episode, if its environment began it."""
        root = self.agent
        if root is None or root.parent is not None:
            return [self]
        return [self, *(driver_of(agent.env) for agent in root.agents() if agent.env is not self.env)]

    def close_children(self) -> list[Exception]:
        """Close the environments of all sub-agents of the last episode, each once; return the exceptions."""
        errors: list[Exception] = []
        for driver in self._drivers()[1:]:
            if driver.episode is self.episode and not driver._is_closed:
                driver._is_closed = True
                try:
                    driver.env.close()
                except Exception as error:
                    errors.append(error)
        return errors


def driver_of(env: Any) -> Driver:
    """Return the driver of an environment."""
    return env._envsdk


def check_seed(seed: object) -> int | None:
    """Return a seed as an int, or None.

    Raises:
        ConfigError: If it is neither None nor an integer of at least 0 (NumPy's integers are, True is not).
    """
    plain = plain_integer(seed)
    if plain is not None and (type(plain) is not int or plain < 0):
        raise ConfigError(f"seed is {brief(seed)}; expected None or an integer of at least 0")
    return plain


def seeds_of(seeds: object) -> Sequence[Any]:
    """Return the seeds that an argument specifies: their number, which begins at 0; a sequence; or `FIRST:END`.

    Raises:
        ConfigError: If it is none of these.
    """
    text = re.fullmatch(r"(?:(\d+):)?(\d+)", seeds) if isinstance(seeds, str) else None
    first, end = (int(text[1] or 0), int(text[2])) if text is not None else (0, plain_integer(seeds))
    if type(end) is int and end > first:
        return range(first, end)
    if is_sequence(seeds):
        return cast("Sequence[Any]", seeds)
    raise ConfigError(
        f"seeds is {brief(seeds)}; expected their number, such as 16; or a sequence, such as list(seeds) or range(100, "
        "116), which is 100:116 on the command line and in files"
    )


def _check_options(options: object) -> dict[str, Any]:
    """Return the checked mapping of `reset(options=)`.

    Raises:
        ConfigError: If it is not a mapping, has an unknown name, or an id is not a string.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise ConfigError(f"options is {type_of(options)}; expected a mapping, such as {{'task': 3}}")
    given: dict[str, Any] = {**cast("Mapping[Any, Any]", options)}
    unknown = given.keys() - set(_RESET_OPTIONS)
    if unknown:
        raise ConfigError(f"reset() has no option {min(unknown, key=str)!r}; expected {', '.join(_RESET_OPTIONS)}")
    for name in ("episode_id", "group_id"):
        value = given.get(name)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"the option {name} is {brief(value)}; expected a string or None")
        try:
            check_text(value or "")
        except ValueError as error:
            raise ConfigError(f"the option {name} is {brief(value)}, which cannot be recorded: {error}") from error
    return given
