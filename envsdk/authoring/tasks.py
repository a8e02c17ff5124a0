"""Tasks from a list, a JSONL file or a Hugging Face data set: reading them, choosing one per episode, and splits."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, cast

import numpy as np
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from .._arguments import explain_arguments
from .._describing import what_is_invalid
from .._untrusted import open_file, parse_json, read_lines
from .._visible import brief, type_of
from ..errors import ConfigError, InvalidRecord, TaskError

__all__ = ["Rows", "Split", "Task", "draw_in_split", "load_tasks", "split_of"]

T = TypeVar("T")
Task: TypeAlias = Any
"""A task: a row of the data, or an object of the environment's `Task` model."""


Split: TypeAlias = Literal["train", "test"]
"""The splits of environments that generate their own tasks."""
_TEST_SHARE = 0.2
_MAX_DRAWS = 1000
_ROUNDS = 6


def split_of(key: str) -> Split:
    """Return the split of a task, which a hash of its key decides: `test` for one task in five.

    Args:
        key: A string that identifies the task.
    """
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return "test" if int.from_bytes(digest) < _TEST_SHARE * 2**64 else "train"


def draw_in_split(split: Split, draw: Callable[[], T], key: Callable[[T], str] = str) -> T:
    """Draw tasks until one belongs to a split, so that the splits of an environment never overlap.

    Args:
        split: The split.
        draw: Returns a random task.
        key: Returns a string that identifies a task. Equivalent tasks must have the same key.

    Returns:
        The first task that belongs to the split.

    Raises:
        ConfigError: If none of a thousand tasks belongs to the split, because the options leave too few tasks.
    """
    for _ in range(_MAX_DRAWS):
        task = draw()
        if split_of(key(task)) == split:
            return task
    raise ConfigError(f"none of {_MAX_DRAWS} tasks belongs to the split {split!r}: the options leave too few tasks")


class Rows(Protocol):
    """A data set: it has a length, and returns a row by index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def is_sequence(value: object) -> bool:
    """Return whether a value has a length and returns elements by index, as a list or a data set does."""
    return hasattr(value, "__len__") and hasattr(value, "__getitem__") and not isinstance(value, (str, bytes, Mapping))


def load_tasks(source: object) -> Rows:
    """Return the rows of task data.

    Args:
        source: Rows (a list, a Hugging Face data set), or the path of a JSONL file.

    Raises:
        TaskError: If the file cannot be read, a line is not a JSON object (the message names the line), or there are no
            rows.
    """
    if isinstance(source, (str, Path)):
        rows: Any = _read_jsonl(Path(source))
    elif is_sequence(source):
        rows = cast("Any", source)
    else:
        raise TaskError(f"tasks is {brief(source)}; expected a list, the path of a JSONL file or a data set")
    if not len(rows):
        raise TaskError(f"tasks is {brief(source)}, which contains no task; expected at least one")
    return rows


def _read_jsonl(path: Path) -> Sequence[Any]:
    try:
        with open_file(path) as file:
            lines = list(read_lines(file))
    except (OSError, InvalidRecord) as error:
        raise TaskError(f"the task file {str(path)!r} cannot be read: {error}") from error
    rows: list[Any] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)  # which keeps integers of any length exact
        except InvalidRecord as error:
            raise TaskError(
                f"{path}, line {number} is not JSON ({error}); expected one JSON object per line"
            ) from error
        if not isinstance(row, dict):
            raise TaskError(
                f"{path}, line {number} is not a JSON object, but {brief(row)}; expected one JSON object per line"
            )
        rows.append(row)
    return rows


def pick_task(rows: Rows, seed: int | None, rng: np.random.Generator) -> int:
    """Return the index of an episode's task.

    The same seed always gives the same task. Any `len(rows)` consecutive seeds that start at a multiple of `len(rows)`
    give every task once, in a shuffled order.

    Args:
        rows: The task data.
        seed: The episode's seed; None draws the index from `rng`.
        rng: The environment's random generator.
    """
    if seed is None:
        return int(rng.integers(len(rows)))
    # The order is never stored, so every seed costs the same. A Feistel network permutes the numbers below a power of
    # four that is at most four times `count`; a result that is too large is permuted again until it is below `count`.
    count = len(rows)
    epoch, position = divmod(int(seed), count)
    bits = ((count - 1).bit_length() + 1) // 2
    while True:
        left, right = position >> bits, position & ((1 << bits) - 1)
        for round_ in range(_ROUNDS):
            digest = hashlib.blake2b(f"{count:x} {epoch:x} {round_} {right:x}".encode(), digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(digest) >> (64 - bits))
        position = left << bits | right
        if position < count:
            return position


def find_task(rows: Rows | None, choice: object) -> Any:
    """Return the task that `reset(options={"task": choice})` specifies: the row at an index, or the row itself.

    Raises:
        TaskError: If the index is out of range.
    """
    if isinstance(choice, (int, np.integer)) and not isinstance(choice, bool):
        if rows is None or not 0 <= choice < len(rows):
            count = 0 if rows is None else len(rows)
            raise TaskError(f"task {choice} does not exist: the environment has {count} tasks, with indices from 0")
        return rows[int(cast("int", choice))]
    return choice


def check_task(row: Any, model: type[BaseModel] | None) -> Task:
    """Return a row as an object of the environment's task model, or unchanged if there is no model.

    Raises:
        TaskError: If the row does not fit the model, or cannot be stored in a record.
    """
    try:
        task = row if model is None or isinstance(row, model) else model.model_validate(row)
    except ValidationError as error:
        raise TaskError(
            f"the task {brief(row, 200)} does not fit the model {error.title}: {what_is_invalid(error)}"
        ) from error
    try:
        to_json(task, fallback=_plain, bytes_mode="base64")
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise TaskError(
            f"the task {brief(row, 200)} cannot be recorded: {error}. Expected a string, a number, a list, a "
            f"mapping, or a pydantic model; for any other object, give the data that it is made from, and make it "
            "in start()"
        ) from error
    return task


def _plain(value: object) -> object:
    if isinstance(value, (np.ndarray, np.generic)):
        return cast("Any", value).tolist()
    raise ValueError(f"it contains {type_of(value)}, {brief(value)}")


explain_arguments(globals())
