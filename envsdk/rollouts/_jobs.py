"""The parts of a run: jobs, one for each episode, and groups of episodes of one task."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from .._visible import brief
from ..authoring._driver import check_seed, seeds_of
from ..authoring._env import Env
from ..authoring.tasks import is_sequence
from ..errors import ConfigError
from ..trajectories._trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class EpisodeJob:
    """An episode to play.

    Attributes:
        index: Its number in the run, from 0.
        env: The name of the environment.
        id: The id of its trajectory.
        group_id: The id that the episodes of one task share.
        seed: The seed of the environment and of a built-in policy.
        task: The options of `reset` that choose the task: `{"task": ...}`, or an empty mapping.
        fork: Makes the environment, with a running episode that is continued and closed. None resets one of the
            player's environments.
    """

    index: int
    env: str
    id: str
    group_id: str
    seed: int | None
    task: Mapping[str, Any]
    fork: Callable[[], Env] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options of `reset`."""
        return {**self.task, "episode_id": self.id, "group_id": self.group_id}


@dataclass(frozen=True, slots=True)
class Group:
    """The episodes of one task.

    Attributes:
        id: The `group_id` of its trajectories.
        trajectories: Those that were reported, in the order of their ids' numbers; failed ones, too.
        size: The planned number of episodes.
    """

    id: str
    trajectories: tuple[Trajectory, ...]
    size: int

    @property
    def is_whole(self) -> bool:
        """Whether the group is complete: no episode failed, and none was dropped."""
        return len(self.trajectories) == self.size and all(one.status != "error" for one in self.trajectories)


def jobs_of(env: Env, seeds: object, tasks: object, group_size: int) -> list[EpisodeJob]:
    """Return the jobs of a run: `group_size` episodes for each seed or task.

    The first of a group has the group's id, and the others are numbered. A seed that occurs several times makes a
    larger group.

    Args:
        env: The environment.
        seeds: The seeds; see `Rollouts`. None if there are tasks.
        tasks: The number of tasks, which are the first ones of `env.tasks`; or the tasks themselves.
        group_size: The number of episodes of each seed or task.

    Raises:
        ConfigError: If the environment has fewer tasks, or an argument is not a sequence of seeds or tasks.
    """
    given: Any = seeds_of(seeds) if tasks is None else tasks
    if tasks is not None and isinstance(given, int) and not isinstance(given, bool):
        if env.tasks is None:
            raise ConfigError(
                f"tasks is {given}, but {env.name} has no task data: pass seeds=range({given}), or a sequence of tasks"
            )
        if not 1 <= given <= len(env.tasks):
            raise ConfigError(f"tasks is {given}, but {env.name} has {len(env.tasks)} tasks; expected 1 to that")
        given = range(given)
    if not is_sequence(given):
        raise ConfigError(f"tasks is {brief(tasks)}; expected the number of tasks, or a sequence of tasks")
    jobs: list[EpisodeJob] = []
    sizes = Counter[str]()
    for index, one in enumerate(cast("Sequence[Any]", given)):
        seed: int | None = check_seed(one) if tasks is None else index
        task: dict[str, Any] = {} if tasks is None else {"task": one}
        group_id = f"{env.name}/{one}" if tasks is None else f"{env.name}/task-{index}"
        for _ in range(group_size):
            number = sizes[group_id]
            name = f"{group_id}#{number}" if number else group_id
            jobs.append(EpisodeJob(len(jobs), env.name, name, group_id, seed, task))
            sizes[group_id] += 1
    return jobs
