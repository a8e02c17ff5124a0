"""Matches each tool's result with the call of a reply that it answers. Knows nothing about tokens or templates."""

from collections import deque
from collections.abc import Sequence

from envsdk.errors import RenderError
from envsdk.messages import Message, ToolCall


class OpenCalls:
    """The calls of one reply, and which of them are already answered.

    Args:
        calls: The calls.
    """

    def __init__(self, calls: Sequence[ToolCall] = ()) -> None:
        self._calls = calls
        self._answered: set[int] = set()
        self._in_order = deque(range(len(calls)))
        self._by_id: dict[str, deque[int]] = {}
        self._by_name: dict[str, deque[int]] = {}
        for index, call in enumerate(calls):
            self._by_name.setdefault(call.name, deque()).append(index)
            if call.id is not None:
                self._by_id.setdefault(call.id, deque()).append(index)

    def answered_by(self, result: Message) -> int | None:
        """Return the index of the call that the next result answers; None if no call is left.

        A result answers the call with its `tool_call_id`. If no call has an id, or the result has none, it answers the
        first open call of the tool that it names, or the first open call if no call has that name.

        Raises:
            RenderError: If no call has the result's id, or the call with that id is a call of another tool.
        """
        call_id, name = result.tool_call_id, result.name
        if call_id is not None and self._by_id:
            if call_id not in self._by_id:
                raise RenderError(
                    f"a tool message has the tool_call_id {call_id!r}, which no call of the reply before it has; their "
                    f"ids are {', '.join(map(repr, self._by_id))}"
                )
            index = self._first(self._by_id[call_id])
            called = self._calls[index].name
            if name and name != called:  # a spoiled call has no name
                raise RenderError(
                    f"a tool message has the name {name!r} and the tool_call_id {call_id!r}, which is a call of "
                    f"{called!r}; give only one of the two, or make them match"
                )
        elif name and name in self._by_name:
            index = self._first(self._by_name[name])
        else:
            index = self._first(self._in_order) if self._calls else None
            if index is None or index in self._answered:
                return None
        self._answered.add(index)
        return index

    def _first(self, indexes: deque[int]) -> int:
        """Return the first of these calls that is open, or else the last."""
        while len(indexes) > 1 and indexes[0] in self._answered:
            indexes.popleft()
        return indexes[0]
