"""Choose tasks by their success rate: tasks that are always or never solved give no gradient."""

import json
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Self

import numpy as np

from .._visible import brief
from ..errors import ConfigError
from ..trajectories._trajectory import Trajectory
from ._player import check_count


class TaskSampler:
    """Draws tasks by their success rate: the weight of a task is `p * (1 - p)`, plus an equal share for each task.

    ```python
    sampler = TaskSampler(range(1000), seed=0)
    for update in range(100):
        group = Rollouts("envsdk/Calculator-v1", policy, seeds=sampler.draw(16), group_size=8).run()
        sampler.update(group)
    ```

    `p` is estimated from the episodes so far: `(successes + 1) / (episodes + 2)`, where older episodes count less,
    since the model changes. So tasks that were never tried have the largest weight.

    Source: `p * (1 - p)` is the variance of a success, which bounds what a policy gradient learns from a task: T.
    Foster and J. Foerster, "Learning to Reason at the Frontier of Learnability", 2025, arXiv:2502.12272; A. Rutherford
    et al., "No Regrets", 2024, arXiv:2408.15099.

    Args:
        tasks: The tasks: seeds or other values that differ, such as `range(1000)`.
        seed: The seed of the draws. The same seed and updates give the same draws.
        uniform: The share of draws that ignore success rates, from 0 to 1, so that no task is forgotten.
        decay: How much a task's earlier episodes count after a new one, from 0 to 1.
        is_success: Whether an episode solved its task; by default, whether its reward is above 0.5.
        task_of: The task of a trajectory; by default its seed.

    Raises:
        ConfigError: If there is no task, a task appears twice, or an argument is not valid.
    """

    def __init__(
        self,
        tasks: Sequence[Hashable],
        *,
        seed: int = 0,
        uniform: float = 0.1,
        decay: float = 0.9,
        is_success: Callable[[Trajectory], bool] | None = None,
        task_of: Callable[[Trajectory], Hashable] | None = None,
    ) -> None:
        self.tasks = list(tasks)
        self._places = {task: place for place, task in enumerate(self.tasks)}
        if not self.tasks or len(self._places) < len(self.tasks):
            raise ConfigError(f"tasks is {brief(tasks)}; expected at least one task, and each once")
        for name, value in (("uniform", uniform), ("decay", decay)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"{name} is {brief(value)}; expected a number from 0 to 1")
        self._uniform, self._decay = uniform, decay
        self._is_success, self._task_of = is_success, task_of
        self._random = np.random.default_rng(seed)
        self._successes = np.zeros(len(self.tasks))
        self._episodes = np.zeros(len(self.tasks))

    @property
    def success_rates(self) -> dict[Hashable, float]:
        """The estimated success rate of each task."""
        return dict(zip(self.tasks, ((self._successes + 1) / (self._episodes + 2)).tolist(), strict=True))

    @property
    def probabilities(self) -> dict[Hashable, float]:
        """The probability of each task in a draw."""
        rates = np.array([*self.success_rates.values()])
        learnable = rates * (1 - rates)
        total = float(learnable.sum())
        share = learnable / total if total and math.isfinite(total) else np.full(len(rates), 1 / len(rates))
        weights = self._uniform / len(rates) + (1 - self._uniform) * share
        return dict(zip(self.tasks, weights.tolist(), strict=True))

    def draw(self, count: int) -> list[Any]:
        """Draw tasks, without repetition unless there are fewer tasks.

        Raises:
            ConfigError: If `count` is below 1.
        """
        check_count("count", count)
        drawn: list[int] = []
        while len(drawn) < count:
            size = min(count - len(drawn), len(self.tasks))
            weights = np.array([*self.probabilities.values()])
            # The keys of Efraimidis and Spirakis (2006): the largest keys are a draw without replacement.
            with np.errstate(divide="ignore"):
                keys = np.log(self._random.random(len(weights))) / weights
            drawn += np.argsort(-keys, kind="stable")[:size].tolist()
        return [self.tasks[place] for place in drawn]

    def update(self, trajectories: Iterable[Trajectory]) -> None:
        """Update the success rates with episodes.

        Failed episodes and those of other tasks are left out; without `is_success`, so are those that were not scored.
        """
        for trajectory in trajectories:
            place = self._places.get(trajectory.seed if self._task_of is None else self._task_of(trajectory))
            if place is None or trajectory.status == "error":
                continue
            if self._is_success is not None:
                is_solved = bool(self._is_success(trajectory))
            elif trajectory.scored_reward is None:
                continue
            else:
                is_solved = trajectory.reward > 0.5
            self._episodes[place] = self._episodes[place] * self._decay + 1
            self._successes[place] = self._successes[place] * self._decay + is_solved

    def state(self) -> str:
        """Return the counts and the random state as JSON, to continue a run with `restore`."""
        counts = [self._successes.tolist(), self._episodes.tolist()]
        return json.dumps({"counts": counts, "random": self._random.bit_generator.state})

    def restore(self, state: str) -> Self:
        """Continue from what `state` returned for the same tasks.

        Raises:
            ConfigError: If it is not the state of a sampler with the same number of tasks.
        """
        try:
            found = json.loads(state)
            successes, episodes = (np.array(counts, dtype=np.float64) for counts in found["counts"])
            if not (successes.shape == episodes.shape == (len(self.tasks),)):
                raise ValueError(f"it has {successes.size} tasks, and there are {len(self.tasks)}")
            self._random.bit_generator.state = found["random"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ConfigError(f"the state of a TaskSampler cannot be read: {error}") from error
        self._successes, self._episodes = successes, episodes
        return self
