"""The episodes that the checks examine: each is run once, cached, and interrupted if it takes too long.

At the end are descriptions for a reader: of an episode, and of the difference between two.
"""

import asyncio
import contextlib
import json
import random
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from .._registry import spec_of
from .._visible import brief
from ..authoring._env import Env
from ..authoring._event_loops import run
from ..contexts._protocol import Action
from ..limits import STEPS_WITHOUT_LIMIT
from ..policies._find import find_policy
from ..policies._policy import request_of
from ..policies._vocabularies import PolicyWrapper
from ..rollouts import arollout
from ..trajectories._trajectory import Trajectory
from ._env_subject import Subject
from ._reports import CheckFailure, NotPossible, described

# A time limit for code that may run too long, such as a loop, a wait, or a regular expression.


class TimeLimitExceeded(BaseException):
    """A time limit is over. It is not an `Exception`, so an environment does not catch it by mistake."""


@contextlib.contextmanager
def time_limit(limit_s: float, what: str) -> Generator[None]:
    """Interrupt the code inside after a time limit. Without signals (in other threads), raise when it has ended.

    Args:
        limit_s: The time limit, in seconds.
        what: The name of the code, for the error.

    Raises:
        TimeLimitExceeded: If the code took too long.
    """
    message = f"{what} did not end within {limit_s:g} s"
    started = time.monotonic()
    can_interrupt = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()

    def ring(*_: object) -> None:
        raise TimeLimitExceeded(message)

    if not can_interrupt:
        yield
    else:
        handler = signal.signal(signal.SIGALRM, ring)
        left_s, _ = signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            yield
        finally:  # a timer that was set before is restored
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            if left_s:
                signal.setitimer(signal.ITIMER_REAL, max(left_s - (time.monotonic() - started), 0.001))
    if time.monotonic() - started > limit_s:
        raise TimeLimitExceeded(message)


# Episodes.


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


NO_END = (
    f"after {MAX_REPLIES:,} replies the episode has not ended: return Turn(terminated=True) when the task is over, and "
    "set default_limits: ClassVar[Limits] = Limits(max_steps=...)"
)


class NoEnd(Exception):
    """An episode does not end."""


class EpisodeFailed(Exception):
    """An episode of a policy failed."""

    def __init__(self, policy: str, seed: int, error: BaseException) -> None:
        is_ours = isinstance(error, (NoEnd, TimeLimitExceeded, CheckFailure))
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
        self.few_seeds = seeds[:FEW]
        """The first seeds."""
        self.half_of_seeds = seeds[: max(FEW, len(seeds) // 2)]
        """The first half of the seeds, for checks that repeat whole episodes."""
        self.sample = subject.make()
        """An environment whose class and options are read, but that is never reset."""
        self.seed: int | None = None
        """The seed of the last episode."""
        self._played: dict[tuple[str, int, How], Trajectory | EpisodeFailed] = {}

    @cached_property
    def is_random(self) -> bool:
        """True if the environment is registered as nondeterministic."""
        spec = spec_of(type(self.sample), self.sample.config.model_dump()) or self.sample.spec
        return spec is not None and spec.nondeterministic

    @property
    def policy(self) -> str:
        """The name of the best policy: the reference policy, or the null policy if there is no reference policy."""
        return "reference" if self.has_reference else "null"

    @cached_property
    def has_reference(self) -> bool:
        """True if there is a reference policy. It may fail."""
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
            try:
                with self.attempt(seed, f"the {policy} policy"), closing(self.subject.make()) as env:
                    if how == "step":
                        env.reset(seed=seed)
                        step_with(env, policy, seed)
                    trajectory = trajectory_of(env) if how == "step" else roll_out(env, policy, seed)
                check_not_failed(trajectory, seed)
                self._played[key] = trajectory
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # an environment may raise anything
                self._played[key] = EpisodeFailed(policy, seed, error)
        self.seed, played = seed, self._played[key]
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
            raise NoEnd(NO_END)
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
            raise NoEnd(NO_END)
        env.step(sample())
        count += 1
    return count


def check_not_failed(trajectory: Trajectory, seed: int, what: str = "") -> None:
    """Check that an episode and all its sub-agents ended without an error.

    Raises:
        CheckFailure: If one failed.
    """
    if trajectory.status == "error":
        raise CheckFailure(f"{what}the episode failed: {trajectory.error}", seed)
    for name, log in trajectory.contexts.items():
        if log.error is not None and not log.error.startswith("the summary was rejected"):
            raise CheckFailure(f"{what}the sub-agent {name!r} failed: {log.error}", seed)


def trajectory_of(env: Env) -> Trajectory:
    """Return the trajectory of an episode that has ended."""
    assert env.trajectory is not None
    return env.trajectory


# Descriptions.


def transcript(trajectory: Trajectory) -> list[str]:
    """Return all messages of an episode, one string each."""
    texts: list[str] = []
    for name, message in [(name, message) for name, log in trajectory.contexts.items() for message in log.messages]:
        calls = [[call.name, call.arguments] for call in message.tool_calls]
        parts = [message.content, *([message.reasoning] if message.reasoning else []), *([calls] if calls else [])]
        parts += [f"<image {image.sha256[:12]}>" for image in message.images]
        written = json.dumps(parts[0] if len(parts) == 1 else parts, ensure_ascii=False)
        texts.append(f"{name}, {message.role}: {written}")
    return texts


def difference(first: Trajectory, second: Trajectory) -> str:
    """Describe the first difference between two trajectories."""
    texts = transcript(first), transcript(second)
    for one, other in zip(*texts, strict=False):
        if one != other:
            return f"{_around(one, other)!r} and {_around(other, one)!r}"
    if len(texts[0]) != len(texts[1]):
        more = max(texts, key=len)[min(map(len, texts))]
        return f"{len(texts[0])} messages and {len(texts[1])}; the first additional one is {brief(more, 120)}"
    rewards = first.reward, second.reward
    if rewards[0] != rewards[1]:
        return f"the messages are the same, but the rewards are {rewards[0]:g} and {rewards[1]:g}"
    records = first.to_json().decode(), second.to_json().decode()
    return f"the messages are the same, but the records have {_around(*records)!r} and {_around(*records[::-1])!r}"


def _around(text: str, other: str) -> str:
    """Return the part of a string around the first character that differs from another string."""
    same = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    start = max(0, same - 30)
    return f"{'...' if start else ''}{text[start : same + 50]}"


def cause_of(error: BaseException) -> str:
    """Return an identifier of a failure's cause: the exception's type, place, and text without values."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "", str(error))
    return f"{type(error).__name__} {where} {text}"
