"""The memory of a session between requests: values that were read, and responses that later requests name."""

import hashlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...messages import ToolSchema
from .._requests import ReceivedMessage
from ._fields import json_bytes

T = TypeVar("T")
_Known = dict[tuple[int, bytes], tuple[Any, Any]]
"""The values of a list and what they contain, by their index and hash."""
_REQUESTS = 16  # requests whose values are remembered: parallel conversations of one session alternate


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that later requests may name.

    Attributes:
        messages: The whole conversation, up to and with the reply. System messages are among them.
        tools: The tools of the conversation, where the protocol keeps them.
        body: The response, whose `output` has items with an `id`; empty if it cannot be retrieved.
    """

    messages: Sequence[ReceivedMessage]
    tools: Sequence[ToolSchema] = ()
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(eq=False, repr=False)
class SessionMemory:
    """The memory of one session between its requests. It is not safe to use from several threads at once.

    Args:
        max_responses: The maximum number of responses that are kept. The least recently used one is forgotten first.
    """

    max_responses: int = 1024
    _responses: OrderedDict[str, StoredResponse] = field(default_factory=OrderedDict[str, StoredResponse])
    _items: dict[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict[str, tuple[str, Mapping[str, Any]]])
    """With the id of the response."""
    _recent: defaultdict[tuple[str, str], deque[_Known]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_REQUESTS))
    )

    def keep(self, id: str, response: StoredResponse) -> None:
        """Keep a response."""
        self._responses[id] = response
        self._items.update((item["id"], (id, item)) for item in response.body.get("output", ()))
        if len(self._responses) > self.max_responses:
            self.forget(next(iter(self._responses)))

    def forget(self, id: str) -> None:
        """Forget a response and its items. Responses that continue it are kept."""
        for item in self._responses.pop(id).body.get("output", ()):
            del self._items[item["id"]]

    def response(self, id: str) -> StoredResponse | None:
        """Return a response; None if it is not known (any more)."""
        if id in self._responses:
            self._responses.move_to_end(id)
        return self._responses.get(id)

    def item(self, id: str) -> Mapping[str, Any] | None:
        """Return an item of a response's output by its id; None if it is not known (any more)."""
        response_id, item = self._items.get(id, ("", None))
        self.response(response_id)
        return item

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
