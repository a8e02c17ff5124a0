"""What a run has done so far, in numbers."""

import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ..trajectories._trajectory import Trajectory


@dataclass(slots=True)
class Lag:
    """How late an event loop runs what is due: a histogram with buckets of a fifth of an octave.

    A loop that is busy, or blocked by a function that waits, is late. Percentiles are exact to 15 %.
    """

    buckets: Counter[int] = field(default_factory=Counter[int])
    """How many delays are in each bucket."""
    largest_s: float = 0.0
    """The longest delay, in seconds."""

    def add(self, seconds: float) -> None:
        """Count a delay, in seconds."""
        self.buckets[math.ceil(5 * math.log2(max(seconds, 1e-6)))] += 1
        self.largest_s = max(self.largest_s, seconds)

    def merge(self, other: "Lag") -> None:
        """Add the delays of another event loop."""
        self.buckets.update(other.buckets)
        self.largest_s = max(self.largest_s, other.largest_s)

    def percentile(self, percent: float) -> float:
        """Return a percentile, in seconds; 0.0 if nothing was measured."""
        left = self.buckets.total() * percent / 100
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                return min(2 ** (bucket / 5), self.largest_s)
        return 0.0


@dataclass(slots=True)
class PlayStatistics:
    """What happened while episodes were played in one process.

    Attributes:
        retries: How many episodes began again after an infrastructure error, by the error's type.
        abandoned: How many methods never returned in time, so that their environment and its worker were replaced.
        waiting_s: Time that episodes waited, in seconds, by cause: `policy`; `method`;
            `turn` (for the event loop); `pause`.
        steps: How many steps were answered so far, those of episodes that run and of attempts that failed included.
        sampled_tokens: How many tokens their answers have.
        lag: How late the event loop ran.
    """

    retries: Counter[str] = field(default_factory=Counter[str])
    abandoned: int = 0
    waiting_s: dict[str, float] = field(default_factory=dict[str, float])
    steps: int = 0
    sampled_tokens: int = 0
    lag: Lag = field(default_factory=Lag)

    def merge(self, other: "PlayStatistics") -> None:
        """Add what happened in another process."""
        self.retries.update(other.retries)
        self.abandoned += other.abandoned
        _add(self.waiting_s, other.waiting_s)
        self.steps += other.steps
        self.sampled_tokens += other.sampled_tokens
        self.lag.merge(other.lag)


class HasPlayStatistics(Protocol):
    """What plays episodes."""

    @property
    def statistics(self) -> PlayStatistics:
        """What happened so far."""
        ...


@dataclass(slots=True)
class Statistics:
    """What a run has done so far.

    Attributes:
        total: How many episodes the run has.
        resumed: How many of them were in the run folder already.
        episodes: How many ended since the run began, failed and stale ones included.
        steps: Their steps.
        sampled_tokens: Their sampled tokens.
        scored: How many of them were scored; see `Trajectory.not_scored_because`.
        not_scored: How many were not, by reason.
        rewards: The sum of the rewards of those that were scored.
        named_rewards: The sum of each named reward of those that were scored. They add up to `rewards`.
        metrics: The sum of each metric over the steps of those that did not fail.
        breaks: How many breaks were declared, by reason.
        failures: How many failed, by `Trajectory.error_kind`.
        errors: How many failed, by the type of the error.
        stop_reasons: How many ended for each reason.
        stale: How many were too old (`max_staleness`).
        player: What plays them; None before the run begins.
        began_at: When the run began, on the clock of `time.monotonic`.
        ended_at: When it ended; None before.
    """

    total: int = 0
    resumed: int = 0
    episodes: int = 0
    steps: int = 0
    sampled_tokens: int = 0
    scored: int = 0
    not_scored: Counter[str] = field(default_factory=Counter[str])
    rewards: float = 0.0
    named_rewards: dict[str, float] = field(default_factory=dict[str, float])
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    breaks: Counter[str] = field(default_factory=Counter[str])
    failures: Counter[str] = field(default_factory=Counter[str])
    errors: Counter[str] = field(default_factory=Counter[str])
    stop_reasons: Counter[str] = field(default_factory=Counter[str])
    stale: int = 0
    player: "HasPlayStatistics | None" = None
    began_at: float = field(default_factory=time.monotonic)
    ended_at: float | None = None

    @property
    def play(self) -> PlayStatistics:
        """What happened while the episodes were played."""
        return PlayStatistics() if self.player is None else self.player.statistics

    @property
    def elapsed_s(self) -> float:
        """The time since the run began, in seconds."""
        return (time.monotonic() if self.ended_at is None else self.ended_at) - self.began_at

    @property
    def mean_reward(self) -> float:
        """The mean reward of the episodes that were scored; NaN if there is none."""
        return self.rewards / self.scored if self.scored else math.nan

    @property
    def completed(self) -> int:
        """How many episodes did not fail."""
        return self.episodes - self.failures.total()

    def add(self, trajectory: Trajectory) -> None:
        """Count an episode that ended."""
        self.episodes += 1
        self.steps += len(trajectory.steps)
        self.sampled_tokens += trajectory.sampled_tokens
        self.stop_reasons[trajectory.stop_reason] += 1
        self.breaks.update(break_.reason for break_ in trajectory.breaks)
        if trajectory.status == "error":
            self.failures[trajectory.error_kind or "environment"] += 1
            self.errors[(trajectory.error or "").partition(":")[0]] += 1
        else:
            for step in trajectory.steps:
                _add(self.metrics, step.metrics)
        if because := trajectory.not_scored_because:
            self.not_scored[because] += 1
        else:
            self.scored += 1
            self.rewards += trajectory.reward
            for step in trajectory.steps:
                _add(self.named_rewards, step.rewards)


def _add(sums: dict[str, float], numbers: Mapping[str, float]) -> None:
    """Add named numbers to sums."""
    for name, number in numbers.items():
        sums[name] = sums.get(name, 0.0) + number
