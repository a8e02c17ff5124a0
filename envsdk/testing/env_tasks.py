"""What environments promise of their tasks: seeds give different ones, and splits have none in common."""

import json
from typing import Any, get_args

from ..authoring.env import Env
from ..trajectories.trajectory import Trajectory
from .env_differences import transcript
from .env_plays import Plays, closed, roll_out
from .reports import Failure, NotPossible

_CHANCE = 0.9
"""So many of the seeds have a task of their own, where there are enough: two may be the same by chance."""


def distinct_tasks(plays: Plays) -> str:
    """Other seeds give other tasks."""
    if len(plays.seeds) < 2:
        raise NotPossible("it takes two seeds or more")
    seed_of: dict[str, int] = {}
    repeated: tuple[int, int] | None = None
    for seed in plays.seeds:
        task = _task(plays.play(plays.policy, seed), with_replies=plays.has_reference)
        if task in seed_of and repeated is None:
            repeated = seed_of[task], seed
        seed_of.setdefault(task, seed)
    wanted, among = _wanted(plays)
    if repeated is not None and len(seed_of) < wanted:
        raise Failure(
            f"{len(plays.seeds)} seeds give {len(seed_of)} different tasks, and {wanted} were expected{among}; seeds "
            f"{repeated[0]} and {repeated[1]} give the same. Random choices come from self.np_random; where the whole "
            "space is small, declare n_tasks",
            repeated[1],
        )
    return f"{len(seed_of)} of {len(plays.seeds)}"


def _wanted(plays: Plays) -> tuple[int, str]:
    """How many different tasks there should be, and among how many, in words."""
    count = len(plays.seeds)
    known = plays.sample.n_tasks if plays.sample.tasks is None else len(plays.sample.tasks)
    if known is None:
        return max(2, int(count * _CHANCE)), ""
    return -(-min(count, known) // 2), f" of the {known} that there are"


def splits(plays: Plays) -> str:
    """No task of one split is one of another."""
    field = plays.sample.Config.model_fields.get("split")
    if field is None:
        raise NotPossible('there is no option `split`: give the Config a field `split: Split = "train"`')
    if plays.sample.spec is not None and plays.sample.spec.kwargs.get("tasks") is not None:
        raise NotPossible("the tasks are given, whatever the split")
    names: tuple[Any, ...] = get_args(field.annotation) or ("train", "test")
    found: dict[str, tuple[Any, int]] = {}
    for split in names:
        is_default = split == plays.sample.config.split
        for seed in plays.seeds if is_default else plays.half:
            trajectory = plays.play(plays.policy, seed) if is_default else _played(plays, seed, split)
            task = _task(trajectory, with_replies=plays.has_reference)
            other, at = found.setdefault(task, (split, seed))
            if other != split:
                raise Failure(
                    f"the task of split={split!r} is the task of seed {at} with split={other!r}: draw "
                    "tasks with envsdk.authoring.tasks.draw_in_split",
                    seed,
                )
    return f"{len(found)} tasks in {', '.join(map(repr, names))}"


def _played(plays: Plays, seed: int, split: Any) -> Trajectory:
    with plays.episode(seed, f"the {plays.policy} policy with split={split!r}"):
        env: Env = plays.subject.make_with(split=split)
        with closed(env):
            return roll_out(env, plays.policy, seed)


def _task(trajectory: Trajectory, *, with_replies: bool) -> str:
    """What tells a task from others: the data, or what a player who solves it hears, or what it is told first."""
    if trajectory.task is not None:
        return json.dumps(trajectory.task, default=repr)
    said = transcript(trajectory)
    if not with_replies:
        first = next(iter(trajectory.contexts))
        said = [text for text in said if text.startswith(f"{first}, ")]
        said = said[: next((i for i, text in enumerate(said) if text.startswith(f"{first}, assistant: ")), len(said))]
    return "\n".join(said)
