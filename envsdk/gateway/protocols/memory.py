"""What a session remembers between requests: messages that were read, and responses that later requests name."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar, cast

import orjson

from ...messages import ToolSchema
from ..requests import ReceivedMessage

T = TypeVar("T")


class RecentlyRead(Generic[T]):
    """The lists that the last requests contained, so that only values after a common beginning are read again.

    A conversation is sent as a whole with each request. Comparing a value with the one that was read before is about
    fifty times as fast as reading it.

    Args:
        limit: How many lists are kept.
    """

    def __init__(self, limit: int = 32) -> None:
        self._lists: list[list[_Read[T]]] = []
        self._limit = limit

    def read(self, values: Sequence[Any], read: Callable[[Any, int], T]) -> list["_Read[T]"]:
        """Read a list of values.

        Args:
            values: The values.
            read: Reads one value, given with its index.

        Returns:
            The values, with what they were read as. Those that came before are the objects of the earlier list.
        """
        best, common = self._longest_beginning(values)
        earlier = self._lists[best] if common else []
        new = [_Read(value, read(value, i), _has_numbers(value)) for i, value in enumerate(values[common:], common)]
        result = earlier[:common] + new
        if common and common == len(earlier):
            del self._lists[best]
        self._lists.append(result)
        del self._lists[: -self._limit]
        return result

    def _longest_beginning(self, values: Sequence[Any]) -> tuple[int, int]:
        """Return which list has the longest common beginning with the values, and its length."""
        best, longest = -1, 0
        for index, earlier in enumerate(self._lists):
            common = _common(earlier, values)
            if common > longest:
                best, longest = index, common
        return best, longest


class _Read(NamedTuple, Generic[T]):
    value: Any
    result: T
    has_numbers: bool


def _common(earlier: Sequence[_Read[Any]], values: Sequence[Any]) -> int:
    """Return how many values at the beginning of two lists are the same."""
    common = 0
    for (one, _, has_numbers), other in zip(earlier, values, strict=False):
        if one != other or (has_numbers and not _is_same(one, other)):
            break
        common += 1
    return common


def _has_numbers(value: Any) -> bool:
    """Return whether a JSON value contains a number or a boolean: `1`, `1.0` and `True` are equal in Python."""
    if isinstance(value, dict):
        return any(map(_has_numbers, cast("dict[str, Any]", value).values()))
    if isinstance(value, list):
        return any(map(_has_numbers, cast("list[Any]", value)))
    return not (value is None or isinstance(value, str))


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two equal JSON values have the same text."""
    try:
        return one is other or orjson.dumps(one) == orjson.dumps(other)
    except TypeError:  # a long integer
        return False


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation up to a response.

    Attributes:
        received: What the request added: its messages, then the reply. System messages are among them.
        previous: The conversation that it continues, or None.
    """

    received: Sequence[ReceivedMessage]
    previous: "StoredConversation | None" = None

    def messages(self) -> list[ReceivedMessage]:
        """Return the whole conversation."""
        parts: list[Sequence[ReceivedMessage]] = []
        conversation: StoredConversation | None = self
        while conversation is not None:
            parts.append(conversation.received)
            conversation = conversation.previous
        return [message for part in reversed(parts) for message in part]


class StoredResponses:
    """The responses that requests may name by `previous_response_id`, and their items, which they may refer to.

    Args:
        limit: How many responses are kept. The one that was not used for the longest time is forgotten first.
    """

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._responses: OrderedDict[str, tuple[StoredConversation, Sequence[Mapping[str, Any]]]] = OrderedDict()
        self._response_of: dict[str, str] = {}

    def add(self, id: str, conversation: StoredConversation, items: Sequence[Mapping[str, Any]]) -> None:
        """Keep a response.

        Args:
            id: The response's id.
            conversation: The conversation, up to and with the response.
            items: The response's output, each item with its `id`.
        """
        self._responses[id] = conversation, items
        self._response_of.update((item["id"], id) for item in items)
        while len(self._responses) > self._limit:
            _, (_, forgotten) = self._responses.popitem(last=False)
            for item in forgotten:
                del self._response_of[item["id"]]

    def conversation(self, id: str) -> StoredConversation | None:
        """Return the conversation up to a response; None if it is not known (any more)."""
        if id not in self._responses:
            return None
        self._responses.move_to_end(id)
        return self._responses[id][0]

    def item(self, id: str) -> Mapping[str, Any] | None:
        """Return an item of a response's output by its id; None if it is not known (any more)."""
        response = self._response_of.get(id)
        if response is None:
            return None
        self._responses.move_to_end(response)
        return next(item for item in self._responses[response][1] if item["id"] == id)


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """What one session remembers between its requests. It is not safe to use from several threads at once.

    Attributes:
        messages: The messages that were read, for each protocol by name.
        tools: The tools that were read, for each protocol by name.
        responses: The responses that requests may name.
    """

    messages: dict[str, RecentlyRead[Sequence[ReceivedMessage]]] = field(
        default_factory=dict[str, RecentlyRead[Sequence[ReceivedMessage]]]
    )
    tools: dict[str, RecentlyRead[ToolSchema]] = field(default_factory=dict[str, RecentlyRead[ToolSchema]])
    responses: StoredResponses = field(default_factory=StoredResponses)
