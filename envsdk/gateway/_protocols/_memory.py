"""What a session remembers between requests: messages that were read, and responses that later requests name."""

import operator
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

from ...messages import ToolSchema
from .._requests import ReceivedMessage

T = TypeVar("T")


class RecentlyRead(Generic[T]):
    """The lists that the last requests contained, so that only values after a common beginning are read again.

    A conversation is sent as a whole with each request. Comparing a value with the one that was read before is about
    fifty times as fast as reading it.

    Args:
        limit: How many lists are kept.
    """

    def __init__(self, limit: int = 16) -> None:
        self._lists: list[ReadList[T]] = []
        self._limit = limit

    def read(self, values: Sequence[Any], read: Callable[[Any, int], Sequence[T]]) -> "ReadList[T]":
        """Read a list of values.

        Args:
            values: The values.
            read: Returns what one value holds, given with its index.

        Returns:
            The values, with what they hold. Those that came before are the objects of the earlier list, so that a
            session keeps them only once.
        """
        if not values:
            return ReadList.empty()
        best, common = self._longest_beginning(values)
        result = self._lists[best].beginning(common) if common else ReadList.empty()
        for index in range(common, len(values)):
            result.add(values[index], read(values[index], index))
        if common and common == len(self._lists[best].values):
            del self._lists[best]
        self._lists.append(result)
        del self._lists[: -self._limit]
        return result

    def _longest_beginning(self, values: Sequence[Any]) -> tuple[int, int]:
        """Return which list has the longest common beginning with the values, and its length."""
        best, longest = -1, 0
        for index in range(len(self._lists) - 1, -1, -1):
            known = _shared(self._lists[index].values, self._lists[best].values, longest)
            if known == longest and (common := _common(self._lists[index], values, known)) > longest:
                best, longest = index, common
        return best, longest


def _shared(one: Sequence[object], other: Sequence[object], most: int) -> int:
    """Return how many objects at the beginning of two lists, at most `most`, are the same objects.

    A list begins with objects of an earlier list up to one place, and has new ones from there on.
    """
    low, high = 0, min(len(one), most)
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] is other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


_Path: TypeAlias = tuple[str | int, ...]


class ReadList(NamedTuple, Generic[T]):
    """A list of values that was read. It is complete once `RecentlyRead.read` has returned it.

    At a thousand values, going through all of them takes as long as the rest of a request. So what they hold is in
    lists and arrays whose beginnings are copied as a whole.

    Attributes:
        values: The values.
        results: What they hold, one after another.
        ends: For each value, how many of the results it and those before it hold.
        numbers: For each value, the places of the numbers and booleans in it.
    """

    values: list[Any]
    results: list[T]
    ends: "array[int]"
    numbers: list[Sequence[_Path]]

    @staticmethod
    def empty() -> "ReadList[Any]":
        """Return a list without values."""
        return ReadList([], [], array("q"), [])

    def beginning(self, count: int) -> "ReadList[T]":
        """Return a copy of the first `count` values, at least one."""
        return ReadList(
            self.values[:count], self.results[: self.ends[count - 1]], self.ends[:count], self.numbers[:count]
        )

    def add(self, value: Any, held: Sequence[T]) -> None:
        """Add a value with what it holds."""
        self.values.append(value)
        self.results.extend(held)
        self.ends.append(len(self.results))
        self.numbers.append(_numbers(value))


def _common(earlier: ReadList[Any], values: Sequence[Any], known: int) -> int:
    """Return how many values at the beginning of two lists are the same, up to the order of keys.

    Args:
        earlier: The values that were read.
        values: The values of a request.
        known: How many of them are known to be the same.
    """
    objects = map(operator.is_, islice(earlier.values, known, None), islice(values, known, None))
    common = known + len(list(takewhile(bool, objects)))
    rest = (islice(each, common, None) for each in (earlier.values, earlier.numbers, values))
    for one, numbers, other in zip(*rest, strict=False):
        if one is not other and (one != other or (numbers and not _is_same_type(one, other, numbers))):
            break
        common += 1
    return common


def _numbers(value: Any, path: _Path = ()) -> Sequence[_Path]:
    """Return the places of the numbers and booleans in a JSON value, because Python takes `1` and `True` for equal."""
    if isinstance(value, str) or value is None:
        return ()
    if isinstance(value, dict):
        items: Iterable[tuple[str | int, Any]] = cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
    else:
        return [path]
    return [place for key, item in items for place in _numbers(item, (*path, key))]


def _is_same_type(one: Any, other: Any, numbers: Sequence[_Path]) -> bool:
    """Return whether the numbers of two equal values have the same types."""
    for path in numbers:
        number, its_other = one, other
        for key in path:
            number, its_other = number[key], its_other[key]
        if type(number) is not type(its_other):
            return False
    return True


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation up to a response.

    Attributes:
        received: What the request added: its messages, then the reply. System messages are among them.
        previous: The conversation that it continues, or None.
        tools: Its tools, where the protocol keeps them.
    """

    received: Sequence[ReceivedMessage]
    previous: "StoredConversation | None" = None
    tools: Sequence[ToolSchema] = ()

    def messages(self) -> list[ReceivedMessage]:
        """Return the whole conversation."""
        parts: list[Sequence[ReceivedMessage]] = []
        conversation: StoredConversation | None = self
        while conversation is not None:
            parts.append(conversation.received)
            conversation = conversation.previous
        return [message for part in reversed(parts) for message in part]


class StoredResponses:
    """The responses that requests may name by `previous_response_id`, their items, and what may be retrieved of them.

    Args:
        limit: How many responses are kept. The one that was not used for the longest time is forgotten first.
    """

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._responses: OrderedDict[str, tuple[StoredConversation, Mapping[str, Any]]] = OrderedDict()
        self._response_of: dict[str, str] = {}

    def add(self, id: str, conversation: StoredConversation, response: Mapping[str, Any] | None = None) -> None:
        """Keep a response.

        Args:
            id: The response's id.
            conversation: The conversation, up to and with the response.
            response: The response, whose `output` has items with an `id`; None if it cannot be retrieved.
        """
        self._responses[id] = conversation, response or {}
        self._response_of.update((item["id"], id) for item in self._items(id))
        while len(self._responses) > self._limit:
            self.delete(next(iter(self._responses)))

    def response(self, id: str) -> Mapping[str, Any] | None:
        """Return a response that may be retrieved; None if it is not known (any more)."""
        return self._responses[id][1] or None if id in self._responses else None

    def delete(self, id: str) -> None:
        """Forget a response and its items. What continues it is kept."""
        for item in self._items(id):
            del self._response_of[item["id"]]
        del self._responses[id]

    def _items(self, id: str) -> Sequence[Mapping[str, Any]]:
        return self._responses[id][1].get("output", ())

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
        return next(item for item in self._items(response) if item["id"] == id)


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """What one session remembers between its requests. It is not safe to use from several threads at once.

    Attributes:
        responses: The responses that requests may name.
    """

    responses: StoredResponses = field(default_factory=StoredResponses)
    _recent: dict[str, RecentlyRead[Any]] = field(default_factory=dict[str, RecentlyRead[Any]])

    def recently_read(self, kind: str) -> RecentlyRead[Any]:
        """Return the lists of one kind that were read last, such as the messages of a protocol."""
        return self._recent.setdefault(kind, RecentlyRead())
