"""The statistics of a run as named numbers, for displays and trackers. docs/how-to/scale.md lists the names."""

import math
import time
from collections import deque
from collections.abc import Mapping

from .._visible import on_one_line
from ._statistics import Statistics

WINDOW_S = 60.0
"""The time over which the rates are measured, in seconds."""
_MAX_NAME = 100
"""The longest part of a name that comes from a record, in characters."""


class Rates:
    """Measures how many episodes, steps and tokens a run does per second, over the last `WINDOW_S` seconds.

    Args:
        statistics: The statistics of the run.
    """

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._counts: deque[tuple[float, int, int, int]] = deque()
        self.count()

    def count(self) -> None:
        """Note what the run has done by now. The rates are as recent as the last call."""
        statistics, play = self._statistics, self._statistics.play
        now = time.monotonic()
        while len(self._counts) > 1 and now - self._counts[0][0] > WINDOW_S:
            self._counts.popleft()
        self._counts.append((now, statistics.episodes, play.steps, play.sampled_tokens))

    def scalars(self) -> dict[str, float]:
        """Return the rates by name."""
        (began, *first), (ended, *last) = self._counts[0], self._counts[-1]
        seconds = max(ended - began, 1e-3)
        rates = [(after - before) / seconds for before, after in zip(first, last, strict=True)]
        names = ("episodes_per_second", "steps_per_second", "tokens_per_second")
        return {f"rollouts/{name}": rate for name, rate in zip(names, rates, strict=True)}


def scalars(statistics: Statistics) -> dict[str, float]:
    """Return the statistics of a run by name. What is not known yet, such as a mean reward of nothing, is left out."""
    play = statistics.play
    n_waited = sum(play.waiting_s.values())
    values: dict[str, float] = {
        "rollouts/episodes": statistics.resumed + statistics.episodes,
        "rollouts/total": statistics.total,
        "rollouts/resumed": statistics.resumed,
        "rollouts/elapsed_s": statistics.elapsed_s,
        "rollouts/steps": play.steps,
        "rollouts/sampled_tokens": play.sampled_tokens,
        "rollouts/scored": statistics.scored,
        "rollouts/reward_mean": statistics.mean_reward,
        "rollouts/stale": statistics.stale,
        "rollouts/abandoned": play.abandoned,
        "rollouts/lag_p50_s": play.lag.percentile(50),
        "rollouts/lag_p99_s": play.lag.percentile(99),
        "rollouts/lag_max_s": play.lag.largest_s,
        **_named("rollouts/not_scored", {_snake(name): n for name, n in statistics.not_scored.items()}),
        **_named("rollouts/failures", statistics.failures),
        **_named("rollouts/errors", statistics.errors),
        **_named("rollouts/retries", play.retries),
        **_named("rollouts/waiting", play.waiting_s, n_waited),
        **_named("rewards", statistics.named_rewards, statistics.scored),
        **_named("metrics", statistics.metrics, statistics.completed),
        **_named("stop_reasons", statistics.stop_reasons),
        **_named("breaks", statistics.breaks),
    }
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _snake(text: str) -> str:
    return text.replace(" ", "_")


def _named(group: str, numbers: Mapping[str, float], divisor: float = 1) -> dict[str, float]:
    """Return numbers by their full names. Names that come from records are made safe to print."""
    if not divisor:
        return {}
    return {f"{group}/{on_one_line(name)[:_MAX_NAME]}": number / divisor for name, number in numbers.items()}
