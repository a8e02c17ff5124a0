"""The memory of a session between requests: values that were read, and responses that later requests name."""

import hashlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ...messages import ToolSchema
from .._requests import ReceivedMessage
from ._fields import json_bytes

T = TypeVar("T")
_Known = dict[tuple[int, bytes], tuple[Any, Any]]
"""The values of a list and what they contain, by their index and hash."""
_REQUESTS = 16  # requests whose values are remembered: parallel conversations of one session alternate


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation up to a response.

    Attributes:
        received: The messages that the request added, then the reply. System messages are among them.
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
    """The responses that requests may name by `previous_response_id`, with their items and their bodies.

    Args:
        limit: The maximum number of responses that are kept. The least recently used one is forgotten first.
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
        """Forget a response and its items. Responses that continue it are kept."""
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


class SessionMemory:
    """The memory of one session between its requests. It is not safe to use from several threads at once.

    Attributes:
        responses: The responses that requests may name.
    """

    def __init__(self) -> None:
        self.responses = StoredResponses()
        self._recent: defaultdict[tuple[str, str], deque[_Known]] = defaultdict(lambda: deque(maxlen=_REQUESTS))

    def read(
        self, protocol: str, key: str, values: Sequence[Any], read: Callable[[Any, int], T]
    ) -> tuple[list[Any], list[T]]:
        """Read a list of a request, except for the values that earlier requests had at the same index.

        A conversation is sent as a whole with each request. Finding a value by the hash of its JSON takes a fiftieth of
        the time of reading it, and what is found is the same object, which the session therefore keeps only once.

        Args:
            protocol: The protocol of the request.
            key: The list.
            values: Its values.
            read: Returns what one value contains, given with its index.

        Raises:
            RequestError: If a value cannot be written as JSON and compared.
        """
        recent, found = self._recent[protocol, key], _Known()
        for index, value in enumerate(values):
            digest = hashlib.blake2b(json_bytes(value, f"{key}[{index}]"), digest_size=16).digest()
            place = index, digest
            known = next((earlier[place] for earlier in recent if place in earlier), None)
            found[place] = (value, read(value, index)) if known is None else known
        recent.appendleft(found)
        return [value for value, _ in found.values()], [result for _, result in found.values()]
