"""The statistics of a run, and the same as named numbers, for displays and trackers.

docs/how-to/scale.md lists the names.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from .._visible import on_one_line
from ..trajectories._tally import Tally, sum_by_name
from ..trajectories._trajectory import Trajectory

WINDOW_S = 60.0
"""The time over which the rates are measured, in seconds."""
_MAX_NAME = 100
"""The maximum length of a part of a name that comes from a record, in characters."""


@dataclass(slots=True)
class Lag:
    """The delays of an event loop: a histogram with buckets of a fifth of an octave.

    A loop is late if it is busy, or blocked by a function that waits. Percentiles are exact to 15 %.
    """

    buckets: Counter[int] = field(default_factory=Counter[int])
    """The number of delays in each bucket."""
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
    """The statistics of playing episodes in one process.

    Attributes:
        retries: The number of episodes that began again after an infrastructure error, by the error's type.
        request_retries: The number of requests that policies on servers sent again, by cause; see
            `envsdk.policies.Usage`.
        abandoned: The number of methods that did not return in time, so that their environment and its worker were
            replaced.
        waiting_s: Time that episodes waited, in seconds, by cause: `policy`; `method`;
            `turn` (for the event loop); `pause`.
        steps: The number of steps that were answered so far, including those of running episodes and failed attempts.
        sampled_tokens: The number of tokens in their answers.
        lag: The delays of the event loop.
    """

    retries: Counter[str] = field(default_factory=Counter[str])
    request_retries: Counter[str] = field(default_factory=Counter[str])
    abandoned: int = 0
    waiting_s: dict[str, float] = field(default_factory=dict[str, float])
    steps: int = 0
    sampled_tokens: int = 0
    lag: Lag = field(default_factory=Lag)

    def waited(self, cause: str, seconds: float) -> None:
        """Count time that an episode waited."""
        self.waiting_s[cause] = self.waiting_s.get(cause, 0.0) + seconds

    def merge(self, other: "PlayStatistics") -> None:
        """Add the statistics of another process."""
        self.retries.update(other.retries)
        self.request_retries.update(other.request_retries)
        self.abandoned += other.abandoned
        self.waiting_s = sum_by_name((self.waiting_s, other.waiting_s))
        self.steps += other.steps
        self.sampled_tokens += other.sampled_tokens
        self.lag.merge(other.lag)


@dataclass(slots=True)
class Statistics:
    """The statistics of a run.

    Attributes:
        total: The number of episodes of the run.
        resumed: The number of them that were in the run folder already.
        tally: The facts of those that ended since the run began, failed and stale ones included. The metrics are those
            of the episodes that did not fail.
        stale: The number of episodes that were too old (`max_staleness`).
        read_play: Returns the statistics of playing the episodes; empty ones before the run begins.
        began_at: When the run began, on the clock of `time.monotonic`.
        ended_at: When it ended; None before.
    """

    total: int = 0
    resumed: int = 0
    tally: Tally = field(default_factory=Tally)
    stale: int = 0
    read_play: Callable[[], PlayStatistics] = PlayStatistics
    began_at: float = field(default_factory=time.monotonic)
    ended_at: float | None = None

    @property
    def play(self) -> PlayStatistics:
        """The statistics of playing the episodes."""
        return self.read_play()

    @property
    def elapsed_s(self) -> float:
        """The time since the run began, in seconds."""
        return (time.monotonic() if self.ended_at is None else self.ended_at) - self.began_at

    @property
    def episodes(self) -> int:
        """The number of episodes that ended since the run began."""
        return self.tally.episodes

    @property
    def failures(self) -> Mapping[str, int]:
        """The number of them that failed, by `Trajectory.error_kind`."""
        return self.tally.failures

    @property
    def mean_reward(self) -> float:
        """The mean reward of the episodes that were scored; NaN if none was."""
        return math.nan if self.tally.mean_reward is None else self.tally.mean_reward

    def add(self, trajectory: Trajectory) -> None:
        """Count an episode that ended."""
        facts = Tally.of(trajectory)
        self.tally += replace(facts, metrics={}) if facts.failed else facts


class Rates:
    """Measure the episodes, steps and tokens of a run per second, over the last `WINDOW_S` seconds.

    Args:
        statistics: The statistics of the run.
    """

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._counts: deque[tuple[float, int, int, int]] = deque()
        self.count()

    def count(self) -> None:
        """Record the current counts. The rates are as recent as the last call."""
        statistics, play = self._statistics, self._statistics.play
        now = time.monotonic()
        while len(self._counts) > 1 and now - self._counts[0][0] > WINDOW_S:
            self._counts.popleft()
        self._counts.append((now, statistics.episodes, play.steps, play.sampled_tokens))

    def scalars(self) -> dict[str, float]:
        """Return the rates by name."""
        (began, *first), (ended, *last) = self._counts[0], self._counts[-1]
        seconds = max(ended - began, 1e-3)
        names = ("episodes_per_second", "steps_per_second", "tokens_per_second")
        return {
            f"rollouts/{name}": (after - before) / seconds
            for name, before, after in zip(names, first, last, strict=True)
        }


def scalars(statistics: Statistics) -> dict[str, float]:
    """Return the statistics of a run by name, without those that are not known yet, such as the first mean reward."""
    play, facts = statistics.play, statistics.tally
    values: dict[str, float] = {
        "rollouts/episodes": statistics.resumed + facts.episodes,
        "rollouts/total": statistics.total,
        "rollouts/resumed": statistics.resumed,
        "rollouts/elapsed_s": statistics.elapsed_s,
        "rollouts/steps": play.steps,
        "rollouts/sampled_tokens": play.sampled_tokens,
        "rollouts/scored": facts.scored,
        "rollouts/reward_mean": statistics.mean_reward,
        "rollouts/stale": statistics.stale,
        "rollouts/abandoned": play.abandoned,
        "rollouts/lag_p50_s": play.lag.percentile(50),
        "rollouts/lag_p99_s": play.lag.percentile(99),
        "rollouts/lag_max_s": play.lag.largest_s,
    }
    groups: dict[str, tuple[Mapping[str, float], float]] = {  # the numbers, and what to divide them by
        "rollouts/not_scored": ({name.replace(" ", "_"): n for name, n in facts.not_scored.items()}, 1),
        "rollouts/failures": (facts.failures, 1),
        "rollouts/errors": (facts.errors, 1),
        "rollouts/retries": (play.retries, 1),
        "rollouts/request_retries": (play.request_retries, 1),
        "rollouts/waiting": (play.waiting_s, sum(play.waiting_s.values())),
        "rewards": (facts.rewards, facts.scored),
        "metrics": (facts.metrics, facts.episodes - facts.failed),
        "stop_reasons": (facts.stop_reasons, 1),
        "breaks": (facts.breaks, 1),
    }
    for group, (numbers, divisor) in groups.items():
        for name, number in numbers.items() if divisor else ():
            values[f"{group}/{on_one_line(name)[:_MAX_NAME]}"] = number / divisor  # safe to print
    return {name: value for name, value in values.items() if math.isfinite(value)}
