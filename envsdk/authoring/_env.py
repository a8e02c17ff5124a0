"""The base class of environments, a `gymnasium.Env`."""

import copy
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, cast

import gymnasium
import numpy as np
from pydantic import BaseModel, ConfigDict

from .._visible import visible
from ..contexts._history import HistoryPolicy, SummaryRequest
from ..contexts._protocol import Action, Observation
from ..episodes._agent import MAIN, StepResult
from ..episodes._episode import Episode, PendingReply, SummarizerFactory
from ..episodes._functions import copied_function, is_async
from ..episodes._handoff import Handoff
from ..episodes._turn import Turn
from ..errors import ConfigError, EpisodeError
from ..limits import Limits
from ..messages import Message, ToolSchema
from ..rendering._whole import WholeRenderer
from ..rendering.renderer import Renderer
from ..rendering.tokenizers import Tokenizer
from ._driver import Driver, driver_of
from ._mistakes import check_class, check_names, check_value, missing_init
from ._spaces import ActionSpace, ObservationSpace
from .tasks import Rows, load_tasks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..trajectories._trajectory import Trajectory

Returned: TypeAlias = Turn | Handoff | Sequence[Handoff]
"""The values that `start`, `respond` and `resume` may return."""
_REFERENCE_CHARS = 60
pending_reply: ContextVar[PendingReply | None] = ContextVar("pending_reply", default=None)
"""The reply that a function of an environment is writing."""


class EnvConfig(BaseModel):
    """The options of an environment. A subclass of `Env` declares its own in a subclass of this, named `Config`."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class _NotMade:
    """A placeholder for what `Env.__init__` sets: using it raises an error that `__init__` has not run."""

    def __get__(self, env: object, cls: type) -> Self:
        if env is None:
            return self
        raise missing_init(cls)


class Env(gymnasium.Env[Observation, Any]):
    """A multi-turn task for a language model. Subclasses write `start` and `respond`; either may be `async def`.

    It is a `gymnasium.Env`: `reset` and `step` exchange tokens with a policy, the two methods exchange messages.

    Args:
        renderer: The renderer of the model's family: its name, its name with options (`{"name": "qwen3",
            "enable_thinking": False}`), or an object. None is `qwen3`, unless the environment `shows_images`; for a
            sub-agent, its parent's renderer.
        tokenizer: What `load_tokenizer` takes: the tokenizer of the policy's model. None is the embedded vocabulary,
            which only the policies `random`, `reference` and `null` accept unless it is chosen (`"embedded"`). A
            renderer that is an object has its own.
        history: The history policy: its name, its name with options (`{"name": "compact", "every": 10}`), or an object.
        limits: When an episode is truncated; by default the class's `default_limits`. A mapping changes the fields that
            it names and leaves the others; a `Limits` replaces them all.
        tasks: Task data: a list, the path of a JSONL file, or a Hugging Face data set.
        render_mode: `"ansi"` or None.
        **config: The environment's own options, the fields of its `Config`.

    Raises:
        ConfigError: If an option is not valid.
        UnknownName: If no renderer or history policy has that name.
        TokenizerError: If the tokenizer does not load, or lacks what the renderer needs.
        TaskError: If the tasks cannot be read.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (gymnasium's own declaration)
    """Gymnasium's metadata: the render modes."""
    Config: ClassVar[type[EnvConfig]] = EnvConfig
    """The model of the environment's own options."""
    Task: ClassVar[type[BaseModel] | None] = None
    """The model of a task; None takes rows as they are."""
    default_limits: ClassVar[Limits] = Limits.model_construct()  # without building the validator at import
    """The limits of an environment that is made without `limits=`."""
    reward_range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    """The lowest and the highest undiscounted reward of an episode. `check_env` expects the reference policy to earn
    the second, and the null policy the first: on average over the seeds, up to a tenth of the range."""
    n_tasks: ClassVar[int | None] = None
    """The number of different tasks, if seeds choose among a fixed number; None if each seed has its own task."""
    blocking: ClassVar[bool | None] = None
    """The thread in which `Rollouts` calls its methods, plain and async. None: in the episode's thread, which has an
    event loop, so that a method that takes long or never returns affects only its own episode. True: a sub-agent also
    gets a separate thread, so that sub-agents that run concurrently do not wait for each other's plain methods. False:
    in the event loop of the rollout, for environments that share an object that is bound to a loop, such as a client;
    their methods must not take longer than a few milliseconds without `await`."""
    shows_images: ClassVar[bool] = False
    """True if its messages have images. It then needs a renderer with the processor of a vision model. With
    `tokenizer=` alone, that is `auto`; with neither `renderer=` nor `tokenizer=`, it is `EMBEDDED_VISION`, which needs
    no model."""
    records_roles: bool = False
    """True if episodes label each token with the part of the conversation that it belongs to (`ContextLog.roles`).
    Samples then have these labels, too."""
    task: Any
    """The current task, if there are tasks."""
    tasks: Rows | None = None
    """Task data."""

    # The SDK's own attributes of environments and their classes have this prefix.
    _envsdk: Driver = cast("Driver", _NotMade())
    _envsdk_program: ClassVar[Callable[[Driver], Any] | None] = None  # makes the driver of the program that plays it
    _envsdk_config: ClassVar[type[EnvConfig]] = EnvConfig  # what `Config` derives from
    _envsdk_runs_tools: ClassVar[bool] = False
    _envsdk_why_no_fork: ClassVar[str | None] = None  # why a running episode cannot be copied
    _envsdk_summarizer: ClassVar[SummarizerFactory]

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
        self._envsdk = Driver(self, config, renderer, tokenizer, history, limits)
        self._envsdk_check()
        self.tasks = None if tasks is None else load_tasks(tasks)
        self.observation_space = ObservationSpace(self.renderer.tokenizer.vocab_size)
        self.action_space = ActionSpace(self.renderer.tokenizer.vocab_size)
        if isinstance(self.renderer, WholeRenderer):  # what it cannot render is refused here, not in an episode
            self.renderer.check_tools(self.default_tools())

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_names(cls)
        check_class(cls, cls._envsdk_config, runs_tools=cls._envsdk_runs_tools)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name) and not name.startswith("_envsdk"):
            check_value(type(self), name, value)
        super().__setattr__(name, value)

    # Methods that the driver calls, besides the authors' methods.

    def _envsdk_check(self) -> None:
        """Check the class and the options when the environment is made."""

    def _envsdk_prepare(self) -> None:
        """Prepare for an episode, after the task was chosen and before `start` is called."""

    def _envsdk_started(self, turn: Returned) -> None:
        """Process the value that `start` returned."""

    def _envsdk_waits(self) -> bool:
        """Return whether a step may have to wait; if not, `step` needs no event loop."""
        return any(is_async(getattr(self, name)) for name in ("start", "respond", "resume"))

    # Methods that authors write.

    def start(self) -> Returned | Awaitable[Returned]:
        """Return the first turn of an episode, or a handoff; `resume` then returns the first turn.

        Random choices come from `self.np_random` alone.
        """
        raise NotImplementedError(f"{type(self).__name__} has no start(): it returns the first Turn")

    def respond(self, reply: Message) -> Returned | Awaitable[Returned]:
        """Answer a reply of the model with a turn, a handoff to a sub-agent, or a list of handoffs.

        Any reply is legal; `reply.errors` reports what could not be read.
        """
        raise NotImplementedError(f"{type(self).__name__} has no respond(): it returns the next Turn")

    def resume(self, result: Any) -> Returned | Awaitable[Returned]:
        """Return the turn after a handoff, given its `HandoffResult`; for a list of handoffs, a list of results."""
        raise NotImplementedError(f"{type(self).__name__} has no resume(): it returns the Turn after a Handoff")

    def renderer_of(self, role: str) -> Renderer:
        """Return the renderer of a role's contexts, which may differ if the players are different models."""
        return self.renderer

    def reference_reply(self) -> Message | str:
        """Return the next reply of a policy that solves the task. It may use the environment's own state."""
        raise NotImplementedError(f"{type(self).__name__} has no reference_reply()")

    def null_reply(self) -> Message | str:
        """Return the next reply of a policy that does not try to solve the task."""
        return ""

    def default_tools(self) -> Sequence[ToolSchema]:
        """Return the tools of a first turn that does not set any."""
        return ()

    # Members that authors use.

    @property
    def context(self) -> str:
        """The name of the current context within this environment: `main` unless a turn named another."""
        agent = self._envsdk.running
        name = agent.context.name
        if agent.parent is None:
            return name
        return MAIN if name == agent.name else name.removeprefix(f"{agent.name}/")

    def messages(self) -> list[Message]:
        """Return the messages of the current context, in order; an empty list before the first turn.

        While a function of the environment replies, such as `reference_reply`, it is the context of its reply.
        """
        pending, context = pending_reply.get(), self._envsdk.running.current
        if pending is not None and pending.env is self:
            context = pending.context
        return [] if context is None else list(context.messages)

    # Members that policies and trainers use.

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
    def name(self) -> str:
        """The id with which the environment was made, or its class's name."""
        return self._envsdk.given_name or (type(self).__name__ if self.spec is None else self.spec.id)

    @property
    def episode(self) -> Episode:
        """The current episode, which a sub-agent shares with the agent that handed over to it."""
        return self._envsdk.running_episode

    @property
    def episode_id(self) -> str:
        """The id of the current episode and of its trajectory."""
        return self._envsdk.running_episode.id

    @property
    def trajectory(self) -> "Trajectory | None":
        """The trajectory of the episode once it is over; None before."""
        episode = self._envsdk.episode
        return None if episode is None else episode.trajectory

    def prompt(self) -> "NDArray[np.int32]":
        """Return the prompt whose action is due, which may be a sub-agent's: int32, shape (n,), a copy. O(context).

        While a rollout runs sub-agents side by side, it is the prompt of any of them.
        """
        return self._envsdk.running_episode.agent.context.prompt()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: An integer of at least 0: the same seed gives the same task and the same bytes. None continues with
                the random state.
            options: `task` (the index of a row, or the row itself) chooses the task. `episode_id` identifies the
                episode, and `group_id` the group of episodes with the same task.

        Returns:
            The first observation and its `info`.

        Raises:
            ConfigError: If the seed is not an integer, or an option is unknown. The running episode is unchanged then.
            TaskError: If the task does not exist, or does not fit the task model.
            EpisodeError: Inside an event loop, if a method of the environment is async.
        """
        driver = self._envsdk
        driver.refuse_event_loop()
        driver.begin(seed, options)
        result = driver.drive(driver.running_episode.begin())
        return result.observation, result.info

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Do the same as `reset`, inside an event loop."""
        driver = self._envsdk
        driver.begin(seed, options)
        try:
            result = await driver.drive_async(driver.running_episode.begin())
        except BaseException as error:
            await driver.aend_tasks(error)
            raise
        assert isinstance(result, StepResult)
        return result.observation, result.info

    def step(self, action: Action | Any) -> StepResult:
        """Take an action: an `Action`, or its tokens alone as an integer array of shape (n,).

        Returns:
            Observation, reward, terminated, truncated, info: gymnasium's five.

        Raises:
            EpisodeError: Before `reset` and after the end.
            ActionError: If the action is not legal. The episode is unchanged then.
        """
        driver = self._envsdk
        result = driver.drive(driver.running_episode.step(action))
        if result.terminated or result.truncated:
            driver.end_tasks()
        return result

    async def astep(self, action: Action | Any) -> StepResult:
        """Do the same as `step`, inside an event loop."""
        driver = self._envsdk
        result = await driver.drive_async(driver.running_episode.step(action))
        assert isinstance(result, StepResult)
        if result.terminated or result.truncated:
            await driver.aend_tasks()
        return result

    def pending(self) -> tuple[Observation, dict[str, Any]]:
        """Return the observation whose action is due and its `info`, as `reset` or `step` returned them.

        Raises:
            EpisodeError: If no action is due.
        """
        result = self._envsdk.running_episode.pending()
        return result.observation, result.info

    def fork(self) -> Self:
        """Copy the environment with its running episode: its state, its contexts, its random state.

        Both continue independently. The observation that is pending here is also the fork's (`fork.pending()`), so a
        loop that keeps contexts continues with a copy of them, and `rollout(fork, policy, reset=False)` plays to the
        end. The fork's trajectory has all steps, and its `origins` name the episode that it was forked from. Tokens
        that were sampled before the fork are trained in the original's samples; in the fork's, their mask is False.

        `copy.deepcopy` copies everything that the environment holds, except for its renderer, history policy and tasks.
        For what cannot be copied, such as a connection, write `__getstate__` and `__setstate__`.

        Returns:
            The copy, an environment of the same class. `close` it when it is done.

        Raises:
            EpisodeError: If no action is due, or only the rest of one; while sub-agents run side by side; for a
                sub-agent; or if something cannot be copied, such as a nested function that refers to the environment.
        """
        driver = self._envsdk
        if driver.why_no_fork is not None:
            raise EpisodeError(f"{self!r} cannot be copied: {driver.why_no_fork}")
        agent, episode = driver.running, driver.running_episode
        if agent.parent is not None:
            raise EpisodeError(f"{agent.name!r} is a sub-agent: fork the environment that was reset")
        episode.check_fork()
        for one in agent.agents():
            _ = driver_of(one.env).env.np_random  # gymnasium makes it at its first use
        try:
            other = copy.deepcopy(self)
        except EpisodeError:
            raise
        except Exception as error:
            raise EpisodeError(
                f"{self!r} cannot be copied: {type(error).__name__}: {error}. Let __getstate__ leave out what "
                "cannot be copied, and __setstate__ make another"
            ) from error
        other.episode.become_fork(episode)
        return other

    def fail(self, error: BaseException) -> "Trajectory":
        """End the episode because something failed, and return its trajectory so far.

        Raises:
            EpisodeError: If no episode has begun, or it has ended already.
        """
        episode = self._envsdk.running_episode
        self._envsdk.end_tasks(error)
        return episode.fail(error)

    def render(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the conversation as text that is safe to print, if `render_mode` is `"ansi"`."""
        if self.render_mode is None:
            return None
        lines: list[str] = []
        for message in self.messages():
            thinking = "" if message.reasoning is None else f"<think>{message.reasoning}</think> "
            calls = "".join(f" -> {call.name}({call.arguments})" for call in message.tool_calls)
            lines.append(visible(f"[{message.role}] {thinking}{message.content}{calls}"))
        return "\n".join(lines)

    def close(self) -> None:
        """Free the resources of the environment and its sub-agents. It may be called again."""
        self._envsdk.end_tasks()
        errors = self._envsdk.close_children()
        if errors:
            raise errors[0]

    # Python's own protocols.

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        driver = self._envsdk
        if self._envsdk_why_no_fork is not None and driver.is_running:
            raise EpisodeError(f"{self!r} cannot be copied: {self._envsdk_why_no_fork}")
        contexts = {} if driver.episode is None else driver.episode.contexts
        messages = (message for context in contexts.values() for message in context.messages)
        for shared in (driver.config, self.tasks, self.spec, driver.history, *messages):
            memo[id(shared)] = shared  # it never changes
        other = type(self).__new__(type(self))
        memo[id(self)] = other
        state = self.__getstate__()
        functions = {n: copied_function(value, memo) for n, value in state.items() if isinstance(value, FunctionType)}
        other.__setstate__(copy.deepcopy({**state, **functions}, memo))
        return other

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"<{self.name} renderer={self.renderer.name!r} history={self.history.specification()}>"


class Summarizer(Env):
    """A sub-agent that requests a summary of the conversation from the model: its first reply.

    Args:
        request: The history policy's request.
        before: The messages before the request: the results of the last reply's tool calls.
        renderer: The renderer of the context that is summarized.
    """

    def __init__(self, request: SummaryRequest, before: Sequence[Message], renderer: Renderer) -> None:
        super().__init__(renderer=renderer)
        self._request = request
        self._before = before

    def start(self) -> Turn:
        """Return a turn with the request."""
        question = Message(role="user", content=self._request.instruction)
        return Turn([*self._before, question], max_tokens=self._request.max_tokens)

    def respond(self, reply: Message) -> Turn:
        """End the sub-agent's part, since the reply is the summary."""
        return Turn(terminated=True)

    def reference_reply(self) -> Message | str:
        """Return the beginning of each message."""
        lines = (f"{message.role}: {message.content[:_REFERENCE_CHARS]}" for message in self._request.messages)
        return "\n".join(lines)


Env._envsdk_summarizer = Summarizer  # pyright: ignore[reportPrivateUsage]
