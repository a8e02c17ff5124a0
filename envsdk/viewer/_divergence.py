"""Where two episodes diverge: in which message of each context, and at which token."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..trajectories._trajectory import Trajectory


class ContextPair(NamedTuple):
    """A context of two episodes, message by message.

    Attributes:
        name: The name of the context.
        counts: How many messages the first and the second episode have in it.
        different: The indices of the messages that differ, or that only one of them has.
    """

    name: str
    counts: tuple[int, int]
    different: tuple[int, ...]


def context_pairs(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[ContextPair]:
    """Return the contexts of two episodes, each with the messages that differ.

    Args:
        one: What `episodes.episode` returns for the first.
        other: What it returns for the second.
    """
    first, second = ({context["name"]: context["messages"] for context in own["contexts"]} for own in (one, other))
    pairs: list[ContextPair] = []
    for name in {**first, **second}:
        own, its = first.get(name, []), second.get(name, [])
        longest = range(max(len(own), len(its)))
        different = tuple(index for index in longest if _at(own, index) != _at(its, index))
        pairs.append(ContextPair(name, (len(own), len(its)), different))
    return pairs


def _at(messages: Sequence[Mapping[str, Any]], index: int) -> Any:
    if index >= len(messages):
        return None
    message = messages[index]
    calls = [(call["name"], call["arguments"]) for call in message["calls"]]
    return message["role"], message["content"], message["parts"], message["reasoning"], calls


def first_different_token(one: Trajectory, other: Trajectory, context: str) -> int | None:
    """Return the position of the first token of a context's log that differs, or that only one of two episodes has.

    None if the logs are equal, the tokenizers differ, or one of them does not have the context.
    """
    logs = [own.contexts.get(context) for own in (one, other)]
    if None in logs or one.tokenizer != other.tokenizer:
        return None
    first, second = (log.tokens for log in logs if log is not None)
    shorter = min(len(first), len(second))
    different = np.flatnonzero(first[:shorter] != second[:shorter])
    return int(different[0]) if len(different) else None if len(first) == len(second) else shorter
