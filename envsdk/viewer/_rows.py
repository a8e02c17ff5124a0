"""One row for each episode of a list: the facts that users sort, filter and compare by.

A row is read from the JSON of a line without checking the whole record, so that thousands of episodes are listed in a
second. `Source.trajectory` checks an episode when it is opened.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, cast

import orjson

from .._untrusted import check_values
from .._visible import shorten
from ..errors import InvalidRecord
from ..trajectories._scoring import why_not_scored
from ..trajectories._tally import sum_by_name
from ..trajectories._trajectory import Trajectory
from ..trajectories.records import check_version

_MAX_TASK_CHARS = 200
_DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """One line of a file of trajectories, in short. Its strings are as recorded: escape them before you print them.

    Attributes:
        line: The number of the line, from 1.
        status: `terminated`, `truncated` or `error`; `damaged` if the line cannot be read.
        damage: What is damaged in the line; empty otherwise. All fields below then have their defaults.
        id: The episode's id.
        group_id: The id that the episodes of a task share, or None.
        env: The environment's id.
        seed: The seed of the episode, or None.
        task: The task as a short string: the task's data, else the first message of a user.
        stop_reason: Why the episode ended.
        error: The error, or None.
        error_kind: What caused the error: `environment`, `policy` or `infrastructure`; or None.
        reward: The sum of the steps' rewards. Without `is_scored`, it means nothing.
        rewards: The sum of each named reward over all steps.
        is_scored: Whether the episode was scored; see `Trajectory.not_scored_because`.
        not_scored: Why the episode was not scored; empty if it was.
        steps: The number of steps.
        breaks: The number of breaks by reason.
        roles: The roles of its contexts, each once.
        contexts: The number of contexts.
        observed_tokens: The number of observed tokens.
        sampled_tokens: The number of sampled tokens.
        images: The number of observed images, each as often as it was observed.
        image_tokens: The number of their tokens, which are part of the observed ones.
        policy_versions: The versions of the weights that sampled it, in order.
        reply_errors: The number of errors in the replies.
        metrics: The sum of each metric over all steps.
        ended: When it ended: ISO 8601, in UTC; empty if that is not known, because the file is not in a run folder.
        duration_s: How long it took, in seconds, with retries and pauses; or None.
    """

    line: int
    status: str
    damage: str = ""
    id: str = ""
    group_id: str | None = None
    env: str = ""
    seed: int | None = None
    task: str = ""
    stop_reason: str = ""
    error: str | None = None
    error_kind: str | None = None
    reward: float = 0.0
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    is_scored: bool = False
    not_scored: str = ""
    steps: int = 0
    breaks: Mapping[str, int] = field(default_factory=dict[str, int])
    roles: tuple[str, ...] = ()
    contexts: int = 0
    observed_tokens: int = 0
    sampled_tokens: int = 0
    images: int = 0
    image_tokens: int = 0
    policy_versions: tuple[int, ...] = ()
    reply_errors: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    ended: str = ""
    duration_s: float | None = None

    @property
    def is_damaged(self) -> bool:
        """Whether the line cannot be read."""
        return self.status == _DAMAGED

    @property
    def tokens(self) -> int:
        """The number of observed and sampled tokens."""
        return self.observed_tokens + self.sampled_tokens

    @property
    def task_key(self) -> str:
        """A key that the episodes of a task share: the group, else the environment and the seed, else the task."""
        return self.group_id or (f"{self.env}/{self.seed}" if self.seed is not None else self.task or self.id)

    @classmethod
    def damaged(cls, line: int, why: str) -> "EpisodeRow":
        """Return the row of a line that cannot be read."""
        return cls(line=line, status=_DAMAGED, damage=why)


def read_row(number: int, line: bytes) -> EpisodeRow:
    """Read the row of a line. A line that cannot be read gives a row with the reason, not an error.

    Args:
        number: The number of the line, from 1.
        line: The line, without the line end.
    """
    try:
        check_values(line)
        fields = orjson.loads(line)
        check_version(fields["schema"])
        return _row(number, fields)
    except (ValueError, InvalidRecord, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        damage = f"{type(error).__name__}: {error}"
    try:  # the full check of the record reports the same problem in better words
        Trajectory.from_json(line)
    except InvalidRecord as invalid:
        damage = str(invalid)
    return EpisodeRow.damaged(number, damage)


def _row(number: int, fields: Mapping[str, Any]) -> EpisodeRow:
    """Return the row of a record, from its JSON; `Tally` counts the same facts."""
    steps, contexts = cast("list[Any]", fields["steps"]), cast("dict[str, Any]", fields["contexts"])
    breaks = [step["break_"] for step in steps if step["break_"] is not None]
    breaks += [] if fields["final_break"] is None else [fields["final_break"]]
    versions = {part["policy_version"] for step in steps for part in step["parts"]} - {None}
    not_scored = why_not_scored(
        status=fields["status"],
        stop_reason=fields["stop_reason"],
        error=fields["error"],
        error_kind=fields["error_kind"],
        has_reward=any(step["reward"] is not None for step in steps)
        or next((log["reward"] is not None for log in contexts.values()), False),
    )
    images: list[int] = []  # the number of tokens of each observed image
    for step in steps:
        media = contexts[step["context"]].get("media", ())
        first, stop = (bisect_left(media, step[at], key=itemgetter("start")) for at in ("start", "action_start"))
        images += [placed["stop"] - placed["start"] for placed in media[first:stop]]
    replies = {(step["context"], step["reply"]) for step in steps if step["reply"] is not None}
    return EpisodeRow(
        line=number,
        status=fields["status"],
        id=fields["id"],
        group_id=fields["group_id"],
        env=fields["env"],
        seed=fields["seed"],
        task=_task(fields["task"], contexts),
        stop_reason=fields["stop_reason"],
        error=fields["error"],
        error_kind=fields["error_kind"],
        reward=math.fsum(step["reward"] or 0.0 for step in steps),
        rewards=sum_by_name(step["rewards"] for step in steps),
        is_scored=not not_scored,
        not_scored=not_scored,
        steps=len(steps),
        breaks=dict(Counter(break_["reason"] for break_ in breaks)),
        roles=tuple(dict.fromkeys(log["role"] for log in contexts.values())),
        contexts=len(contexts),
        observed_tokens=sum(step["action_start"] - step["start"] for step in steps),
        sampled_tokens=sum(step["parts"][-1]["stop"] - step["action_start"] for step in steps if step["parts"]),
        images=len(images),
        image_tokens=sum(images),
        policy_versions=tuple(sorted(versions)),
        reply_errors=sum(len(contexts[context]["messages"][reply]["errors"]) for context, reply in replies),
        metrics=sum_by_name(step["metrics"] for step in steps),
    )


def _task(task: Any, contexts: Mapping[str, Any]) -> str:
    if task is not None:
        text = task if isinstance(task, str) else orjson.dumps(task).decode()
    else:
        messages: list[Any] = next(iter(contexts.values()))["messages"] if contexts else []
        text = next((str(message["content"]) for message in messages if message["role"] == "user"), "")
    return shorten(" ".join(text[: 2 * _MAX_TASK_CHARS].split()), _MAX_TASK_CHARS)
