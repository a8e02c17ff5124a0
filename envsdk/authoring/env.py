"""The class that authors of environments write, which is a `gymnasium.Env`."""

import asyncio
import copy
import functools
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, TypeVar, cast

import gymnasium
import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from ..contexts.protocol import Action, Observation
from ..episodes.agent import Agent
from ..episodes.episode import Call, Children, Episode, Method, Play, Result
from ..episodes.event_loops import Tasks, in_event_loop, run
from ..episodes.handoff import Handoff, HandoffResult, is_handoff
from ..episodes.turn import Turn
from ..errors import ConfigError, EpisodeError, HandoffError, what_is_invalid
from ..history import HistoryPolicy, get_history
from ..limits import Limits, plain_integer
from ..messages import Message, ToolSchema, check_text
from ..registry import get_renderer
from ..rendering.renderer import Renderer
from ..rendering.tokenizers import Tokenizer, load_tokenizer
from ..trajectories.records import fragment
from ..trajectories.trajectory import Trajectory
from ..visible import visible
from .mistakes import check_methods, explained, missing_init, wrong_turn
from .reserved import check_attribute, check_class
from .spaces import ActionSpace, ObservationSpace
from .tasks import Rows, check_task, find, load_tasks, pick
from .tools import is_async, rebound

if TYPE_CHECKING:
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)
T = TypeVar("T")
Said: TypeAlias = Turn | Handoff | Sequence[Handoff]
"""What `start`, `respond` and `resume` may return."""


class EnvConfig(BaseModel):
    """The options of an environment. A subclass of `Env` declares its own in a subclass of this, named `Config`."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _NotMade:
    """Stands where `Env.__init__` sets an object's own attribute, and explains that it has not run."""

    def __get__(self, env: object, cls: type) -> Self:
        if env is None:
            return self
        raise missing_init(cls)


class Env(gymnasium.Env[Observation, Any]):
    """A multi-turn task for a language model. Write `start` and `respond`; either may be `async def`.

    It is a `gymnasium.Env`: `reset` and `step` speak tokens, the two methods speak messages.

    Args:
        renderer: The model family's renderer: its name, its name with options (`{"name": "qwen3", "enable_thinking":
            False}`), or an object. None is `qwen3`; as a sub-agent, its parent's.
        tokenizer: What `load_tokenizer` takes: that of the policy's model. None is the embedded vocabulary, which only
            the policies `random`, `reference` and `null` accept unless it is chosen (`"embedded"`). A renderer that is
            an object brings its own.
        history: The history policy: its name, its name with options (`{"name": "compact", "every": 10}`), or an object.
        limits: When an episode is cut off; by default the class's `default_limits`. A mapping changes the fields that
            it names, and leaves the others as the class has them; a `Limits` replaces them all.
        tasks: Task data: a list, the path of a JSONL file, a Hugging Face data set.
        render_mode: `"ansi"` or None.
        **config: The environment's own options, the fields of its `Config`.

    Raises:
        ConfigError: For options that are not valid.
        UnknownName: For a renderer or history policy that does not exist.
        TokenizerError: If the tokenizer does not load, or lacks what the renderer needs.
        TaskError: If the tasks cannot be read.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (gymnasium's own declaration)
    Config: ClassVar[type[EnvConfig]] = EnvConfig
    """The model of the environment's own options."""
    Task: ClassVar[type[BaseModel] | None] = None
    """The model of a task; None takes rows as they are."""
    default_limits: ClassVar[Limits] = Limits()
    reward_range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    """The least and the most that an episode earns, without discount. `check_env` expects the reference policy to earn
    the second, and the null policy the first: on average over the seeds, up to a tenth of the range."""
    n_tasks: ClassVar[int | None] = None
    """How many different tasks seeds give, where those are few (the whole space of them); None: another one each."""

    task: Any
    """The current task, if there are tasks."""
    _envsdk: "Driver" = cast("Driver", _NotMade())
    """Everything that the SDK keeps of an environment. No other attribute is its own, so authors may use any name that
    is not one of the methods and properties below."""

    def __init__(
        self,
        *,
        renderer: str | Mapping[str, Any] | Renderer | None = None,
        tokenizer: str | Path | Tokenizer | Any = None,
        history: str | Mapping[str, Any] | HistoryPolicy = "keep",
        limits: Limits | Mapping[str, Any] | None = None,
        tasks: Rows | str | Path | None = None,
        render_mode: str | None = None,
        **config: Any,
    ) -> None:
        if render_mode not in (None, "ansi"):
            raise ConfigError(f"render_mode is {render_mode!r}; expected 'ansi' or None")
        self.render_mode = render_mode
        self.task = None
        driver = DRIVERS[_class_of_sdk(type(self))]
        object.__setattr__(self, "_envsdk", driver(self, config, renderer, tokenizer, history, limits))
        self.tasks: Rows | None = None if tasks is None else load_tasks(tasks)
        self.observation_space = ObservationSpace(self.renderer.tokenizer.vocab_size)
        self.action_space = ActionSpace(self.renderer.tokenizer.vocab_size)
        if self.renderer.renders_whole:  # measured: what it cannot say is refused here, and not in the first episode
            self.renderer.check_tools(self.default_tools())

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        sdk = next(base for base in cls.__mro__ if base in DRIVERS)
        check_class(cls, Env, sdk)
        check_methods(cls, DRIVERS[sdk].config_base, runs_tools=DRIVERS[sdk].runs_tools)

    def __setattr__(self, name: str, value: Any) -> None:
        check_attribute(_class_of_sdk(type(self)), name, value)
        super().__setattr__(name, value)

    # What authors write.

    def start(self) -> Said | Awaitable[Said]:
        """Begin an episode, or hand over first; then `resume` returns the first turn, or ends the episode.

        Random choices come from `self.np_random` alone.
        """
        raise NotImplementedError(f"{type(self).__name__} has no start(): it returns the first Turn")

    def respond(self, reply: Message) -> Said | Awaitable[Said]:
        """Answer a reply, or hand over to a sub-agent, or to several.

        Any reply is legal; what could not be read of it is in `reply.errors`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no respond(): it returns the next Turn")

    def resume(self, result: Any) -> Said | Awaitable[Said]:
        """Go on after a handoff: with its `HandoffResult`, or the list of them if it was a list of handoffs."""
        raise NotImplementedError(f"{type(self).__name__} has no resume(): it returns the Turn after a Handoff")

    def renderer_of(self, role: str) -> Renderer:
        """The renderer of a context, by its role: where players are different models, return each one's own."""
        return self.renderer

    def reference_reply(self) -> Message | str:
        """What a player who solves the task would say now. It may look at the environment's own state."""
        raise NotImplementedError(f"{type(self).__name__} has no reference_reply()")

    def null_reply(self) -> Message | str:
        """What a player who does not try would say now."""
        return ""

    def default_tools(self) -> Sequence[ToolSchema]:
        """The tools of a first turn that says none."""
        return ()

    # What authors use.

    @property
    def context(self) -> str:
        """The name of the context that is spoken to, as this environment calls it: `main` if no turn said another."""
        agent = self._envsdk.running
        return agent.own_name(agent.context.name)

    def messages(self) -> list[Message]:
        """All that was said in the current context, in order; nothing, before the first turn."""
        context = self._envsdk.running.current
        return [] if context is None else list(context.messages)

    # What policies and trainers use.

    @property
    def config(self) -> Any:
        """The environment's own options, an object of its `Config`."""
        return self._envsdk.config

    @property
    def renderer(self) -> Renderer:
        """The renderer, with its `tokenizer`."""
        return self._envsdk.renderer

    @property
    def history(self) -> HistoryPolicy:
        """The history policy."""
        return self._envsdk.history

    @property
    def limits(self) -> Limits:
        """The limits of an episode."""
        return self._envsdk.limits

    @property
    def trajectory(self) -> Trajectory | None:
        """The episode, once it is over; None before."""
        agent = self._envsdk.agent
        return None if agent is None else agent.episode.trajectory

    @property
    def episode(self) -> Episode:
        """The current episode, which a sub-agent shares with who handed over to it."""
        return self._envsdk.running.episode

    @property
    def episode_id(self) -> str:
        """The current episode's id, which is its trajectory's."""
        return self._envsdk.running.episode.id

    @property
    def name(self) -> str:
        """The id that the environment was made by, or its class's name."""
        return self._envsdk.name

    def prompt(self) -> "NDArray[np.int32]":
        """The prompt of whose action is due, which may be a sub-agent: int32 of shape (n,), a copy; O(context).

        While a rollout runs sub-agents side by side, that is any of them.
        """
        return self._envsdk.running.episode.agent.context.prompt()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: An integer; the same seed gives the same task and the same bytes. None goes on with the random state.
            options: `task` (the index of a row, or the row itself) chooses the task; `episode_id` and `group_id` name
                the episode and what it shares with others of the same task.

        Returns:
            The first observation and its `info`.

        Raises:
            ConfigError: If the seed is not an integer, or an option is unknown; like the others that name an argument,
                it leaves a running episode as it was.
            TaskError: If there is no such task, or it does not fit the task model.
            EpisodeError: Inside an event loop, if a method of the environment has to be awaited.
        """
        self._envsdk.refuse_event_loop()
        self._envsdk.begin(seed, options)
        result = self._envsdk.drive(self._envsdk.running.episode.begin())
        return result.observation, result.info

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """As `reset`, inside an event loop."""
        self._envsdk.begin(seed, options)
        try:
            result = await self._envsdk.drive_async(self._envsdk.running.episode.begin())
        except BaseException:
            await self._envsdk.aend_tasks()
            raise
        assert isinstance(result, Result)
        return result.observation, result.info

    def step(self, action: Action | Any) -> Result:
        """Take an action: an `Action`, or its tokens alone as an integer array.

        Returns:
            Observation, reward, terminated, truncated, info: gymnasium's five.

        Raises:
            EpisodeError: Before `reset` and after the end.
            ActionError: If the action is not legal; the episode goes on as if it had not been given.
        """
        self._envsdk.refuse_event_loop()
        result = self._envsdk.drive(self._envsdk.running.episode.step(action))
        if result.terminated or result.truncated:
            self._envsdk.end_tasks()
        return result

    async def astep(self, action: Action | Any) -> Result:
        """As `step`, inside an event loop."""
        result = await self._envsdk.drive_async(self._envsdk.running.episode.step(action))
        assert isinstance(result, Result)
        if result.terminated or result.truncated:
            await self._envsdk.aend_tasks()
        return result

    def pending(self) -> tuple[Observation, dict[str, Any]]:
        """The observation that waits for its action and its `info`, as `reset` or `step` returned them.

        Raises:
            EpisodeError: If no action is due.
        """
        result = self._envsdk.running.episode.pending()
        return result.observation, result.info

    def fork(self) -> Self:
        """Copy the environment with its running episode: its state, its contexts, its random state.

        Both go on on their own. The fork's next observation is the one that waits here (`fork.pending()`), so a loop
        that keeps contexts goes on with a copy of them, and `rollout(fork, policy, reset=False)` plays to the end. Its
        trajectory has all steps, and names the episode that it was forked from in `origins`; what was sampled before
        is trained in that one's samples, and stands in the fork's with mask False.

        Everything that the environment holds is copied (`copy.deepcopy`), but for its renderer, history policy and
        tasks. Of what cannot be copied, such as a connection, let `__getstate__` leave it out, and `__setstate__` make
        another. A function that refers to the environment (a tool, a filter of a handoff, an attribute) is bound to the
        copy, but not one that another object holds.

        Returns:
            The copy, an environment of the same class. `close` it when it is done.

        Raises:
            EpisodeError: If no action is due, or only the rest of one; while sub-agents go on side by side; for a
                sub-agent; or if something cannot be copied.
        """
        agent = self._envsdk.running
        if agent.parent is not None:
            raise EpisodeError(f"{agent.name!r} is a sub-agent: fork the environment that was reset")
        agent.episode.check_fork()
        for one in agent.agents():
            _ = one.env.np_random  # gymnasium makes it when it is first asked for
        try:
            other = copy.deepcopy(self)
        except Exception as error:
            raise EpisodeError(
                f"{self!r} cannot be copied: {type(error).__name__}: {error}. Let __getstate__ leave out what cannot "
                "be copied, and __setstate__ make another"
            ) from error
        other.episode.become_fork(agent.episode)
        return other

    def fail(self, error: BaseException) -> Trajectory:
        """End the episode because something failed, and return what there is of it.

        Raises:
            EpisodeError: If there is no episode, or it has ended already.
        """
        trajectory = self._envsdk.running.episode.fail(error)
        self._envsdk.end_tasks()
        return trajectory

    def render(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The conversation as text that is safe to print, if `render_mode` is `"ansi"`."""
        if self.render_mode is None:
            return None
        return "\n".join(_line(message) for message in self.messages())

    def close(self) -> None:
        """Free what the environment holds, and its sub-agents. It may be called again."""
        self._envsdk.end_tasks()
        errors = self._envsdk.close_children()
        if errors:
            raise errors[0]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        contexts = {} if self._envsdk.agent is None else self._envsdk.agent.episode.contexts
        messages = [message for context in contexts.values() for message in context.messages]
        for shared in (self.config, self.tasks, self.spec, self._envsdk.history, *messages):
            memo[id(shared)] = shared  # they never change
        other = type(self).__new__(type(self))
        memo[id(self)] = other
        state = self.__getstate__()
        functions = {name: rebound(value, memo) for name, value in state.items() if isinstance(value, FunctionType)}
        other.__setstate__(copy.deepcopy({**state, **functions}, memo))
        return other

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"<{self.name} renderer={self.renderer.name!r} history={self.history.specification()}>"


class Driver:
    """The machinery of an environment: what it was made with, its part of the episode, and who calls its methods.

    Args:
        env: The environment.
        config: Its own options.
        renderer: See `Env`, and so for the others.
    """

    may_be_async: ClassVar[tuple[str, ...]] = ("start", "respond", "resume")
    """The methods of authors that are awaited if they return something to wait for."""
    config_base: ClassVar[type[EnvConfig]] = EnvConfig
    """What `Env.Config` is a subclass of."""
    runs_tools: ClassVar[bool] = False
    """Whether methods that are tools are run."""

    def __init__(
        self,
        env: Env,
        config: Mapping[str, Any],
        renderer: str | Mapping[str, Any] | Renderer | None,
        tokenizer: Any,
        history: str | Mapping[str, Any] | HistoryPolicy,
        limits: Limits | Mapping[str, Any] | None,
    ) -> None:
        self.env = env
        self.config: Any = self._read_config(config)
        self._inherits = renderer is None and tokenizer is None
        self.renderer = self._own_renderer = _find_renderer("qwen3" if renderer is None else renderer, tokenizer)
        self.history = get_history(history)
        self._check_recordable("the options of its renderer", self.renderer.specification)
        self._check_recordable("the options of its history policy", self.history.specification)
        self.limits = Limits.of(limits, env.default_limits)
        self.given_name: str | None = None
        self.agent: Agent | None = None
        self.tasks = Tasks()
        """What its methods started in this episode."""
        self._episodes = 0

    @property
    def name(self) -> str:
        """The id that the environment was made by, or its class's name."""
        spec = self.env.spec
        return self.given_name or (type(self.env).__name__ if spec is None else spec.id)

    @property
    def running(self) -> Agent:
        """Its part of the running episode, or of the last one."""
        if self.agent is None:
            raise EpisodeError("there is no episode yet: call reset() first")
        return self.agent

    def _waits(self) -> bool:
        """Whether a method of the author has to be waited for."""
        return any(is_async(getattr(self.env, name)) for name in self.may_be_async)

    def _needs_loop(self) -> bool:
        """Whether a step may have to wait for something."""
        return self.history.is_async or self._waits()

    def _read_config(self, config: Mapping[str, Any]) -> EnvConfig:
        try:
            read = self.env.Config(**config)
        except ValidationError as error:
            known = ", ".join(self.env.Config.model_fields) or "none"
            raise ConfigError(
                f"{type(self.env).__name__}: {what_is_invalid(error)}. Its own options: {known}"
            ) from error
        self._check_recordable("its options", lambda: read.model_dump(mode="json"))
        return read

    def _check_recordable(self, what: str, specified: Callable[[], Any]) -> None:
        try:
            fragment(specified())
        except ValueError as error:  # pydantic's and ours
            raise ConfigError(f"{type(self.env).__name__}: {what} cannot be recorded: {error}") from error

    def begin(self, seed: int | None, options: dict[str, Any] | None) -> None:
        """Begin another episode; what is refused leaves the running one as it is."""
        seed, given = check_seed(seed), _check_options(options)
        chosen = [self._chosen(given)] if "task" in given else None
        if chosen is None and self.agent is not None and self.agent.is_running:
            chosen = self._drawn_or_undone(seed)
        self._episodes += 1
        episode_id = given.get("episode_id") or f"{self.name}/{f'#{self._episodes}' if seed is None else seed}"
        self.end_tasks()
        for error in self.close_children():
            _log.warning("a sub-agent of %r could not be closed: %r", self.env, error)
        if self.agent is not None:
            self.agent.episode.abandoned = True
        episode = Episode(episode_id, self.env, seed)
        self.agent, self.renderer = episode.root, self._own_renderer
        episode.config = self.config.model_dump(mode="json")
        episode.group_id = given.get("group_id")
        self._prepare(seed, self._drawn(seed) if chosen is None else chosen)

    def _chosen(self, options: Mapping[str, Any]) -> Any:
        return check_task(find(self.env.tasks, options["task"]), self.env.Task)

    def join(self, agent: Agent, seed: int | None, task: Any) -> None:
        """Become a sub-agent of an episode.

        Raises:
            HandoffError: If it is in use already.
            TaskError: If it has no such task.
        """
        if self.agent is not None and self.agent.is_running:
            raise HandoffError(
                f"{self.env!r} is in use already, as {self.agent.name!r} of {self.agent.episode.id!r}: make another "
                "object for each handoff"
            )
        self.agent = agent
        inherits = self._inherits and agent.parent is not None
        self.renderer = self._own_renderer
        if inherits and agent.parent is not None:
            said = agent.parent.current
            self.renderer = agent.parent.env.renderer if said is None else said.renderer
        if task is None:
            chosen = self._drawn(seed)
        else:
            chosen = [check_task(task if self.env.tasks is None else find(self.env.tasks, task), self.env.Task)]
        self._prepare(seed, chosen)

    def _drawn(self, seed: int | None) -> list[Any]:
        """Return the task that the seed picks, or the random state without a seed; no task if there are no rows."""
        rows = self.env.tasks
        return [] if rows is None else [check_task(rows[pick(rows, seed, self.env.np_random)], self.env.Task)]

    def _drawn_or_undone(self, seed: int | None) -> list[Any]:
        """As `_drawn`; if the row is refused, the random state, which is the running episode's, is as it was."""
        bits = self.env.np_random.bit_generator
        state = bits.state
        try:
            return self._drawn(seed)
        except BaseException:
            bits.state = state
            raise

    def _prepare(self, seed: int | None, chosen: list[Any]) -> None:
        """Set the random state, and the task, if there is one."""
        gymnasium.Env.reset(self.env, seed=seed)
        self.env.task = None
        for task in chosen:
            self.running.task = task
            self.env.task = copy.deepcopy(task)  # what the author does to it changes neither data nor record

    def _started(self, turn: Turn) -> None:
        """The first turn was said."""

    def drive(self, play: Play) -> Result:
        """Ask the authors' methods what the episode asks for, one after the other."""
        try:
            call = next(play)
            while True:
                call = self._resolve(play, call)
        except StopIteration as stop:
            return stop.value

    def _resolve(self, play: Play, call: Call | Children) -> Call | Children:
        assert isinstance(call, Call)
        driver = driver_of(call.agent.env)
        try:
            driver.refuse_event_loop()
        except EpisodeError:
            play.close()  # it is the caller's fault, and no sub-agent's
            call.agent.episode.interrupted = True
            raise
        try:
            with driver.tasks.collecting():
                said = driver.now(driver._say(call))
            driver._heard(call, said)
        except Exception as error:
            return play.throw(driver._noted(error, call.method))
        return play.send(said)

    async def drive_async(
        self, play: Play, run: "Callable[[list[Agent]], Awaitable[list[HandoffResult]]] | None" = None
    ) -> Result | HandoffResult:
        """As `step` does, inside an event loop: ask the authors' methods; `run` runs sub-agents side by side."""
        try:
            call = next(play)
            while True:
                if isinstance(call, Children):
                    assert run is not None
                    try:
                        results = await run(call.agents)
                    except BaseException:
                        play.close()
                        raise
                    call = play.send(results)
                    continue
                driver = driver_of(call.agent.env)
                try:
                    with driver.tasks.collecting():
                        said = await _not_cancelled(driver._say(call))
                    driver._heard(call, said)
                except Exception as error:
                    call = play.throw(driver._noted(error, call.method))
                else:
                    call = play.send(said)
        except StopIteration as stop:
            return stop.value

    def _say(self, call: Call) -> Any:
        if callable(call.method):
            return call.method(call.argument)
        return self.env.start() if call.method == "start" else getattr(self.env, call.method)(call.argument)

    def _heard(self, call: Call, said: Any) -> None:
        if not callable(call.method) and not isinstance(said, Turn) and not is_handoff(said):
            raise wrong_turn(self.env, call.method, said)
        if call.method == "start":
            self._started(said)

    def end_tasks(self) -> None:
        """Cancel what the methods of an episode's environments started and did not wait for.

        Inside an event loop, they end when the caller lets it run.
        """
        for tasks in self._all_tasks():
            if in_event_loop():
                tasks.cancel()
            elif tasks.are_left():
                run(tasks.end())

    async def aend_tasks(self) -> None:
        """As `end_tasks`, and wait for the ends."""
        for tasks in self._all_tasks():
            await tasks.end()

    def _all_tasks(self) -> list[Tasks]:
        below = () if self.agent is None or self.agent.parent is not None else self.agent.agents()
        return [self.tasks, *(driver_of(one.env).tasks for one in below if one.env is not self.env)]

    def close_children(self) -> list[Exception]:
        """Close the environments of all sub-agents of the last episode, each once; returns what that raised."""
        errors: list[Exception] = []
        if self.agent is None or self.agent.parent is not None:
            return errors
        for agent in self.agent.agents():
            if agent is not self.agent and driver_of(agent.env).agent is agent and not agent.closed:
                agent.closed = True
                try:
                    agent.env.close()
                except Exception as error:
                    errors.append(error)
        return errors

    def now(self, value: T | Awaitable[T]) -> T:
        """The value, awaited in an event loop of our own if it has to be."""
        if isinstance(value, (Turn, Handoff)) or not inspect.isawaitable(value):
            return value  # pyright: ignore[reportReturnType]
        if not self._needs_loop() and inspect.iscoroutine(value):
            return _run_at_once(value)
        return run(_not_cancelled(value))

    def refuse_event_loop(self) -> None:
        """Before anything happens: inside an event loop a plain function cannot wait for an async method."""
        if in_event_loop() and self._needs_loop():
            raise EpisodeError("inside an event loop, call `await env.areset(...)` and `await env.astep(...)`")

    def _noted(self, error: Exception, method: Method) -> Exception:
        """Note on an exception which method of the author it came from, and when; log it if its parent takes it."""
        agent = self.running
        if isinstance(method, str):
            error = explained(error, self.env, method)
        name = method if isinstance(method, str) else f"the summarizer {getattr(method, '__name__', method)}"
        error.add_note(f"Raised by {name}() of {self.name}, seed {agent.episode.seed}, step {agent.steps}.")
        if agent.parent is not None:  # it gets the error as a result, and the model perhaps as an answer
            _log.warning("the sub-agent %r failed", agent.name, exc_info=error)
        return error


def driver_of(env: Env) -> Driver:
    """Return the machinery of an environment."""
    return env._envsdk  # pyright: ignore[reportPrivateUsage]


DRIVERS: dict[type, type[Driver]] = {Env: Driver}
"""The machinery of each class of the SDK that authors derive from."""


@functools.cache
def _class_of_sdk(cls: type) -> type:
    return next(base for base in cls.__mro__ if base in DRIVERS)


_RESET_OPTIONS = ("episode_id", "group_id", "task")


def check_seed(seed: object) -> int | None:
    """Return a seed as an int, or None.

    Raises:
        ConfigError: If it is neither None nor an integer of at least 0 (NumPy's integers are, True is not).
    """
    plain = plain_integer(seed)
    if plain is not None and (type(plain) is not int or plain < 0):
        raise ConfigError(f"seed is {seed!r:.80}; expected None or an integer of at least 0")
    return plain


def _check_options(options: object) -> dict[str, Any]:
    """Return what `reset(options=)` was given.

    Raises:
        ConfigError: If it is not a mapping, has an unknown name, or an id is not text.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise ConfigError(f"options is a {type(options).__name__}; expected a mapping, such as {{'task': 3}}")
    given: dict[str, Any] = {**cast("Mapping[Any, Any]", options)}
    unknown = given.keys() - set(_RESET_OPTIONS)
    if unknown:
        raise ConfigError(f"reset() does not know the options {sorted(map(str, unknown))}; it knows {_RESET_OPTIONS}")
    for name in ("episode_id", "group_id"):
        value = given.get(name)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"the option {name} is {value!r:.80}; expected a text or None")
        try:
            check_text(value or "")
        except ValueError as error:
            raise ConfigError(f"the option {name} is {value!r:.80}, which cannot be recorded: {error}") from error
    return given


def _run_at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing: no event loop is needed."""
    try:
        coroutine.send(None)
    except StopIteration as result:
        return result.value
    coroutine.close()
    raise EpisodeError("a plain function returned something to wait for; declare it `async def`")


async def _not_cancelled(value: T | Awaitable[T]) -> T:
    """The value, awaited if it has to be. That something it waits for was cancelled is an error of its own."""
    try:
        return await value if inspect.isawaitable(value) else value  # pyright: ignore[reportReturnType, reportUnknownVariableType]
    except asyncio.CancelledError as error:
        if is_being_cancelled():
            raise
        raise EpisodeError("something that it waited for was cancelled") from error


def is_being_cancelled() -> bool:
    """Whether it is the running task that is to end, and not something that it waits for."""
    task = asyncio.current_task() if in_event_loop() else None
    return task is not None and task.cancelling() > 0


def _find_renderer(renderer: str | Mapping[str, Any] | Renderer, tokenizer: Any) -> Renderer:
    if isinstance(renderer, Renderer):
        if tokenizer is not None and load_tokenizer(tokenizer).fingerprint != renderer.tokenizer.fingerprint:
            raise ConfigError(
                f"tokenizer is {tokenizer!r:.80}, but the renderer is an object that has another one, "
                f"{renderer.tokenizer.name!r}: give one of both, or get_renderer({renderer.name!r}, tokenizer)"
            )
        return renderer
    if not isinstance(renderer, (str, Mapping)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"renderer is {renderer!r:.80}; expected a name, a name with options, or a Renderer")
    options: dict[str, Any] = {"name": renderer} if isinstance(renderer, str) else dict(renderer)
    return get_renderer(options.pop("name", None), tokenizer, **options)


def _line(message: Message) -> str:
    thinking = "" if message.reasoning is None else f"<think>{message.reasoning}</think> "
    calls = "".join(f" -> {call.name}({call.arguments})" for call in message.tool_calls)
    return visible(f"[{message.role}] {thinking}{message.content}{calls}")
