"""The machinery of an environment: what it was made with, how its episodes begin, and how it is copied."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import gymnasium
from pydantic import BaseModel, ConfigDict, ValidationError

from .._registry import find_renderer, refuse_history_options
from ..contexts._history_policy import HistoryPolicy
from ..episodes._agent import Agent, EpisodeHeader
from ..episodes._driver import Driver, driver_of
from ..episodes._episode import Episode, SummarizerFactory
from ..errors import ConfigError, EpisodeError, HandoffError, what_is_invalid
from ..limits import Limits, plain_integer
from ..messages import check_text
from ..rendering.renderer import Renderer
from ..trajectories._fragments import fragment
from ._embedded_vision import EMBEDDED_VISION
from .tasks import check_task, find_task, pick_task


class EnvConfig(BaseModel):
    """The options of an environment. A subclass of `Env` declares its own in a subclass of this, named `Config`."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class EnvDriver(Driver):
    """The driver of an `Env`.

    Args:
        env: The environment.
        config: Its own options.
        renderer: See `Env`, and so for the others.
    """

    config_base: ClassVar[type[EnvConfig]] = EnvConfig
    """The class that `Env.Config` derives from."""
    why_no_fork: ClassVar[str | None] = None
    """Why its episodes cannot be forked; None if they can."""
    runs_tools: ClassVar[bool] = False
    """Whether methods that are tools are run."""
    summarizer: ClassVar[SummarizerFactory]
    """Makes the environment in which the model writes a summary."""

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

        super().__init__(env)
        self.config: Any = self._read_config(config)
        self._inherits = renderer is None and tokenizer is None
        if renderer is None:
            renderer = _default_renderer(env, tokenizer)
        self.renderer = self._own_renderer = find_renderer(renderer, tokenizer)
        if env.shows_images and (advice := self.renderer.images_advice):
            name = self.renderer.name
            raise ConfigError(f"{type(env).__name__} shows images, which the renderer {name!r} cannot write: {advice}")
        self.history = get_history(history)
        self._check_recordable("the options of its renderer", self.renderer.specification)
        self._check_recordable("the options of its history policy", self.history.specification)
        self.limits = Limits.of(limits, env.default_limits)
        self.given_name: str | None = None
        self._episodes = 0

    @property
    def name(self) -> str:
        """The id that the environment was made by, or its class's name."""
        spec = self.env.spec
        return self.given_name or (type(self.env).__name__ if spec is None else spec.id)

    def _read_config(self, config: Mapping[str, Any]) -> EnvConfig:
        refuse_history_options(config)
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

    # Episodes.

    def begin(self, seed: int | None, options: dict[str, Any] | None) -> None:
        """Begin another episode; arguments that are refused leave the running one as it is."""
        seed, given = check_seed(seed), _check_options(options)
        chosen = [self._chosen(given)] if "task" in given else None
        if chosen is None and self.is_running:
            chosen = self._drawn_or_undone(seed)
        self._episodes += 1
        self.end_tasks()
        for error in self.close_children():
            import logging

            logging.getLogger(__name__).warning("a sub-agent of %r could not be closed: %r", self.env, error)
        if self.episode is not None:
            self.episode.abandoned = True
        self.renderer = self._own_renderer
        header = EpisodeHeader(
            id=given.get("episode_id") or f"{self.name}/{f'#{self._episodes}' if seed is None else seed}",
            seed=seed,
            config=self.config.model_dump(mode="json"),
            group_id=given.get("group_id"),
            records_roles=self.env.records_roles,
        )
        episode = Episode(header, self.env, type(self).summarizer)
        self.attach(episode, episode.root)
        self._prepare(seed, self._drawn(seed) if chosen is None else chosen)

    def join(self, episode: Episode, agent: Agent, seed: int | None, task: Any) -> None:
        """Take part in an episode as a sub-agent.

        Raises:
            HandoffError: If the environment is in use already.
            TaskError: If it has no such task.
        """
        if self.is_running and self.agent is not None and self.episode is not None:
            raise HandoffError(
                f"{self.env!r} is in use already, as {self.agent.name!r} of {self.episode.id!r}: make another object "
                "for each handoff"
            )
        self.attach(episode, agent)
        self.renderer = self._own_renderer
        if self._inherits and agent.parent is not None:
            above = agent.parent.current
            self.renderer = agent.parent.env.renderer if above is None else above.renderer
        if task is None:
            chosen = self._drawn(seed)
        else:
            chosen = [check_task(task if self.env.tasks is None else find_task(self.env.tasks, task), self.env.Task)]
        self._prepare(seed, chosen)

    def _chosen(self, options: Mapping[str, Any]) -> Any:
        return check_task(find_task(self.env.tasks, options["task"]), self.env.Task)

    def _drawn(self, seed: int | None) -> list[Any]:
        """Return the task that the seed picks, or the random state without a seed; no task if there are no rows."""
        rows = self.env.tasks
        return [] if rows is None else [check_task(rows[pick_task(rows, seed, self.env.np_random)], self.env.Task)]

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
        """Set the random state, and the task if there is one."""
        gymnasium.Env.reset(self.env, seed=seed)
        self.env.task = None
        for task in chosen:
            self.running.task = task
            self.env.task = copy.deepcopy(task)  # what the author does to it changes neither data nor record

    def fork(self) -> Any:
        """Copy the environment with its running episode; see `Env.fork`."""
        if self.why_no_fork is not None:
            raise EpisodeError(f"{self.env!r} cannot be copied: {self.why_no_fork}")
        agent, episode = self.running, self.running_episode
        if agent.parent is not None:
            raise EpisodeError(f"{agent.name!r} is a sub-agent: fork the environment that was reset")
        episode.check_fork()
        for one in agent.agents():
            _ = driver_of(one.env).env.np_random  # gymnasium makes it at its first use
        try:
            other = copy.deepcopy(self.env)
        except EpisodeError:
            raise
        except Exception as error:
            raise EpisodeError(
                f"{self.env!r} cannot be copied: {type(error).__name__}: {error}. Let __getstate__ leave out what "
                "cannot be copied, and __setstate__ make another"
            ) from error
        driver_of(other).running_episode.become_fork(episode)
        return other

    def shared_by_copies(self) -> list[Any]:
        """Return what copies of the environment share, since it never changes."""
        contexts = {} if self.episode is None else self.episode.contexts
        messages = [message for context in contexts.values() for message in context.messages]
        return [self.config, self.env.tasks, self.env.spec, self.history, *messages]


DRIVERS: dict[type, type[EnvDriver]] = {}
"""The driver of each class that authors derive from."""


_RESET_OPTIONS = ("episode_id", "group_id", "task")


def _default_renderer(env: Any, tokenizer: Any) -> str | Mapping[str, Any]:
    """Return the renderer of an environment that is made without one."""
    if not env.shows_images:
        return "qwen3"
    return EMBEDDED_VISION if tokenizer is None or getattr(tokenizer, "name", tokenizer) == "embedded" else "auto"


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
