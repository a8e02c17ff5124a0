"""Scores of played episodes: means with standard errors, pass@k and pass^k, and comparisons of two runs."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .._arguments import explain_arguments
from .._visible import brief
from ..errors import ConfigError
from ..trajectories._tally import Tally
from ..trajectories._trajectory import Trajectory

__all__ = ["Comparison", "Score", "compare", "rescored", "task_of"]

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a model in an environment.

    Episodes that were not scored are left out of the means: see `Trajectory.not_scored_because`.

    Attributes:
        episodes: How many episodes there are.
        scored: How many of them were scored.
        not_scored: How many were not, by reason: the two add up to `episodes`.
        not_scored_reward: The reward that they count with; None if they are left out.
        failed: How many of them failed, by the kind of the error.
        tasks: How many tasks have an episode that counts.
        reward: The mean over tasks of the mean reward of their episodes; NaN if none was scored.
        reward_error: The standard error of `reward`, over tasks: episodes of one task are not independent. NaN for
            fewer than two tasks.
        success: The mean over tasks of the share of episodes whose reward is at least `success_reward`.
        success_reward: The reward of a success.
        pass_at: For each k the probability that at least one of k episodes of a task is a success: the unbiased
            estimate from all n episodes of the task, 1 - C(n - c, k) / C(n, k) for c successes (Chen et al. 2021), as
            the mean over the tasks with at least k episodes that count.
        pass_all: For each k the probability that all of k episodes are (pass^k): C(c, k) / C(n, k).
        rewards: The mean of each named reward, over the episodes that have it.
        stop_reasons: How many episodes ended for each reason.
        breaks: How many breaks there are of each reason.
        steps: The mean number of steps of an episode that did not fail, and likewise for the next two.
        observed_tokens: Its observed tokens.
        sampled_tokens: Its sampled tokens.
        images: The images of its observations, each as often as it was observed.
        image_tokens: Their tokens, which are part of the observed ones.
    """

    episodes: int
    scored: int
    not_scored: dict[str, int]
    not_scored_reward: float | None
    failed: dict[str, int]
    tasks: int
    reward: float
    reward_error: float
    success: float
    success_reward: float
    pass_at: dict[int, float]
    pass_all: dict[int, float]
    rewards: dict[str, float]
    stop_reasons: dict[str, int]
    breaks: dict[str, int]
    steps: float
    observed_tokens: float
    sampled_tokens: float
    images: float = 0.0
    image_tokens: float = 0.0

    @classmethod
    def of(
        cls, trajectories: Iterable[Trajectory], *, success_reward: float = 1.0, not_scored: float | None = None
    ) -> "Score":
        """Score episodes. Those with the same `group_id` have the same task.

        Args:
            trajectories: The episodes.
            success_reward: The reward of a success.
            not_scored: The reward that an episode counts with if it was not scored: 0.0 where a leaderboard counts it
                as a failure of the model. None leaves it out.

        Raises:
            ConfigError: If there is no episode, or `not_scored` is not a finite number.
        """
        _check_not_scored(not_scored)
        everything, played = Tally(), Tally()  # played: those that did not fail
        rewards, named = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
        for trajectory in trajectories:
            facts = Tally.of(trajectory)
            everything += facts
            reward = not_scored if trajectory.scored_reward is None else trajectory.scored_reward
            if reward is not None:
                rewards[task_of(trajectory)].append(reward)
            if not facts.failed:
                played += facts
                for name, value in facts.rewards.items():
                    named[name].append(value)
        if not everything.episodes:
            raise ConfigError("there is no episode to score")
        means = np.array([np.mean(values) for values in rewards.values()])
        successes = [(len(values), sum(value >= success_reward for value in values)) for values in rewards.values()]
        unscored = sorted(everything.not_scored.items(), key=lambda item: -item[1])
        lengths = ("steps", "observed_tokens", "sampled_tokens", "images", "image_tokens")
        n_played = played.episodes or math.nan
        return cls(
            episodes=everything.episodes,
            scored=everything.scored,
            not_scored=dict(unscored),
            not_scored_reward=not_scored,
            failed=dict(sorted(everything.failures.items())),
            tasks=len(means),
            reward=float(means.mean()) if len(means) else math.nan,
            reward_error=float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else math.nan,
            success=float(np.mean([c / n for n, c in successes])) if successes else math.nan,
            success_reward=success_reward,
            pass_at=_by_k(successes, lambda n, c, k: 1 - math.comb(n - c, k) / math.comb(n, k)),
            pass_all=_by_k(successes, lambda n, c, k: math.comb(c, k) / math.comb(n, k)),
            rewards={name: float(np.mean(values)) for name, values in sorted(named.items())},
            stop_reasons=dict(sorted(everything.stop_reasons.items())),
            breaks=dict(sorted(played.breaks.items())),
            **{name: getattr(played, name) / n_played for name in lengths},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the score as JSON; a number that is not known is None."""
        return _without_nan(asdict(self))


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference between two runs over the same tasks.

    Attributes:
        tasks: How many tasks are compared: those of which both runs have an episode that counts.
        left_out: How many tasks are left out, because only one of the runs has such an episode.
        difference: The mean over these tasks of the first run's mean reward minus the second's.
        low: The lower end of its 95 % interval, from a paired bootstrap over tasks.
        high: The upper end.
        p_value: The two-sided probability of so large a difference by chance, from the same bootstrap.
    """

    tasks: int
    left_out: int
    difference: float
    low: float
    high: float
    p_value: float

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON."""
        return _without_nan(asdict(self))


def compare(
    first: Iterable[Trajectory],
    second: Iterable[Trajectory],
    *,
    resamples: int = 10_000,
    seed: int = 0,
    not_scored: float | None = None,
) -> Comparison:
    """Compare the rewards of two runs by a paired bootstrap: tasks are drawn with replacement, with both results.

    Args:
        first: The episodes of a run.
        second: The episodes of another run, over the same tasks. Tasks are matched by `group_id`.
        resamples: How many times to draw.
        seed: The seed of the draws.
        not_scored: The reward that an episode counts with if it was not scored. None leaves it out, and with it a task
            of which a run has no other episode.

    Raises:
        ConfigError: If fewer than two tasks are in both, or `not_scored` is not a finite number.
    """
    _check_not_scored(not_scored)
    one, other = _task_means(first, not_scored), _task_means(second, not_scored)
    # Sorted, so that the draws do not depend on the order in which the episodes ended.
    common = sorted(one.keys() & other.keys())
    if len(common) < 2:
        raise ConfigError(
            f"the runs have {len(common)} scored tasks in common ({len(one)} and {len(other)} in all); a comparison "
            "needs at least two tasks that both have, by `group_id`: the same environment, and the same seeds or tasks"
        )
    differences = np.array([one[task] - other[task] for task in common])
    drawn = bootstrap_means(differences, resamples, np.random.default_rng(seed))
    low, high = interval_of(drawn)
    left_out = len(one.keys() ^ other.keys())
    return Comparison(len(common), left_out, float(differences.mean()), low, high, p_value_of(drawn))


def bootstrap_means(values: "NDArray[np.float64]", resamples: int, rng: np.random.Generator) -> "NDArray[np.float64]":
    """Return the means of bootstrap resamples: each draws as many values as there are, with replacement.

    Args:
        values: float64, shape (n,): one for each task, because episodes of one task are not independent.
        resamples: How many times to draw.
        rng: The generator of the draws.

    Returns:
        float64, shape (resamples,).
    """
    return np.concatenate(
        [
            values[rng.integers(0, len(values), size=(min(500, resamples - begun), len(values)))].mean(1)
            for begun in range(0, resamples, 500)
        ]
    )


def interval_of(drawn: "NDArray[np.float64]") -> tuple[float, float]:
    """Return the 95 % interval of draws of a bootstrap: their percentiles 2.5 and 97.5."""
    low, high = np.quantile(drawn, [0.025, 0.975]).tolist()
    return low, high


def p_value_of(drawn: "NDArray[np.float64]") -> float:
    """Return the two-sided probability that a difference is 0, from the draws of a bootstrap."""
    below, above = (1 + np.count_nonzero(drawn <= 0)), (1 + np.count_nonzero(drawn >= 0))
    return float(min(1.0, 2 * min(below, above) / (1 + len(drawn))))


def rescored(trajectory: Trajectory, reward: Callable[[Trajectory], float | Mapping[str, float] | None]) -> Trajectory:
    """Return a stored episode with other rewards: nothing is sampled again.

    Args:
        trajectory: The episode, which stays as it is. One that failed is returned unchanged.
        reward: A function of an episode: its reward, its named rewards, or None if it is not scored.

    Raises:
        ConfigError: If the function returns something else.
    """
    if trajectory.status == "error" or not trajectory.steps:
        return trajectory
    returned: Any = reward(trajectory)
    named: dict[str, float] | None = None
    if returned is not None:
        given = cast("Mapping[Any, Any]", returned) if isinstance(returned, Mapping) else {"reward": returned}
        try:
            named = {str(name): float(value) for name, value in given.items()}
        except (TypeError, ValueError):
            named = {"": math.nan}
        if not all(map(math.isfinite, named.values())):
            raise ConfigError(
                f"the reward function returned {brief(returned)}; expected a number, numbers by name, or None"
            )
    steps = [replace(step, reward=None, rewards={}) for step in trajectory.steps]
    if named is not None:
        steps[-1] = replace(steps[-1], reward=math.fsum(named.values()), rewards=named)
    logs = {name: replace(log, reward=None) for name, log in trajectory.contexts.items()}
    return replace(trajectory, steps=steps, contexts=logs)


def task_of(trajectory: Trajectory) -> str:
    """Return the id of an episode's task."""
    return trajectory.id if trajectory.group_id is None else trajectory.group_id


def _check_not_scored(not_scored: Any) -> None:
    is_number = isinstance(not_scored, (int, float)) and not isinstance(not_scored, bool) and math.isfinite(not_scored)
    if not_scored is not None and not is_number:
        raise ConfigError(
            f"not_scored is {brief(not_scored)}; expected the reward of an episode that was not scored, such as "
            "0.0, or None to leave it out"
        )


def _task_means(trajectories: Iterable[Trajectory], not_scored: float | None) -> dict[str, float]:
    rewards = defaultdict[str, list[float]](list)
    for trajectory in trajectories:
        reward = not_scored if trajectory.scored_reward is None else trajectory.scored_reward
        if reward is not None:
            rewards[task_of(trajectory)].append(reward)
    return {task: float(np.mean(values)) for task, values in rewards.items()}


def _by_k(successes: Sequence[tuple[int, int]], estimate: Callable[[int, int, int], float]) -> dict[int, float]:
    """Return an estimate for each power of two up to the largest number of episodes of a task, and for that number."""
    most = max((n for n, _ in successes), default=0)
    ks = sorted({2**power for power in range(most.bit_length())} | ({most} if most else set()))
    return {k: float(np.mean([estimate(n, c, k) for n, c in successes if n >= k])) for k in ks}


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _without_nan(one) for name, one in cast("dict[Any, Any]", value).items()}
    return None if isinstance(value, float) and math.isnan(value) else value


explain_arguments(globals())
