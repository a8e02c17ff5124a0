"""Checks of tasks: different seeds give different tasks, and splits have no task in common."""

import json
from typing import Any, get_args

from ..authoring._env import Env
from ..trajectories._trajectory import Trajectory
from ._env_differences import transcript
from ._env_episodes import Episodes, closing, roll_out
from ._reports import Failure, NotPossible

_CHANCE = 0.9
"""The fraction of seeds that must have different tasks; a few may be equal by chance."""


def distinct_tasks(episodes: Episodes) -> str:
    """Check that different seeds give different tasks."""
    if len(episodes.seeds) < 2:
        raise NotPossible("it needs at least two seeds")
    seed_of: dict[str, int] = {}
    repeated: tuple[int, int] | None = None
    for seed in episodes.seeds:
        task = _task(episodes.play(episodes.policy, seed), with_replies=episodes.has_reference)
        if task in seed_of and repeated is None:
            repeated = seed_of[task], seed
        seed_of.setdefault(task, seed)
    expected, among = _expected(episodes)
    if repeated is not None and len(seed_of) < expected:
        raise Failure(
            f"{len(episodes.seeds)} seeds give {len(seed_of)} different tasks; expected {expected}{among}. Seeds "
            f"{repeated[0]} and {repeated[1]} give the same task. Make random choices with self.np_random. If there "
            "are only a few tasks, declare n_tasks",
            repeated[1],
        )
    return f"{len(seed_of)} of {len(episodes.seeds)}"


def _expected(episodes: Episodes) -> tuple[int, str]:
    """Return the expected number of different tasks, and a text with the total number, if it is known."""
    count = len(episodes.seeds)
    known = episodes.sample.n_tasks if episodes.sample.tasks is None else len(episodes.sample.tasks)
    if known is None:
        return max(2, int(count * _CHANCE)), ""
    return -(-min(count, known) // 2), f" of a total of {known}"


def splits(episodes: Episodes) -> str:
    """Check that no task is in two splits."""
    field = episodes.sample.Config.model_fields.get("split")
    if field is None:
        raise NotPossible('there is no option `split`: add a field `split: Split = "train"` to the Config')
    if episodes.sample.spec is not None and episodes.sample.spec.kwargs.get("tasks") is not None:
        raise NotPossible("the tasks are passed as `tasks`, so they do not depend on the split")
    names: tuple[Any, ...] = get_args(field.annotation) or ("train", "test")
    found: dict[str, tuple[Any, int]] = {}
    for split in names:
        is_default = split == episodes.sample.config.split
        for seed in episodes.seeds if is_default else episodes.half_of_seeds:
            trajectory = episodes.play(episodes.policy, seed) if is_default else _run(episodes, seed, split)
            task = _task(trajectory, with_replies=episodes.has_reference)
            other, at = found.setdefault(task, (split, seed))
            if other != split:
                raise Failure(
                    f"the task of split={split!r} is also the task of seed {at} with split={other!r}: draw "
                    "tasks with envsdk.authoring.tasks.draw_in_split",
                    seed,
                )
    return f"{len(found)} tasks in {', '.join(map(repr, names))}"


def _run(episodes: Episodes, seed: int, split: Any) -> Trajectory:
    with episodes.attempt(seed, f"the {episodes.policy} policy with split={split!r}"):
        env: Env = episodes.subject.make_with(split=split)
        with closing(env):
            return roll_out(env, episodes.policy, seed)


def _task(trajectory: Trajectory, *, with_replies: bool) -> str:
    """Return an identifier of a task: its data, or the transcript of its solution, or its first messages."""
    if trajectory.task is not None:
        return json.dumps(trajectory.task, default=repr)
    messages = transcript(trajectory)
    if not with_replies:
        first = next(iter(trajectory.contexts))
        messages = [text for text in messages if text.startswith(f"{first}, ")]
        replies = [i for i, text in enumerate(messages) if text.startswith(f"{first}, assistant: ")]
        messages = messages[: replies[0]] if replies else messages
    return "\n".join(messages)
