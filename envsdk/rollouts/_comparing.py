"""Compare a stored episode with its repetition: each byte that an environment decides, with its step and context."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._visible import brief
from ..errors import EnvsdkError
from ..rendering.tokenizers import Tokenizer
from ..trajectories._trajectory import Trajectory
from ._unequal import MISSING, Unequal, unequal

_END = ("final_break", "status", "stop_reason", "error")
_NOT_REPEATED = ("origins", "error_kind", "renderer_chosen_because")
"""Fields that a rollout or the choice of a renderer writes; no environment decides them."""


class EndOfRecord(EnvsdkError):
    """The environment requests a reply that the record does not have."""


@dataclass(frozen=True, slots=True)
class ReplayDifference:
    """A difference between a stored episode and its repetition.

    Attributes:
        step: The index of the step in `Trajectory.steps`; None if it is about the whole episode or context.
        context: The name of the context; None if it is about the whole episode.
        field: The field: `observation`, `keep`, `break_`, `reward`, `stop_reason`, `messages[3].content`, ...
        stored: The value in the record, as text.
        replayed: The value in the repetition, as text.
    """

    step: int | None
    context: str | None
    field: str
    stored: str
    replayed: str

    def __str__(self) -> str:
        where = [] if self.step is None else [f"step {self.step + 1}"]  # as `envsdk show` counts them
        where += [] if self.context is None else [f"in {self.context!r}"]
        return f"{' '.join([*where, self.field])}: stored {self.stored}, replayed {self.replayed}"


def differences(
    stored: Trajectory, replayed: Trajectory, tokenizer: Tokenizer, *, is_beyond: bool = False
) -> list[ReplayDifference]:
    """Return the differences: of the episode as a whole, then step by step, then of its end.

    Args:
        stored: The stored episode.
        replayed: Its repetition.
        tokenizer: Decodes the tokens of observations that differ.
        is_beyond: Whether the repetition requested a reply that the record does not have. If the stored episode failed
            at that point, the repetition has to end like this.
    """
    one, other = _decided(stored), _decided(replayed)
    # A method that raised raises again when it is repeated. One that took too long may end this time.
    took_too_long = (stored.error or "").startswith(("DeadlineExceeded", "TimeoutError"))
    failed_at_a_request = stored.status == "error" and (stored.error_kind != "environment" or took_too_long)
    if is_beyond and failed_at_a_request:
        other.update({name: one[name] for name in _END})
    if json.dumps(one) == json.dumps(other):
        return []
    parts = (*_END, "steps", "contexts")
    whole = [{name: record[name] for name in record if name not in parts} for record in (one, other)]
    ends = [{name: record[name] for name in _END} for record in (one, other)]
    found = [_of(None, None, item) for item in unequal(whole[0], whole[1], to_the_byte=True)]
    names = dict.fromkeys([*one["contexts"], *other["contexts"]])
    both = stored, replayed, (one, other)
    in_contexts = [item for name in names for item in _differences_of_context(*both, name, tokenizer)]
    found += sorted(in_contexts, key=lambda item: (item.step is None, item.step or 0))
    found += [_of(None, None, item) for item in unequal(ends[0], ends[1], to_the_byte=True)]
    orders = [list(record["contexts"]) for record in (one, other)]
    if not found or (orders[0] != orders[1] and set(orders[0]) == set(orders[1])):
        found.append(ReplayDifference(None, None, "order of the contexts", *map(str, orders)))
    return found


def _decided(trajectory: Trajectory) -> dict[str, Any]:
    """Return the part of a record that the environment decides, given the actions."""
    record: dict[str, Any] = json.loads(trajectory.to_json())
    for name in _NOT_REPEATED:
        record.pop(name, None)
    for log in record["contexts"].values():
        del log["is_trainable"]
    return record


def _of(step: int | None, context: str | None, item: Unequal) -> ReplayDifference:
    return ReplayDifference(step, context, item.path, item.stored, item.given)


def _differences_of_context(
    stored: Trajectory, replayed: Trajectory, records: Sequence[dict[str, Any]], context: str, tokenizer: Tokenizer
) -> Iterator[ReplayDifference]:
    """Yield the differences of the steps of a context, of its messages, and of the rest."""
    steps: list[list[tuple[int, dict[str, Any]]]] = [
        [(index, step) for index, step in enumerate(record["steps"]) if step["context"] == context]
        for record in records
    ]
    logs: list[dict[str, Any] | None] = [record["contexts"].get(context) for record in records]
    if logs[0] is None or logs[1] is None:
        first = steps[0][0][0] if steps[0] else None
        yield ReplayDifference(first, context, "context", *(MISSING if log is None else "there" for log in logs))
        return
    for (index, one), (_, other) in zip(*steps, strict=False):
        observed = (
            stored.contexts[context].tokens[one["start"] : one["action_start"]],
            replayed.contexts[context].tokens[other["start"] : other["action_start"]],
        )
        if not np.array_equal(observed[0], observed[1]):
            length = min(map(len, observed))
            differs = np.flatnonzero(observed[0][:length] != observed[1][:length])
            at = int(differs[0]) if len(differs) else length
            texts = (
                f"token {at} of {len(tokens)}: {tokens[at : at + 8].tolist()} "
                f"({brief(tokenizer.decode(tokens[at : at + 24]))})"
                for tokens in observed
            )
            yield ReplayDifference(index, context, "observation", *texts)
        for item in unequal(_relative(one), _relative(other), to_the_byte=True):
            yield _of(index, context, item)
    count, other_count = map(len, steps)
    error = f"{EndOfRecord.__name__}: {beyond(context)}"
    is_continued = stored.status != "error" and (replayed.error or "").startswith(error)
    if count > other_count:
        yield ReplayDifference(steps[0][other_count][0], context, "step", "there", "the episode ended before it")
    elif other_count > count or is_continued:
        last = steps[0][-1][0] if count else None
        yield ReplayDifference(last, context, "end", "the last reply", "another reply is requested after it")
    replies = [(step["reply"], index) for index, step in steps[0] if step["reply"] is not None]
    for at in range(max(len(log["messages"]) for log in logs if log is not None)):
        pair = [log["messages"][at : at + 1] for log in logs if log is not None]
        answered = [index for reply, index in replies if reply <= at]  # a message is at the step that it answers
        for item in unequal(pair[0], pair[1], to_the_byte=True):
            path = f"messages[{at}]{item.path.removeprefix('[0]')}"
            yield _of(answered[-1] if answered else None, context, item._replace(path=path))
    compared = ("messages", "tokens", "logprobs")
    rest = [{name: log[name] for name in log if name not in compared} for log in logs if log is not None]
    for item in unequal(rest[0], rest[1], to_the_byte=True):
        yield _of(None, context, item)


def beyond(context: str) -> str:
    """Return the text of an `EndOfRecord`."""
    return f"the record has no further reply in {context!r}"


def _relative(step: dict[str, Any]) -> dict[str, Any]:
    """Return a step without its position in the log, which depends on the lengths of the steps before it."""
    parts = [{**part, "stop": part["stop"] - step["action_start"]} for part in step["parts"]]
    return {**{name: step[name] for name in step if name not in ("start", "action_start")}, "parts": parts}
