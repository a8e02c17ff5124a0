"""Edits of a conversation by the environment, and the part of the view that they change."""

import operator
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeVar

from ..messages import Message
from ..rendering.emission import is_same_answer

S = TypeVar("S")
T = TypeVar("T")


class Edit(NamedTuple):
    """A change of the past by the environment: the messages of a turn replace the end of the conversation.

    Attributes:
        keep: The number of messages of the conversation that stay, its system message included.
        detail: A description of the change, for people.
        start: The number of messages at the start that are dropped; `keep` counts them. 1 drops the system message.
        reason: The reason of the break: `fold` if the model itself replaced the messages, with the context tool `fold`.
    """

    keep: int
    detail: str = ""
    start: int = 0
    reason: Literal["edit", "fold"] = "edit"


def shared_length(one: Sequence[S], other: Sequence[T], is_same: Callable[[S, T], bool] = operator.is_) -> int:
    """Return how many items two sequences begin with that are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, pair in pairs if not is_same(*pair)), min(len(one), len(other)))


def among(messages: Sequence[Message], known: Sequence[Message], *, are: bool = True) -> list[Message]:
    """Return the messages that are among the known ones, or those that are not. Messages are compared by identity."""
    ids = {id(message) for message in known}
    return [message for message in messages if (id(message) in ids) == are]


def edited(
    view: Sequence[Message], conversation: Sequence[Message], whole: Sequence[Message]
) -> tuple[int, list[Message]]:
    """Return the first index at which a view changes when a conversation becomes `whole`, and the messages from there.

    Messages that the history policy has hidden stay hidden if a later message of the view stays. Messages that stay are
    shown as the policy shows them: a reply may have lost its reasoning.
    """
    in_view = {id(message): position for position, message in enumerate(view)}
    positions: dict[int, int] = {}  # of each message of the conversation in the view, without the hidden ones
    after = 0
    for index, message in enumerate(conversation):
        at = in_view.get(id(message))
        if at is None and message.role == "assistant":
            later = range(after, len(view))
            at = next((i for i in later if view[i].role == "assistant" and is_same_answer(message, view[i])), None)
        if at is not None and at >= after:
            positions[index], after = at, at + 1
    keep = shared_length(conversation, whole)
    kept = {index: position for index, position in positions.items() if index < keep}
    last = max(kept, default=-1)
    start = kept[last] + 1 if kept else 0
    shown = {id(conversation[index]): view[position] for index, position in positions.items()}
    return start, [shown.get(id(message), message) for message in whole[last + 1 :]]
