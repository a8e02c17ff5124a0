"""Drives an episode: calls the authors' methods that it requests, with or without an event loop.

The state machine does no I/O; whatever waits, runs in a thread, or is cancelled is here.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, ClassVar, TypeVar

from ..errors import EpisodeError
from ..rendering.renderer import TokenIds
from ._agent import Agent, StepResult
from ._episode import Call, Episode, EpisodeGenerator, Join, Request, RunChildren
from ._functions import is_async
from ._handoff import Handoff, HandoffResult, is_handoff
from ._loop_tasks import Tasks, in_event_loop, not_cancelled
from ._method_errors import explained, wrong_turn
from ._turn import Turn

T = TypeVar("T")
ChildRunner = Callable[[list[Agent]], Awaitable[list[HandoffResult]]]
"""Runs sub-agents side by side."""
MethodCaller = Callable[["Driver", Call], Awaitable[Any]]
"""Calls a method of an environment (`Driver.call_method`), such as in a thread, and returns what it returns."""


class Driver:
    """Calls an environment's methods, for the episode that it began or that it joined as a sub-agent.

    Args:
        env: The environment.
    """

    may_be_async: ClassVar[tuple[str, ...]] = ("start", "respond", "resume")
    """The methods that are awaited if they return an awaitable."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.episode: Episode | None = None
        self.agent: Agent | None = None
        """The environment's part of that episode."""
        self.tasks = Tasks()
        """The asyncio tasks that its methods started in this episode."""
        self._is_closed = False

    @property
    def running(self) -> Agent:
        """Its part of the episode that is running, or of the last one.

        Raises:
            EpisodeError: Before the first episode.
        """
        return _present(self.agent)

    @property
    def running_episode(self) -> Episode:
        """The episode that is running, or the last one.

        Raises:
            EpisodeError: Before the first episode.
        """
        return _present(self.episode)

    @property
    def is_running(self) -> bool:
        """Whether its part of an episode has not ended."""
        episode, agent = self.episode, self.agent
        return episode is not None and agent is not None and not episode.is_over and agent.stop_reason is None

    def attach(self, episode: Episode, agent: Agent) -> None:
        """Take part in an episode."""
        self.episode, self.agent, self._is_closed = episode, agent, False

    def forget(self) -> None:
        """Let go of the last episode, which is large; the environment is kept for the next one."""
        self.episode = self.agent = None

    def join(self, episode: Episode, agent: Agent, seed: int | None, task: Any) -> None:
        """Take part in an episode as a sub-agent."""
        raise NotImplementedError

    def started(self, turn: Turn | Handoff) -> None:
        """Learn what `start` returned."""

    def use_policy(self, why_not_sampled: Callable[[str, str, Any], str | None] | None) -> None:
        """Learn what the policy of the next episode honors.

        Args:
            why_not_sampled: Returns why the policy of a role does not honor a sampling parameter with a value, or None.
                None after the episode.
        """

    # Driving.

    def drive(self, episode: EpisodeGenerator) -> StepResult:
        """Answer the requests of an episode, one after the other, without an event loop around."""
        try:
            request = next(episode)
            is_in_loop = in_event_loop()
            while True:
                if is_in_loop:
                    self._refuse_event_loop(episode, request)
                try:
                    answer = self._handle(request)
                except Exception as error:
                    request = episode.throw(error)
                else:
                    request = episode.send(answer)
        except StopIteration as stop:
            return stop.value

    async def drive_async(
        self,
        episode: EpisodeGenerator,
        run_children: ChildRunner | None = None,
        call_method: MethodCaller | None = None,
    ) -> StepResult | HandoffResult:
        """As `drive`, inside an event loop.

        Args:
            episode: The generator.
            run_children: Runs sub-agents side by side, if the episode requests that.
            call_method: Calls the authors' methods, such as with a deadline; None calls them here.
        """
        try:
            request = next(episode)
            while True:
                if isinstance(request, RunChildren):
                    assert run_children is not None
                    request = episode.send(await _closing(episode, run_children(request.agents)))
                    continue
                try:
                    answer = await self._handle_async(request, call_method)
                except Exception as error:
                    request = episode.throw(error)
                else:
                    request = episode.send(answer)
        except StopIteration as stop:
            return stop.value

    def _refuse_event_loop(self, episode: EpisodeGenerator, request: Request) -> None:
        """Refuse a request that would have to wait; the caller is at fault then, and not the sub-agent."""
        if isinstance(request, Call):
            driver = driver_of(request.agent.env)
            try:
                driver.refuse_event_loop()
            except EpisodeError:
                episode.close()
                driver.running_episode.interrupted = True
                raise

    def _handle(self, request: Request) -> Any:
        if isinstance(request, Join):
            return self._let_join(request)
        assert isinstance(request, Call)
        driver = self if request.agent.env is self.env else driver_of(request.agent.env)
        with driver.tasks.collecting():
            try:
                return driver._checked(request, driver.now(driver.call_method(request)))
            except Exception as failed:
                raise driver._noted(request, failed)  # noqa: B904 (it has its cause)

    async def _handle_async(self, request: Request, call_method: MethodCaller | None) -> Any:
        if isinstance(request, Join):
            return self._let_join(request)
        assert isinstance(request, Call)
        driver = self if request.agent.env is self.env else driver_of(request.agent.env)
        with driver.tasks.collecting():
            try:
                if call_method is None:
                    returned = await not_cancelled(driver.call_method(request))
                else:
                    returned = await call_method(driver, request)
                return driver._checked(request, returned)
            except Exception as failed:
                raise driver._noted(request, failed)  # noqa: B904 (it has its cause)

    def _let_join(self, request: Join) -> None:
        agent = request.agent
        assert agent.handoff is not None
        driver_of(agent.env).join(self.running_episode, agent, request.seed, agent.handoff.task)

    def call_method(self, request: Call) -> Any:
        """Call an author's method; return its turn, or an awaitable of it."""
        if callable(request.method):
            return request.method(request.argument)
        method = getattr(self.env, request.method)
        return method() if request.method == "start" else method(request.argument)

    def ahead(self) -> AsyncIterator[Turn] | None:
        """Return an iterator of the turns that will follow, while a reply is sampled; None if none is known before it.

        A rollout may sample the replies to them meanwhile. It ends the iterator before it steps.
        """
        return None

    def listener(self) -> Callable[[TokenIds], bool | None] | None:
        """Return what is called with the tokens of the next reply while they are sampled; None if nothing is.

        If it returns True, no one wants the rest of the reply.
        """
        return None

    def until_unwanted(self, turn: Turn | None = None) -> Awaitable[None] | None:
        """Return what waits until no one wants the reply to a turn anymore, so that its sampling is canceled.

        Args:
            turn: A turn of `ahead`; None for the one that is due.

        Returns:
            None if the reply is wanted in any case.
        """
        return None

    async def is_wanted_again(self) -> bool:
        """Wait, and return whether the reply that is due is wanted again after its sampling was canceled."""
        return False

    def what_runs(self, method: str) -> str:
        """Return what a method of the environment is called in the error of a deadline."""
        return f"{method}() of {self.env.name}"

    def _checked(self, request: Call, returned: Any) -> Any:
        if not callable(request.method) and not isinstance(returned, Turn) and not is_handoff(returned):
            raise wrong_turn(self.env, request.method, returned)
        if request.method == "start":
            self.started(returned)
        return returned

    def _noted(self, request: Call, failed: Exception) -> Exception:
        """Note on an exception which method it came from; log it if the parent of a sub-agent takes it."""
        agent, method = self.running, request.method
        error = explained(failed, self.env, method) if isinstance(method, str) else failed
        name = method if isinstance(method, str) else f"the summarizer {getattr(method, '__name__', method)}"
        seed = self.running_episode.seed
        error.add_note(f"Raised by {name}() of {self.env.name}, seed {seed}, step {agent.steps}.")
        if agent.parent is not None:  # the parent gets the error as a result, and may answer the model with it
            import logging

            logging.getLogger(__name__).warning("the sub-agent %r failed", agent.name, exc_info=error)
        return error

    # Event loops.

    def needs_loop(self) -> bool:
        """Return whether a step may have to wait for something."""
        return self.env.history.is_async or self.waits()

    def waits(self) -> bool:
        """Return whether one of the author's methods is `async def`."""
        return any(is_async(getattr(self.env, name)) for name in self.may_be_async)

    def refuse_event_loop(self) -> None:
        """Refuse to run inside an event loop, where a plain function cannot wait for an async method.

        Raises:
            EpisodeError: If there is a running loop and a method is async.
        """
        if in_event_loop() and self.needs_loop():
            raise EpisodeError("inside an event loop, call `await env.areset(...)` and `await env.astep(...)`")

    def now(self, value: T | Awaitable[T]) -> T:
        """Return a value, awaited in an event loop of the SDK's if it is an awaitable."""
        if isinstance(value, (Turn, Handoff)) or not inspect.isawaitable(value):
            return value  # pyright: ignore[reportReturnType]
        if not self.needs_loop() and inspect.iscoroutine(value):
            return _run_at_once(value)
        return _run(not_cancelled(value))

    # Ends.

    def end_tasks(self, error: BaseException | None = None) -> None:
        """Cancel the asyncio tasks that the methods of the episode's environments started and left running.

        Inside an event loop, they end when the caller lets the loop run.

        Args:
            error: What ended the episode, if it failed.
        """
        del error
        for tasks in self._all_tasks():
            if in_event_loop():
                tasks.cancel()
            elif tasks.are_left():
                _run(tasks.end())

    async def aend_tasks(self, error: BaseException | None = None) -> None:
        """As `end_tasks`, and wait until they have ended."""
        del error
        for tasks in self._all_tasks():
            await tasks.end()

    def tasks_are_left(self) -> bool:
        """Return whether a task that a method started has not ended."""
        return any(tasks.are_left() for tasks in self._all_tasks())

    def _all_tasks(self) -> list[Tasks]:
        return [self.tasks, *(driver_of(agent.env).tasks for agent in self._children())]

    def _children(self) -> list[Agent]:
        """Return the sub-agents of the episode that its environment began."""
        if self.agent is None or self.agent.parent is not None:
            return []
        return [agent for agent in self.agent.agents() if agent.env is not self.env]

    def close_children(self) -> list[Exception]:
        """Close the environments of all sub-agents of the last episode, each once; return what that raised."""
        errors: list[Exception] = []
        for agent in self._children():
            driver = driver_of(agent.env)
            if driver.agent is agent and not driver._is_closed:
                driver._is_closed = True
                try:
                    driver.env.close()
                except Exception as error:
                    errors.append(error)
        return errors


async def _closing(episode: EpisodeGenerator, awaited: Awaitable[T]) -> T:
    """Return an awaited value; close the episode's generator if that raises."""
    try:
        return await awaited
    except BaseException:
        episode.close()
        raise


def driver_of(env: object) -> Driver:
    """Return the driver of an environment."""
    driver = getattr(env, "_envsdk")  # noqa: B009 (it is private)
    assert isinstance(driver, Driver)
    return driver


def _present(value: T | None) -> T:
    if value is None:
        raise EpisodeError("there is no episode yet: call reset() first")
    return value


def _run_at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that waits for nothing, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as result:
        return result.value
    coroutine.close()
    raise EpisodeError("a plain function returned an awaitable; declare it `async def`")


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    from ._event_loops import run  # which imports asyncio, longer than all of envsdk

    return run(coroutine)
