"""Tasks from data: a list, a JSONL file, a Hugging Face data set; and how tasks are split."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, cast

import numpy as np
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from ..errors import ConfigError, TaskError, what_is_invalid

T = TypeVar("T")
Task: TypeAlias = Any
"""One task: a row of the data, or what the environment's `Task` model made of it."""


Split: TypeAlias = Literal["train", "test"]
"""An option of environments that make their own tasks."""
_TEST_SHARE = 0.2
_MOST_DRAWS = 1000
_TURNS = 6


def split_of(key: str) -> Split:
    """The split that a task belongs to: `test` for one in five, by a hash of a text that stands for the task."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return "test" if int.from_bytes(digest) < _TEST_SHARE * 2**64 else "train"


def draw_in_split(split: Split, draw: Callable[[], T], key: Callable[[T], str] = str) -> T:
    """Draw tasks until one is in a split: so the splits of an environment never overlap, whatever the seeds.

    Args:
        split: The split.
        draw: Draws a task.
        key: A text that stands for it, the same for tasks that are alike.

    Raises:
        ConfigError: If a thousand draws give none: the options leave hardly a task.
    """
    for _ in range(_MOST_DRAWS):
        task = draw()
        if split_of(key(task)) == split:
            return task
    raise ConfigError(f"of {_MOST_DRAWS} tasks none is of the split {split!r}: the options leave too few tasks")


class Rows(Protocol):
    """What a data set is: it has a length, and rows by index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def load_tasks(source: object) -> Rows:
    """Read tasks.

    Args:
        source: Rows (a list, a Hugging Face data set), or the path of a JSONL file.

    Raises:
        TaskError: If there is no such file, a line of it is no JSON (the line is named), or there is no task.
    """
    if isinstance(source, (str, Path)):
        rows: Any = _read_jsonl(Path(source))
    elif hasattr(source, "__len__") and hasattr(source, "__getitem__") and not isinstance(source, Mapping):
        rows = cast("Any", source)
    else:
        raise TaskError(f"tasks must be a list, the path of a JSONL file or a data set, got {source!r:.80}")
    if not len(rows):
        raise TaskError(f"there is no task in {source!r:.80}")
    return rows


def _read_jsonl(path: Path) -> Sequence[Any]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise TaskError(f"the task file {str(path)!r} cannot be read: {error}") from error
    rows: list[Any] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)  # integers of any length stay exact
        except ValueError as error:
            raise TaskError(
                f"{path}, line {number} is no JSON ({error}). A task file has one JSON object a line"
            ) from error
        if not isinstance(row, dict):
            raise TaskError(f"{path}, line {number} is no JSON object. A task file has one JSON object a line")
        rows.append(row)
    return rows


def pick(rows: Rows, seed: int | None, rng: np.random.Generator) -> int:
    """Choose a task.

    With a seed, every task comes once in each run of as many seeds, in a shuffled order: near seeds give different
    tasks, and the same seed always the same one. Without a seed the random generator chooses.
    """
    if seed is None:
        return int(rng.integers(len(rows)))
    epoch, position = divmod(int(seed), len(rows))
    return _order(len(rows), epoch, position)


def _order(count: int, epoch: int, position: int) -> int:
    """The number that is at a position of the numbers below a count, in the shuffled order of an epoch.

    No order is ever written down, so any seed costs the same. A Feistel network shuffles the numbers below a power of
    four that is no more than four times the count; a number that is too large is shuffled again until it is not.
    """
    bits = ((count - 1).bit_length() + 1) // 2
    while True:
        left, right = position >> bits, position & ((1 << bits) - 1)
        for turn in range(_TURNS):
            digest = hashlib.blake2b(f"{count:x} {epoch:x} {turn} {right:x}".encode(), digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(digest) >> (64 - bits))
        position = left << bits | right
        if position < count:
            return position


def find(rows: Rows | None, choice: object) -> Any:
    """The task that `options={"task": choice}` asks for: the row of an index, or the row itself.

    Raises:
        TaskError: If there is no row of that index.
    """
    if isinstance(choice, (int, np.integer)) and not isinstance(choice, bool):
        if rows is None or not 0 <= choice < len(rows):
            count = 0 if rows is None else len(rows)
            raise TaskError(f"there is no task {choice}: the environment has {count} tasks, counted from 0")
        return rows[int(cast("int", choice))]
    return choice


def check_task(row: Any, model: type[BaseModel] | None) -> Task:
    """Read a row as the environment's task model, if it has one.

    Raises:
        TaskError: If it does not fit, or cannot be written into a record.
    """
    try:
        task = row if model is None or isinstance(row, model) else model.model_validate(row)
    except ValidationError as error:
        raise TaskError(f"the task {row!r:.200} is no {error.title}: {what_is_invalid(error)}") from error
    try:
        to_json(task, fallback=_plain, bytes_mode="base64")
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise TaskError(
            f"the task {row!r:.200} cannot be recorded: {error}. A task is a text, a number, a list, a mapping, or a "
            "pydantic model; of anything else, give what it is made from, and make it in start()"
        ) from error
    return task


def _plain(value: object) -> object:
    if isinstance(value, (np.ndarray, np.generic)):
        return cast("Any", value).tolist()
    raise ValueError(f"it holds a {type(value).__name__}, {value!r:.80}")
