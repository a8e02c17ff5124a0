"""Episodes that checks look at: played once, remembered, and cut off where they take too long."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Generator
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from ..authoring.env import Env
from ..contexts.protocol import Action
from ..episodes.event_loops import run
from ..limits import STEPS_WITHOUT_LIMIT
from ..policies.builtin import find_policy, request_of
from ..policies.vocabularies import Layer
from ..rollouts import arollout
from ..trajectories.trajectory import Trajectory
from .env_differences import cause_of, told
from .env_subject import Subject
from .env_time import Overtime, time_limit
from .reports import Failure, NotPossible

EPISODE_S = 30.0
"""How long an episode may take, in seconds."""
FEW = 4
"""How many seeds are enough for a check that plays episodes of its own."""
NONDETERMINISTIC = "it is registered as nondeterministic"
ENDS = "episodes end"
"""The check that says so if an episode does not."""
MAX_REPLIES = STEPS_WITHOUT_LIMIT - 1
"""An episode that has no end after so many replies has none: one more, and the SDK would end it."""
UNSTEADY = 'the same seed gives other bytes each time: see "same bytes"'
How: TypeAlias = Literal["rollout", "another rollout", "step"]


class NoEnd(Exception):
    """An episode goes on and on."""

    def __init__(self, replies: int) -> None:
        super().__init__(
            f"after {replies:,} replies the episode has not ended: return Turn(terminated=True) where the task is over "
            "and set default_limits: ClassVar[Limits] = Limits(max_steps=...)"
        )


class PlayFailed(Exception):
    """A policy could not play an episode."""

    def __init__(self, policy: str, seed: int, error: BaseException) -> None:
        super().__init__(str(error) if isinstance(error, (NoEnd, Overtime, Failure)) else f"it raises {told(error)}")
        self.check = ENDS if isinstance(error, NoEnd) else f"{policy} policy"
        """The check that reports it."""
        self.seed = seed
        self.cause = "" if isinstance(error, (NoEnd, Overtime, Failure)) else cause_of(error)
        self.is_missing = policy == "reference" and isinstance(error, NotImplementedError)


class Plays:
    """The episodes of one environment.

    Args:
        subject: The environment.
        seeds: What it is reset with.
    """

    def __init__(self, subject: Subject, seeds: range) -> None:
        self.subject = subject
        self.seeds = seeds
        self.sample = subject.make()
        """One that is never played: what its class and its options say."""
        self.seed: int | None = None
        """The seed of the episode that was played last."""
        self._played: dict[tuple[str, int, How], Trajectory | PlayFailed] = {}

    @property
    def few(self) -> range:
        """The first seeds."""
        return self.seeds[:FEW]

    @property
    def half(self) -> range:
        """The first half of the seeds, for checks that play whole episodes again."""
        return self.seeds[: max(FEW, len(self.seeds) // 2)]

    @property
    def is_random(self) -> bool:
        """Whether it was registered as one that does not always do the same."""
        return self.sample.spec is not None and self.sample.spec.nondeterministic

    @property
    def policy(self) -> str:
        """The policy that gets farthest: the reference policy; the null policy, if there is none."""
        return "reference" if self.has_reference else "null"

    @cached_property
    def has_reference(self) -> bool:
        """Whether there is a reference policy; it may fail."""
        try:
            self.play("reference", self.seeds[0])
        except PlayFailed as failed:
            return not failed.is_missing
        return True

    @contextlib.contextmanager
    def episode(self, seed: int, what: str = "the episode") -> Generator[None]:
        """What happens inside belongs to an episode: a failure has its seed, and it may take a while, but not longer.

        The global random states are set, so that an environment that uses them does what it does again and again; one
        check is about that, and no other has to be.

        Raises:
            Overtime: If it takes too long.
        """
        self.seed = seed
        random.seed(seed)
        np.random.seed(seed % 2**32)
        with time_limit(EPISODE_S, what):
            yield

    def play(self, policy: str, seed: int, how: How = "rollout") -> Trajectory:
        """The episode of a new environment that a policy plays; the same object for the same arguments.

        Args:
            policy: The policy's name.
            seed: What the environment is reset with.
            how: By a rollout, by another one, or with `step`.

        Raises:
            PlayFailed: If that raises.
        """
        key = (policy, seed, how)
        if key not in self._played:
            self._played[key] = self._play(policy, seed, how)
        played = self._played[key]
        self.seed = seed
        if isinstance(played, PlayFailed):
            raise played
        return played

    def is_steady(self, policy: str, seed: int) -> bool:
        """Whether two episodes of the same policy and seed are the same."""
        if self.is_random:
            return False
        first, second = self.play(policy, seed), self.play(policy, seed, "another rollout")
        return first.to_json() == second.to_json()

    def steady(self, seed: int, how: How = "rollout") -> Trajectory:
        """The episode that `policy` plays, if it is the same each time and may be compared.

        Raises:
            NotPossible: If it is another episode each time.
        """
        if self.is_random:
            raise NotPossible(NONDETERMINISTIC)
        if not self.is_steady(self.policy, seed):
            raise NotPossible(UNSTEADY)
        return self.play(self.policy, seed, how)

    def _play(self, policy: str, seed: int, how: How) -> Trajectory | PlayFailed:
        try:
            with self.episode(seed, f"the {policy} policy"), closed(self.subject.make()) as env:
                if how == "step":
                    env.reset(seed=seed)
                    step_on(env, policy, seed)
                trajectory = ended(env) if how == "step" else roll_out(env, policy, seed)
            refuse_failed(trajectory, seed)
            return trajectory
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an environment is anybody's code
            return PlayFailed(policy, seed, error)


@contextlib.contextmanager
def closed(env: Env) -> Generator[Env]:
    """Close an environment in the end; whether it can be closed is a check of its own."""
    try:
        yield env
    finally:
        with contextlib.suppress(Exception):
            env.close()


def roll_out(env: Env, policy: str, seed: int) -> Trajectory:
    """Roll out an episode; sub-agents side by side take turns.

    Raises:
        NoEnd: If it goes on and on.
    """
    ask, count = find_policy(policy, env, seed), 0

    async def sample(*arguments: Any, **options: Any) -> Action:
        nonlocal count
        count += 1
        if count > MAX_REPLIES:
            raise NoEnd(MAX_REPLIES)
        await asyncio.sleep(0)  # where others wait, they go on
        return ask(*arguments, **options)

    return run(arollout(env, Layer(sample, ask), seed=seed))


def sampler(env: Env, policy: str, seed: int) -> Callable[[], Action]:
    """A policy by its name, as a function that answers the observation that waits."""
    ask = find_policy(policy, env, seed)

    def sample() -> Action:
        observation, info = env.pending()
        return ask(env.prompt(), **request_of(observation, info, env.episode_id))

    return sample


def step_on(env: Env, policy: str, seed: int, replies: int | None = None) -> int:
    """Let a policy reply with `step`, so many times or up to the end; returns how often it replied.

    Raises:
        NoEnd: If there is no end.
    """
    sample, count = sampler(env, policy, seed), 0
    while env.trajectory is None and count != replies:
        if count == MAX_REPLIES:
            raise NoEnd(MAX_REPLIES)
        env.step(sample())
        count += 1
    return count


def refuse_failed(trajectory: Trajectory, seed: int, what: str = "") -> None:
    """Refuse an episode in which something failed, be it a sub-agent that hides it.

    Raises:
        Failure: It says what.
    """
    if trajectory.status == "error":
        raise Failure(f"{what}the episode failed: {trajectory.error}", seed)
    for name, log in trajectory.contexts.items():
        if log.error is not None and not log.error.startswith("the summary was rejected"):
            raise Failure(f"{what}the sub-agent {name!r} failed: {log.error}", seed)


def ended(env: Env) -> Trajectory:
    """The trajectory of an episode that is over."""
    assert env.trajectory is not None
    return env.trajectory
