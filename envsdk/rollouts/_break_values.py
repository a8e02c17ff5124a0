"""The counterfactual value of breaks: episodes are forked at a break, and played on with and without it."""

import asyncio
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from statistics import fmean, stdev
from typing import Any, Unpack

import numpy as np

from .._visible import brief, type_of
from ..authoring._concurrent import run_all
from ..authoring._driver import check_seed, driver_of
from ..authoring._env import Env
from ..authoring._event_loops import MethodThread, run
from ..contexts._history import is_summary_of
from ..contexts._protocol import Break
from ..episodes._episode import FORK
from ..errors import CannotReplay, ConfigError, EpisodeError
from ..policies._find import find_policy
from ..policies._policy import PolicyLike
from ..trajectories._steps import Origin
from ..trajectories._trajectory import Trajectory
from ._jobs import EpisodeJob
from ._player import Deadlines, Player, PlaySettings, check_count, check_deadlines
from ._replaying import recorded_actions, replay_options

_FORGETTING = ("thinking_stripped", "compaction", "budget", "summary", "fold")
"""The reasons of the breaks that can be left out: the others are changes by the environment or the chat template."""


@dataclass(frozen=True, slots=True)
class BreakValue:
    """The value of one break: what the episode earns with it, and what it would earn if it had not been made.

    Attributes:
        trajectory_id: The id of the episode.
        step: The index of the step whose observation is the break.
        break_: The break.
        cause_step: The index of the step whose reply caused the break: the model's summary, the reply with the call of
            `fold`, or else the last reply in the same context.
        cause: The sampled tokens of that reply: the name of their context, and their range `[start, stop)` in its log.
        reward_dropped: The mean reward of the plays that went on after the break; NaN without a pair.
        reward_kept: The mean reward of the plays in which this break was not made; NaN without a pair.
        standard_error: The standard error of their difference, from pairs with the same seed; NaN for fewer than two.
        pairs: The number of pairs of plays that both ended and were scored. Only these count.
        failed: The number of plays that failed or were not scored.
        sampled_tokens: The number of tokens that were sampled in the plays.
    """

    trajectory_id: str
    step: int
    break_: Break
    cause_step: int
    cause: tuple[str, int, int]
    reward_dropped: float
    reward_kept: float
    standard_error: float
    pairs: int
    failed: int
    sampled_tokens: int

    @property
    def difference(self) -> float:
        """The value of the break: `reward_dropped - reward_kept`. It is negative if forgetting did harm."""
        return self.reward_dropped - self.reward_kept


def break_values(
    env: str | Callable[..., Env],
    policy: PolicyLike,
    trajectories: Iterable[Trajectory],
    *,
    k: int = 4,
    share: float = 1.0,
    seed: int = 0,
    env_options: Mapping[str, Any] | None = None,
    max_concurrency: int = 64,
    on_trajectory: Callable[[Trajectory], Any] | None = None,
    **deadlines: Unpack[Deadlines],
) -> list[BreakValue]:
    """Measure what breaks are worth: play on from each of them, `k` times as it was made and `k` times without it.

    ```python
    trajectories = Rollouts(env, policy, seeds=range(8), group_size=8).run()
    values = break_values(env, policy, trajectories, k=4, share=0.25)
    ```

    An episode's recorded actions are repeated up to a break, and forked there. In the plays without it, that one break
    is not made and nothing is dropped at it: a summary is not requested, a fold only appends its messages. Later breaks
    happen as usual, so a `budget` that is exceeded drops the same at the next step.

    Breaks that drop what the model saw have a value: `thinking_stripped`, `compaction`, `budget`, `summary` and `fold`.
    Those of failed episodes and failed sub-agents, and those that a fork shares with its original, do not.

    A pair of plays, one of each kind, has the same seed and the same episode id (`ID/fork-1`), from which policies
    derive their random numbers, and each fork has the environment's random state at the break. So as many random
    numbers are common as the policy allows: one that also uses the prompt, as `TransformersPolicy` does, draws others.

    Args:
        env: The id of a registered environment, or a function that makes one; see `Rollouts`. With its options it is
            that of the episodes.
        policy: The policy that plays on, usually the one that played the episodes.
        trajectories: Finished episodes, with seeds. They are not changed.
        k: The number of pairs of plays for each break. With 0, nothing is played.
        share: The share of breaks that are measured, from 0 to 1. Whether one is depends on `seed`, the episode's id
            and the step alone, not on the reply that caused it.
        seed: Chooses the breaks, and the seeds of the plays.
        env_options: The keyword arguments for `env`.
        max_concurrency: The maximum number of plays at the same time.
        on_trajectory: A function that is called with each play's trajectory, failed ones too. Its `origins` name the
            episode. The two plays of a pair have the same id.
        deadlines: `policy_timeout_s`, `method_timeout_s`, `episode_timeout_s` and `max_retries`, with the meanings and
            defaults that they have in `Rollouts`. A play that fails is counted in `failed`, and its pair is left out.

    Returns:
        The values, in the order of the episodes and their steps.

    Raises:
        ConfigError: If an argument has the wrong type or value.
        UnknownName: If no environment or policy has that name.
        EpisodeError: If the environment cannot be forked, as one that a program plays.
        CannotReplay: If an episode cannot be repeated: it has no seed, the environment is not deterministic, or its
            options are not those of the episode.
    """
    check_count("k", k, 0)
    check_count("max_concurrency", max_concurrency)
    if not isinstance(share, Real) or not 0 <= share <= 1:
        raise ConfigError(f"share is {brief(share)}; expected a number from 0 to 1")
    if check_seed(seed) is None:
        raise ConfigError("seed is None; expected an integer of at least 0")
    if k is None or max_concurrency is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise ConfigError(f"k is {k!r} and max_concurrency is {max_concurrency!r}; expected integers")
    if not isinstance(trajectories, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"trajectories is {type_of(trajectories)}; expected a list of finished episodes")
    chosen: list[tuple[Trajectory, list[int]]] = []
    for trajectory in trajectories:
        if not isinstance(trajectory, Trajectory):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"trajectories has {type_of(trajectory)}; expected finished episodes")
        steps = [at for at in _breaks(trajectory) if k and _number(seed, trajectory.id, at) < share * 2**64]
        if steps:
            chosen.append((trajectory, steps))
    if not chosen:
        return []
    settings = PlaySettings(env, dict(env_options or {}), policy, **check_deadlines(deadlines))
    return run(_values(settings, chosen, k, seed, max_concurrency, on_trajectory))


def _number(*parts: object) -> int:
    """Return a number from 0 to 2**64 - 1 that depends on the parts alone."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big")


def _breaks(trajectory: Trajectory) -> list[int]:
    """Return the indices of the steps whose break has a value."""
    if trajectory.status == "error":
        return []
    return [
        at
        for at, step in enumerate(trajectory.steps)
        if step.break_ is not None
        and step.break_.reason in _FORGETTING
        and step.parts
        and trajectory.contexts[step.context].error is None
        and not trajectory.is_copied(step)
        and not trajectory.is_copied(trajectory.steps[_reply_before(trajectory, at)])
    ]


def _reply_before(trajectory: Trajectory, at: int) -> int:
    """Return the index of the last step before one in the same context."""
    name = trajectory.steps[at].context
    return next(index for index in range(at - 1, -1, -1) if trajectory.steps[index].context == name)


def _cause(trajectory: Trajectory, at: int) -> int:
    """Return the index of the step whose reply caused a break: its summary's, or else the last in its context."""
    step, before = trajectory.steps[at], _reply_before(trajectory, at)
    if step.break_ is not None and step.break_.reason == "summary":
        for index in range(at - 1, before, -1):
            writer = trajectory.steps[index]
            is_summary = writer.base == step.context and is_summary_of(writer.context, step.context)
            if is_summary and trajectory.contexts[writer.context].error is None:
                return index
    return before


async def _values(
    settings: PlaySettings,
    chosen: Sequence[tuple[Trajectory, list[int]]],
    k: int,
    seed: int,
    max_concurrency: int,
    on_trajectory: Callable[[Trajectory], Any] | None,
) -> list[BreakValue]:
    """Return the values of breaks, each given by its episode and the index of its step; see `break_values`."""
    player, room = Player(settings), asyncio.Semaphore(max_concurrency)
    found: list[list[BreakValue]] = [[] for _ in chosen]
    left = enumerate(chosen)

    async def play(branch: Env, trajectory: Trajectory, at: int, number: int) -> Trajectory:
        """Play on from a break, as the pair with that number of the episode's plays."""
        if branch.trajectory is not None:
            return branch.trajectory
        name = f"{trajectory.id}{FORK}{number + 1}"

        def fork() -> Env:
            other = branch.fork()
            other.episode.header = replace(branch.episode.header, id=name)
            return other

        of_play = _number(seed, trajectory.id, at, number) >> 32
        job = EpisodeJob(number, trajectory.env, name, trajectory.group_id or "", of_play, {}, fork)
        async with room:
            played = (await player.play(job)).trajectory
        if on_trajectory is not None:
            on_trajectory(played)
        return played

    async def work() -> None:
        """Measure the breaks of one episode after the other, until none is left."""
        for index, (trajectory, steps) in left:
            thread, what = MethodThread(), f"repeating {trajectory.id}"
            env: Env = await player.call(None, thread, "making the environment", settings.make_env)
            if not index:  # else an unknown policy would fail in each play
                find_policy(settings.policy, env, None)
            own = None if env.blocking is False else thread
            try:
                replay = _Replay(trajectory, env)
                for count, at in enumerate(steps):
                    branches: tuple[Env, Env] = await player.call(None, own, what, partial(replay.fork, at))
                    numbers = range(count * k, count * k + k)
                    try:
                        plays = await run_all(
                            play(branch, trajectory, at, number) for number in numbers for branch in branches
                        )
                    finally:
                        for branch in branches:
                            await player.call(None, own, "close()", branch.close)
                    found[index].append(_value(trajectory, at, plays))
            finally:
                await player.call(None, own, "close()", env.close)
                thread.stop()

    try:
        await run_all(work() for _ in range(math.ceil(max_concurrency / (2 * k))))
    finally:
        await player.aclose()
    return [value for values in found for value in values]


def _value(trajectory: Trajectory, at: int, plays: Sequence[Trajectory]) -> BreakValue:
    """Return the value of a break from its plays: pairs of one with the break and one without it."""
    step, cause = trajectory.steps[at], _cause(trajectory, at)
    assert step.break_ is not None
    ended = [play.status != "error" and play.is_scored(step.context) for play in plays]
    rewards = [play.reward_of(step.context) for play in plays]
    whole = [index for index in range(0, len(plays), 2) if ended[index] and ended[index + 1]]
    differences = [rewards[index] - rewards[index + 1] for index in whole]
    sampled = [one for play in plays for one in play.steps if play.id != trajectory.id and not play.is_copied(one)]
    reply = trajectory.steps[cause]
    return BreakValue(
        trajectory_id=trajectory.id,
        step=at,
        break_=step.break_,
        cause_step=cause,
        cause=(reply.context, reply.action_start, reply.stop),
        reward_dropped=fmean(rewards[index] for index in whole) if whole else math.nan,
        reward_kept=fmean(rewards[index + 1] for index in whole) if whole else math.nan,
        standard_error=stdev(differences) / math.sqrt(len(whole)) if len(whole) > 1 else math.nan,
        pairs=len(whole),
        failed=ended.count(False),
        sampled_tokens=sum(one.stop - one.action_start for one in sampled),
    )


class _Replay:
    """Repeats the recorded actions of an episode, and forks it at its breaks, in order.

    Args:
        trajectory: The episode.
        env: A fresh environment with the same options.

    Raises:
        EpisodeError: If it cannot be forked.
        CannotReplay: If the episode cannot be repeated in it.
    """

    def __init__(self, trajectory: Trajectory, env: Env) -> None:
        if (why := driver_of(env).why_no_fork) is not None:
            raise EpisodeError(
                f"break_values forks episodes, and {env.name} cannot be copied: {why}. Its breaks have no value: train "
                "their causes with the credit of the outcome"
            )
        self._options = replay_options(trajectory, env)
        self._trajectory, self._env = trajectory, env
        self._next: int | None = None
        """The index of the step whose action is due; None before the reset."""

    async def fork(self, at: int) -> tuple[Env, Env]:
        """Return the episode where a step is due whose observation is a break: with the break, and without it.

        The second episode may be over: the context was full.
        """
        trajectory, env, before = self._trajectory, self._env, _reply_before(self._trajectory, at)
        if self._next is None or before < self._next:  # a sub-agent with a break acted in between
            await env.areset(seed=trajectory.seed, options=self._options)
            self._next = 0
        for index in range(self._next, before):
            await self._take(env, index)
        kept = env.fork()
        kept.episode.header = env.episode.header
        kept.episode.contexts[trajectory.steps[at].context].skips_rewrite = True
        for index in range(before, at):
            await self._take(env, index)
            # Without the break, no summary is written.
            is_due = kept.trajectory is None and kept.pending()[0].context == trajectory.steps[index].context
            if is_due:
                await self._take(kept, index)
        self._next = at
        self._check(at)
        dropped = env.fork()
        for branch in (dropped, kept):
            tokens = dict.fromkeys(branch.episode.contexts, 0)
            tokens |= {step.context: step.stop for step in trajectory.steps[:at] if step.context in tokens}
            origins = [*trajectory.origins, Origin(trajectory.id, tokens)]
            branch.episode.header = replace(env.episode.header, origins=origins)
        return dropped, kept

    async def _take(self, env: Env, index: int) -> None:
        """Take the recorded action of a step."""
        step = self._trajectory.steps[index]
        if env is self._env:
            self._check(index)
        for action in recorded_actions(step, self._trajectory.contexts[step.context]):
            await env.astep(action)

    def _check(self, index: int) -> None:
        """Check that the observation that is due is the recorded one.

        Raises:
            CannotReplay: If it is not.
        """
        step = self._trajectory.steps[index]
        if self._env.trajectory is None:
            due, log = self._env.pending()[0], self._trajectory.contexts[step.context]
            is_same = np.array_equal(due.tokens, log.tokens[step.start : step.action_start])
            if is_same and (due.context, due.keep) == (step.context, step.keep):
                return
        raise CannotReplay(
            f"step {index + 1} of {self._trajectory.id!r} cannot be repeated in {self._env!r}: its observation is not "
            "the recorded one. Give the options that the episode was played with; if they are the same, the "
            "environment is not deterministic, and break values are not defined for it"
        )
