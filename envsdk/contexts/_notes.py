"""The notes of a model: one block of text that stays visible, whatever is dropped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from ..messages import Message, read_arguments

NOTE = "note"
"""The name of the tool whose calls make notes."""


class ShownNotes(NamedTuple):
    """A block of notes in a view."""

    message: Message
    """The message that shows the notes."""
    number: int
    """How many notes it shows."""
    instead_of: Message | None = None
    """The message to whose content it adds the notes, where the chat template allows no further message."""


@dataclass(slots=True)
class Notes:
    """What a model noted with the context tool `note`."""

    texts: list[str] = field(default_factory=list[str])
    """The notes, in order."""
    repeated: list[tuple[Message, int, int]] = field(default_factory=list[tuple[Message, int, int]])
    """The results of branches that repeat notes, each with the numbers of the first note and of the one after the last.
    """

    def since(self, start: int, last: Message | None) -> dict[str, Any]:
        """Return the notes from number `start` on as JSON, and those that `last` repeats if it ends a branch."""
        found: dict[str, Any] = {"start": start, "texts": self.texts[start:]}
        if self.repeated and self.repeated[-1][0] is last:
            found["repeated"] = self.repeated[-1][1:]
        return found

    def take(self, found: Mapping[str, Any], last: Message | None) -> None:
        """Take the notes that `since` returned."""
        self.texts[found["start"] :] = found["texts"]
        if "repeated" in found and last is not None:
            self.repeated.append((last, *found["repeated"]))

    def listed(self, start: int = 0) -> str:
        """Return the notes from number `start` on as text, with the number of each."""
        return "\n".join(f"{number}. {text}" for number, text in enumerate(self.texts[start:], start + 1))

    def block(self) -> str:
        """Return the text that shows all notes."""
        return f"Your notes so far:\n{self.listed()}"

    def are_hidden(self, view: Sequence[Message], shown: int) -> bool:
        """Return whether a note is neither among the first `shown` ones, nor in a call or a result that a view has."""
        if shown == len(self.texts):
            return False
        calls = [call for message in view for call in message.tool_calls if call.name == NOTE]
        given: list[Any] = [read_arguments(call.arguments) for call in calls]
        visible = {str(cast("dict[str, Any]", one).get("text")) for one in given if isinstance(one, dict)}
        ids = {id(message) for message in view}
        for message, start, stop in self.repeated:
            if id(message) in ids:
                visible.update(self.texts[start:stop])
        return any(text not in visible for text in self.texts[shown:])
