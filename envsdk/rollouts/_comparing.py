"""Compare a stored episode with its repetition: each byte that an environment decides, with its step and context."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import EnvsdkError
from ..rendering.tokenizers import Tokenizer
from ..trajectories._trajectory import Trajectory
from ._unequal import MISSING, Unequal, unequal

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    contexts = [_ContextPair(stored, replayed, one, other, name, tokenizer) for name in names]
    in_contexts = [item for context in contexts for item in context.differences()]
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


class _ContextPair:
    """One context of a stored episode and of its repetition."""

    def __init__(
        self,
        stored: Trajectory,
        replayed: Trajectory,
        one: dict[str, Any],
        other: dict[str, Any],
        name: str,
        tokenizer: Tokenizer,
    ) -> None:
        self._stored, self._replayed, self._name, self._tokenizer = stored, replayed, name, tokenizer
        self._logs: list[dict[str, Any] | None] = [record["contexts"].get(name) for record in (one, other)]
        self._steps: list[list[tuple[int, dict[str, Any]]]] = [
            [(index, step) for index, step in enumerate(record["steps"]) if step["context"] == name]
            for record in (one, other)
        ]

    def differences(self) -> Iterator[ReplayDifference]:
        """Yield the differences of its steps, of its messages, and of the rest."""
        one, other = self._logs
        if one is None or other is None:
            first = self._steps[0][0][0] if self._steps[0] else None
            yield ReplayDifference(
                first, self._name, "context", *(MISSING if log is None else "there" for log in self._logs)
            )
            return
        yield from self._of_steps()
        yield from self._of_messages(one["messages"], other["messages"])
        others = [
            {name: log[name] for name in log if name not in ("messages", "tokens", "logprobs")} for log in (one, other)
        ]
        for item in unequal(others[0], others[1], to_the_byte=True):
            yield _of(None, self._name, item)

    def _of_steps(self) -> Iterator[ReplayDifference]:
        for (index, one), (_, other) in zip(*self._steps, strict=False):
            observed = (
                self._stored.contexts[self._name].tokens[one["start"] : one["action_start"]],
                self._replayed.contexts[self._name].tokens[other["start"] : other["action_start"]],
            )
            if not np.array_equal(observed[0], observed[1]):
                yield ReplayDifference(index, self._name, "observation", *self._from_first_difference(observed))
            for item in unequal(_relative(one), _relative(other), to_the_byte=True):
                yield _of(index, self._name, item)
        count, other_count = map(len, self._steps)
        error = f"{EndOfRecord.__name__}: {beyond(self._name)}"
        is_continued = self._stored.status != "error" and (self._replayed.error or "").startswith(error)
        if count > other_count:
            index = self._steps[0][other_count][0]
            yield ReplayDifference(index, self._name, "step", "there", "the episode ended before it")
        elif other_count > count or is_continued:
            last = self._steps[0][-1][0] if count else None
            yield ReplayDifference(last, self._name, "end", "the last reply", "another reply is requested after it")

    def _of_messages(self, one: list[Any], other: list[Any]) -> Iterator[ReplayDifference]:
        """Yield the differences of messages, each at the step that it answers."""
        replies = [(step["reply"], index) for index, step in self._steps[0] if step["reply"] is not None]
        for at in range(max(len(one), len(other))):
            pair = [messages[at : at + 1] for messages in (one, other)]
            answered = [index for reply, index in replies if reply <= at]
            for item in unequal(pair[0], pair[1], to_the_byte=True):
                path = f"messages[{at}]{item.path.removeprefix('[0]')}"
                yield _of(answered[-1] if answered else None, self._name, item._replace(path=path))

    def _from_first_difference(self, observed: "Sequence[NDArray[np.int32]]") -> Iterator[str]:
        """Yield both observations as text, from the first token that differs on."""
        length = min(map(len, observed))
        differs = np.flatnonzero(observed[0][:length] != observed[1][:length])
        at = int(differs[0]) if len(differs) else length
        for tokens in observed:
            text = self._tokenizer.decode(tokens[at : at + 24])
            yield f"token {at} of {len(tokens)}: {tokens[at : at + 8].tolist()} ({text!r:.80})"


def beyond(context: str) -> str:
    """Return the text of an `EndOfRecord`."""
    return f"the record has no further reply in {context!r}"


def _relative(step: dict[str, Any]) -> dict[str, Any]:
    """Return a step without its position in the log, which depends on the lengths of the steps before it."""
    parts = [{**part, "stop": part["stop"] - step["action_start"]} for part in step["parts"]]
    return {**{name: step[name] for name in step if name not in ("start", "action_start")}, "parts": parts}
