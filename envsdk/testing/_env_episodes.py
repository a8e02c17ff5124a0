"""The episodes that the checks examine. Each is run once, cached, and interrupted if it takes too long."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Generator
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from .._registry import spec_of
from ..authoring._env import Env
from ..contexts._protocol import Action
from ..episodes._event_loops import run
from ..limits import STEPS_WITHOUT_LIMIT
from ..policies._find import find_policy
from ..policies._policy import request_of
from ..policies._vocabularies import PolicyWrapper
from ..rollouts import arollout
from ..trajectories._trajectory import Trajectory
from ._env_differences import cause_of, described
from ._env_subject import Subject
from ._env_time import TimeLimitExceeded, time_limit
from ._reports import Failure, NotPossible

EPISODE_S = 30.0
"""The time limit of an episode, in seconds."""
FEW = 4
"""The number of seeds for a check that runs additional episodes."""
NONDETERMINISTIC = "it is registered as nondeterministic"
ENDS = "episodes end"
"""The name of the check that reports an episode without an end."""
MAX_REPLIES = STEPS_WITHOUT_LIMIT - 1
"""The number of replies after which an episode counts as endless. After one more, envsdk would end it."""
NOT_REPRODUCIBLE = 'the same seed does not give the same bytes: see "same bytes"'
How: TypeAlias = Literal["rollout", "another rollout", "step"]


class NoEnd(Exception):
    """An episode does not end."""

    def __init__(self, replies: int) -> None:
        super().__init__(
            f"after {replies:,} replies the episode has not ended: return Turn(terminated=True) when the task is over, "
            "and set default_limits: ClassVar[Limits] = Limits(max_steps=...)"
        )


class EpisodeFailed(Exception):
    """An episode of a policy failed."""

    def __init__(self, policy: str, seed: int, error: BaseException) -> None:
        is_ours = isinstance(error, (NoEnd, TimeLimitExceeded, Failure))
        super().__init__(str(error) if is_ours else f"it raises {described(error)}")
        self.check = ENDS if isinstance(error, NoEnd) else f"{policy} policy"
        """The name of the check that reports it."""
        self.seed = seed
        self.cause = "" if is_ours else cause_of(error)
        self.is_missing = policy == "reference" and isinstance(error, NotImplementedError)


class Episodes:
    """The episodes of one environment, cached by policy and seed.

    Args:
        subject: The environment.
        seeds: The seeds of its episodes.
    """

    def __init__(self, subject: Subject, seeds: range) -> None:
        self.subject = subject
        self.seeds = seeds
        self.sample = subject.make()
        """An environment whose class and options are read, but that is never reset."""
        self.seed: int | None = None
        """The seed of the last episode."""
        self._played: dict[tuple[str, int, How], Trajectory | EpisodeFailed] = {}

    @property
    def few_seeds(self) -> range:
        """The first seeds."""
        return self.seeds[:FEW]

    @property
    def half_of_seeds(self) -> range:
        """The first half of the seeds, for checks that repeat whole episodes."""
        return self.seeds[: max(FEW, len(self.seeds) // 2)]

    @property
    def is_random(self) -> bool:
        """Whether the environment is registered as nondeterministic."""
        spec = spec_of(type(self.sample), self.sample.config.model_dump()) or self.sample.spec
        return spec is not None and spec.nondeterministic

    @property
    def policy(self) -> str:
        """The name of the best policy: the reference policy, or the null policy if there is no reference policy."""
        return "reference" if self.has_reference else "null"

    @cached_property
    def has_reference(self) -> bool:
        """Whether there is a reference policy. It may fail."""
        try:
            self.play("reference", self.seeds[0])
        except EpisodeFailed as failed:
            return not failed.is_missing
        return True

    @contextlib.contextmanager
    def attempt(self, seed: int, what: str = "the episode") -> Generator[None]:
        """Run an episode inside: failures get its seed, and its time is limited.

        The global random states are seeded, so an environment that uses them is still reproducible. One check reports
        that it uses them; the others need not.

        Raises:
            TimeLimitExceeded: If the episode takes longer than `EPISODE_S`.
        """
        self.seed = seed
        random.seed(seed)
        np.random.seed(seed % 2**32)
        with time_limit(EPISODE_S, what):
            yield

    def play(self, policy: str, seed: int, how: How = "rollout") -> Trajectory:
        """Run an episode of a new environment. The same arguments return the same trajectory object.

        Args:
            policy: The name of the policy.
            seed: The seed of the environment and the policy.
            how: With a rollout, with a second rollout, or with `step`.

        Raises:
            EpisodeFailed: If the episode fails.
        """
        key = (policy, seed, how)
        if key not in self._played:
            self._played[key] = self._play(policy, seed, how)
        played = self._played[key]
        self.seed = seed
        if isinstance(played, EpisodeFailed):
            raise played
        return played

    def is_reproducible(self, policy: str, seed: int) -> bool:
        """Return whether two episodes of a policy and a seed are equal."""
        if self.is_random:
            return False
        first, second = self.play(policy, seed), self.play(policy, seed, "another rollout")
        return first.to_json() == second.to_json()

    def reproducible(self, seed: int, how: How = "rollout") -> Trajectory:
        """Return an episode of the policy `self.policy` that can be compared with others.

        Raises:
            NotPossible: If the same seed does not give the same episode.
        """
        if self.is_random:
            raise NotPossible(NONDETERMINISTIC)
        if not self.is_reproducible(self.policy, seed):
            raise NotPossible(NOT_REPRODUCIBLE)
        return self.play(self.policy, seed, how)

    def _play(self, policy: str, seed: int, how: How) -> Trajectory | EpisodeFailed:
        try:
            with self.attempt(seed, f"the {policy} policy"), closing(self.subject.make()) as env:
                if how == "step":
                    env.reset(seed=seed)
                    step_with(env, policy, seed)
                trajectory = trajectory_of(env) if how == "step" else roll_out(env, policy, seed)
            check_not_failed(trajectory, seed)
            return trajectory
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an environment may raise anything
            return EpisodeFailed(policy, seed, error)


@contextlib.contextmanager
def closing(env: Env) -> Generator[Env]:
    """Close an environment at the end, and ignore errors, which a separate check reports."""
    try:
        yield env
    finally:
        with contextlib.suppress(Exception):
            env.close()


def roll_out(env: Env, policy: str, seed: int) -> Trajectory:
    """Roll out an episode. Concurrent sub-agents take turns.

    Raises:
        NoEnd: If the episode does not end.
    """
    sample_reply, count = find_policy(policy, env, seed), 0

    async def sample(reply: Any, prompt: Any, **request: Any) -> Action:
        nonlocal count
        count += 1
        if count > MAX_REPLIES:
            raise NoEnd(MAX_REPLIES)
        await asyncio.sleep(0)  # let concurrent sub-agents run
        return reply(prompt, **request)

    return run(arollout(env, PolicyWrapper(sample, sample_reply), seed=seed))


def sampler(env: Env, policy: str, seed: int) -> Callable[[], Action]:
    """Return a function that samples an action for the pending observation from a policy."""
    sample_reply = find_policy(policy, env, seed)

    def sample() -> Action:
        observation, info = env.pending()
        return sample_reply(env.prompt(), **request_of(observation, info, env.episode_id))

    return sample


def step_with(env: Env, policy: str, seed: int, replies: int | None = None) -> int:
    """Step with a policy, at most `replies` times or to the end. Return the number of steps.

    Raises:
        NoEnd: If the episode does not end.
    """
    sample, count = sampler(env, policy, seed), 0
    while env.trajectory is None and count != replies:
        if count == MAX_REPLIES:
            raise NoEnd(MAX_REPLIES)
        env.step(sample())
        count += 1
    return count


def check_not_failed(trajectory: Trajectory, seed: int, what: str = "") -> None:
    """Check that an episode and all its sub-agents ended without an error.

    Raises:
        Failure: If one failed.
    """
    if trajectory.status == "error":
        raise Failure(f"{what}the episode failed: {trajectory.error}", seed)
    for name, log in trajectory.contexts.items():
        if log.error is not None and not log.error.startswith("the summary was rejected"):
            raise Failure(f"{what}the sub-agent {name!r} failed: {log.error}", seed)


def trajectory_of(env: Env) -> Trajectory:
    """Return the trajectory of an episode that has ended."""
    assert env.trajectory is not None
    return env.trajectory
