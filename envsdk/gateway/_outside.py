"""Sessions of a standalone gateway: each is an episode whose program runs elsewhere."""

import asyncio
import logging
import secrets
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

from typing_extensions import override

from .._spans import EpisodeSpan, current_span
from .._visible import brief
from ..authoring._driver import Driver, driver_of
from ..authoring._env import Env
from ..episodes._turn import Turn
from ..errors import ConfigError, DeadlineExceeded, EpisodeError, PolicyUnavailable, RequestError
from ..limits import Limits, StopReason
from ..messages import Message
from ..policies._policy import PolicyLike
from ..rendering.renderer import check_image
from ..rollouts._jobs import EpisodeJob
from ..rollouts._player import Player, PlaySettings
from ..rollouts._reporting import Reporting
from ..rollouts._run_folder import RunFolder
from ..rollouts._statistics import Statistics
from ..rollouts._trackers import find_tracker
from ..trajectories._trajectory import Trajectory
from ._driver import ProgramDriver, failure
from ._lineage import role_rules
from ._program import ProgramEnv
from ._requests import ModelRequest, ReceivedMessage
from ._session import ProgramEnd, ProgramSession

NAME = "envsdk gateway"
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _SessionEpisode:
    """The episode of an open session."""

    session: ProgramSession
    limits: Mapping[str, Any] | None
    task: Any
    rewards: dict[str, float] = field(default_factory=dict[str, float])
    env: Env | None = None
    is_late: bool = False
    """True if it is ended before its last reply, which takes too long."""
    playing: "asyncio.Task[Trajectory] | None" = None


class OutsideDriver(ProgramDriver):
    """The driver of a program whose session was opened over HTTP."""

    @override
    def open_session(self) -> ProgramSession:
        """Take the session, which the server knows; the program runs elsewhere."""
        opened: _SessionEpisode = self.env.opened[self.driver.running_episode.id]
        opened.env, self._session = self.env, opened.session
        if opened.session.span is not None and (span := current_span.get()) is not None:
            (span.root or span).children.append(opened.session.span)
        return opened.session

    @override
    def close_session(self, session: ProgramSession) -> None:
        """Do nothing: the server forgets the session when it is closed."""


class OutsideEnv(ProgramEnv):
    """An environment whose program runs elsewhere, and sends its requests to a standalone gateway.

    Args:
        opened: The sessions by the ids of their episodes.
        **options: See `Env`.
    """

    _envsdk_program: ClassVar[Callable[[Driver], Any] | None] = OutsideDriver
    limit_grace_s: ClassVar[float | None] = None  # the session is closed, or becomes idle

    def __init__(self, opened: Mapping[str, _SessionEpisode], **options: Any) -> None:
        super().__init__(**options)
        self.opened = opened

    def _envsdk_prepare(self) -> None:
        """Take the limits and the task of the session; its program interprets the task."""
        opened, agent = self.opened[self.episode_id], self._envsdk.running
        agent.limits = Limits.of(opened.limits, self.limits)
        self.task = agent.task = opened.task


class PlayedSessions:
    """Opens, rewards and closes the sessions of a standalone gateway; each is played as an episode.

    Args:
        policy: The policy that replies.
        env_options: The options of the episodes' environment: renderer, tokenizer, history, limits.
        declared: Class attributes of the `ProgramEnv` that plays the sessions, such as `trainable_roles`.
        out: The run folder; None records nothing.
        resume: Whether to continue the run in the folder.
        compress: Whether to compress the folder's trajectories.
        policy_timeout_s: The maximum time of a call of the policy, in seconds.
        close_timeout_s: The maximum time to wait for pending replies when a session is closed, in seconds. An
            episode that takes longer is recorded as an error, with its steps so far.
        on_trajectory: Called with each episode that ended.
        log_to: `otel` to send spans over OTLP; None for nothing.

    Raises:
        RunFolderError: See `RunFolder.create`.
        ConfigError: If an option is not valid.
    """

    def __init__(
        self,
        policy: PolicyLike,
        env_options: Mapping[str, Any],
        *,
        declared: Mapping[str, Any] | None = None,
        out: Path | None = None,
        resume: bool = False,
        compress: bool = False,
        policy_timeout_s: float | None = 600.0,
        close_timeout_s: float = 10.0,
        on_trajectory: Callable[[Trajectory], object] | None = None,
        log_to: str | None = None,
    ) -> None:
        self._opened: dict[str, _SessionEpisode] = {}
        self._ids: dict[str, str] = {}
        """The id of the episode of each session."""
        self._count = 0
        self._on_trajectory = on_trajectory
        self._close_timeout_s = close_timeout_s
        cls = type(OutsideEnv.__name__, (OutsideEnv,), dict(declared or {}))
        role_rules(cls.roles)
        for name, value in (cls.sampling or {}).items():
            refuses: Any = getattr(policy, "refuses_sampling", None)
            if refuses is not None and (why := refuses(name, value)) is not None:
                raise ConfigError(f"sampling has {name}={brief(value)}: {why}")
        self._counting = cast("OutsideDriver", driver_of(cls(self._opened, **env_options)).program)
        env = self._counting.env
        shared = {**env_options, "renderer": env.renderer, "tokenizer": None}  # large, and immutable
        tracker = None if log_to is None else find_tracker(log_to)
        if tracker is not None and tracker.spans is None:
            raise ConfigError(
                f"log_to is {brief(log_to)}; expected 'otel': a gateway has spans, and no statistics of a run"
            )
        self._settings = PlaySettings(
            lambda: cls(self._opened, **shared),
            {},
            policy,
            policy_timeout_s=policy_timeout_s,
            method_timeout_s=None,  # the program has no deadline
            max_retries=0,  # a program that runs elsewhere cannot be restarted
            spans=None if tracker is None else tracker.spans,
        )
        self._tracker = tracker
        self._reporting = Reporting(Statistics(), [] if tracker is None else [tracker])
        self._player: Player | None = None
        self.folder: RunFolder | None = None
        if out is not None:
            described = {name: value for name, value in env_options.items() if name not in ("renderer", "history")}
            configuration = {
                "env": NAME,
                "env_options": {**described, "history": env.history.specification()},
                "policy": str(getattr(policy, "name", type(policy).__name__)),
            }
            self.folder = RunFolder.create(out, configuration, {"main": env.renderer}, resume=resume, compress=compress)

    async def open(self, options: Mapping[str, Any]) -> ProgramSession:
        """Open a session.

        Args:
            options: Those fields of `POST /sessions` that were given.

        Raises:
            ConfigError: If an option is invalid. Like `TaskError` and `UnknownName`, it is answered with status 400.
            EpisodeError: If the id of the episode is in use. It is answered with status 409.
        """
        if self._player is None:
            self._player = Player(self._settings)
        limits = options.get("limits")
        Limits.of(limits, OutsideEnv.default_limits)
        self._count += 1
        episode_id = options.get("episode_id") or f"session-{secrets.token_hex(8)}"
        if episode_id in self._opened or (self.folder is not None and self.folder.has(episode_id)):
            raise EpisodeError(f"there is an episode {episode_id!r} already; ids must differ")
        counting = self._counting
        session = ProgramSession(
            counting.count_tokens, partial(check_image, counting.driver.renderer), options.get("role")
        )
        session.span = None if self._tracker is None else EpisodeSpan("program", NAME)
        opened = self._opened[episode_id] = _SessionEpisode(session, limits, options.get("task"))
        self._ids[session.id] = episode_id
        group = options.get("group_id") or episode_id
        job = EpisodeJob(self._count, NAME, episode_id, group, options.get("seed"), {})
        opened.playing = asyncio.create_task(self._play(job))
        return session

    async def reward(self, session_id: str, rewards: Mapping[str, float]) -> None:
        """Reward a session. A plain number is named `reward`.

        Raises:
            EpisodeError: If the episode cannot be rewarded any more. It is answered with status 409.
        """
        opened = self._opened[self._ids[session_id]]
        if opened.playing is not None and opened.playing.done():
            raise EpisodeError("the episode has ended already, so it cannot be rewarded anymore")
        opened.rewards.update(rewards)

    async def close(self, session_id: str, reason: str) -> Mapping[str, Any]:
        """End a session and return the episode's summary, which can be written as JSON and has no content.

        Args:
            session_id: The session.
            reason: `"closed"` (by a request), `"idle"` or `"shutdown"`.
        """
        episode_id = self._ids.pop(session_id)
        opened = self._opened[episode_id]
        try:
            trajectory = await self._ended(opened, reason)
        finally:
            del self._opened[episode_id]
        if trajectory is None:
            return {"episode_id": episode_id, "status": "empty", "steps": 0}
        if self.folder is not None:
            await self.folder.append(trajectory)
        if self._on_trajectory is not None:
            self._on_trajectory(trajectory)
        return {
            "episode_id": trajectory.id,
            "status": trajectory.status,
            "stop_reason": trajectory.stop_reason,
            "error_kind": trajectory.error_kind,
            "reward": trajectory.scored_reward,
            "steps": len(trajectory.steps),
            "sampled_tokens": sum(step.stop - step.action_start for step in trajectory.steps),
            "contexts": {name: log.role for name, log in trajectory.contexts.items()},
            "breaks": dict(Counter(break_.reason for break_ in trajectory.breaks)),
        }

    async def _ended(self, opened: _SessionEpisode, reason: str) -> Trajectory | None:
        """End the episode of a session; return None if no request came."""
        playing = opened.playing
        assert playing is not None
        session = opened.session
        if not session.was_asked:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            session.close(RequestError("the session is closed", 400, "session_closed"))
            return None
        is_closed = reason == "closed"
        session.put(ProgramEnd(Turn(reward=opened.rewards or None, terminated=is_closed, truncated=not is_closed)))
        await asyncio.wait({playing}, timeout=self._close_timeout_s)
        if not playing.done():
            opened.is_late = True
            if opened.env is not None:
                too_late = failure(DeadlineExceeded(), is_of_policy=True)
                cast("OutsideDriver", driver_of(opened.env).program).end_program(too_late)
            playing.cancel()
        trajectory = await playing
        if not is_closed and trajectory.stop_reason == StopReason.TRUNCATED:
            trajectory.stop_reason = str(StopReason(reason))
        return trajectory

    async def warm_up(self) -> None:
        """Do what the first request would wait for: the checks of the policy's servers, and a first prompt."""
        await self._reporting.begin()
        asked = ModelRequest([ReceivedMessage(Message(role="user", content="Hi"))])
        await asyncio.to_thread(self._counting.count_tokens, asked)
        acheck: Any = getattr(self._settings.policy, "acheck", None)
        if acheck is not None:
            try:
                await acheck(self._counting.env.renderer)
            except PolicyUnavailable as error:  # it may start later
                _log.warning("the policy cannot be reached yet: %s", error)

    async def aclose(self) -> None:
        """Close the run folder and the policy."""
        if self._player is not None:
            await self._player.aclose()
        aclose: Any = getattr(self._settings.policy, "aclose", None)
        if aclose is not None:
            await aclose()
        await self._reporting.end()
        if self.folder is not None:
            await asyncio.to_thread(self.folder.close, is_complete=True)

    async def _play(self, job: EpisodeJob) -> Trajectory:
        assert self._player is not None
        opened = self._opened[job.id]
        try:
            played = await self._player.play(job)
            if self._tracker is not None:
                self._tracker.take(played.spans)
            error = played.error
            while error is not None:  # let go of the frames in which it was raised: they hold the episode in a cycle
                traceback.clear_frames(error.__traceback__)
                error.__traceback__, error = None, error.__cause__ or error.__context__
            return played.trajectory
        except asyncio.CancelledError:
            if not opened.is_late or opened.env is None:
                raise
            late = DeadlineExceeded(
                f"the last reply took longer than {self._close_timeout_s:g} s after the session closed"
            )
            trajectory = opened.env.fail(late)
            trajectory.error_kind = "infrastructure"
            return trajectory
