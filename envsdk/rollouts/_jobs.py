"""The parts of a run: jobs, one for each episode, and groups of episodes of one task."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..authoring._driver import check_seed
from ..authoring._env import Env
from ..errors import ConfigError
from ..trajectories._trajectory import Trajectory

_Task: TypeAlias = tuple[str, int | None, Mapping[str, Any]]
"""The id of a group, its seed, and the options of `reset` that choose its task."""


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
    """

    index: int
    env: str
    id: str
    group_id: str
    seed: int | None
    task: Mapping[str, Any]

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


def jobs_of_seeds(name: str, seeds: object, group_size: int) -> list[EpisodeJob]:
    """Return the jobs of a run: `group_size` episodes for each seed.

    A seed that occurs several times makes a larger group.

    Raises:
        ConfigError: If `seeds` is not a sequence of seeds.
    """
    if not (hasattr(seeds, "__len__") and hasattr(seeds, "__getitem__")) or isinstance(seeds, (str, bytes, Mapping)):
        instead = f"range({seeds})" if isinstance(seeds, int) else "list(seeds)"
        raise ConfigError(f"seeds is {seeds!r:.80}; expected a sequence of seeds, such as {instead}")
    given: Sequence[Any] = seeds  # pyright: ignore[reportAssignmentType]
    found: list[_Task] = [(f"{name}/{seed}", check_seed(seed), {}) for seed in given]
    return list(_numbered(name, found, group_size))


def jobs_of_tasks(name: str, tasks: object, group_size: int, env: Env) -> list[EpisodeJob]:
    """Return the jobs of a run: `group_size` episodes for each task.

    Args:
        name: The environment's name.
        tasks: The number of tasks, which are the first ones of `env.tasks`; or the tasks themselves.
        group_size: The number of episodes of each task.
        env: The environment.

    Raises:
        ConfigError: If the environment has fewer tasks, or `tasks` is not a sequence of tasks.
    """
    if isinstance(tasks, int) and not isinstance(tasks, bool):
        known = None if env.tasks is None else len(env.tasks)
        if known is None:
            raise ConfigError(
                f"tasks is {tasks}, but {env.name} has no task data: pass seeds=range({tasks}), or a sequence of tasks"
            )
        if not 1 <= tasks <= known:
            raise ConfigError(f"tasks is {tasks}, but {env.name} has {known} tasks; expected 1 to {known}")
        chosen: Sequence[Any] = range(tasks)
    elif hasattr(tasks, "__len__") and hasattr(tasks, "__getitem__") and not isinstance(tasks, (str, bytes, Mapping)):
        chosen = tasks  # pyright: ignore[reportAssignmentType]
    else:
        raise ConfigError(f"tasks is {tasks!r:.80}; expected the number of tasks, or a sequence of tasks")
    found: list[_Task] = [(f"{name}/task-{index}", index, {"task": task}) for index, task in enumerate(chosen)]
    return list(_numbered(name, found, group_size))


def _numbered(name: str, found: Sequence[_Task], group_size: int) -> Iterator[EpisodeJob]:
    """Yield the jobs; the first of a group has the group's id, and the others are numbered."""
    index, seen = 0, Counter[str]()
    for group_id, seed, task in found:
        for _ in range(group_size):
            number = seen[group_id]
            yield EpisodeJob(index, name, f"{group_id}#{number}" if number else group_id, group_id, seed, task)
            seen[group_id] += 1
            index += 1
