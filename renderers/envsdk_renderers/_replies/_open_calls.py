"""Matches each tool's result with the call of a reply that it answers. Knows nothing about tokens or templates."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from envsdk.errors import RenderError
from envsdk.messages import Message, ToolCall


@dataclass(eq=False, repr=False)
class OpenCalls:
    """The calls of one reply, and which of them are already answered.

    Args:
        calls: The calls.
    """

    _calls: Sequence[ToolCall] = ()
    _answered: set[int] = field(default_factory=set[int])

    def answered_by(self, result: Message) -> int | None:
        """Return the index of the call that the next result answers; None if no call is left.

        A result answers the call with its `tool_call_id`. If no call has an id, or the result has none, it answers the
        first open call of the tool that it names, or the first open call if no call has that name.

        Raises:
            RenderError: If no call has the result's id, or the call with that id is a call of another tool.
        """
        call_id, name = result.tool_call_id, result.name
        ids = dict.fromkeys(call.id for call in self._calls if call.id is not None)
        by_id = [index for index, call in enumerate(self._calls) if ids and call_id is not None and call.id == call_id]
        named = [index for index, call in enumerate(self._calls) if name and call.name == name]
        if ids and call_id is not None and not by_id:
            raise RenderError(
                f"a tool message has the tool_call_id {call_id!r}, which no call of the reply before it has; their "
                f"ids are {', '.join(map(repr, ids))}"
            )
        fitting = by_id or named or [*range(len(self._calls))]
        index = next((index for index in fitting if index not in self._answered), None)
        if index is None and (by_id or named):
            index = fitting[-1]
        if index is None:
            return None
        called = self._calls[index].name
        if by_id and name and name != called:  # a spoiled call has no name
            raise RenderError(
                f"a tool message has the name {name!r} and the tool_call_id {call_id!r}, which is a call of "
                f"{called!r}; give only one of the two, or make them match"
            )
        self._answered.add(index)
        return index
