"""The rule by which a chat template shows past reasoning, as data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from envsdk.messages import Message

Hides: TypeAlias = Literal["nothing", "everything", "before the last user messages", "up to the last answer"]


@dataclass(frozen=True)
class HistoryRule:
    """Which reasoning of past replies a chat template shows in a prompt."""

    hides: Hides
    """Which replies lose their reasoning. An answer is a reply without calls."""
    users: int = 1
    """The N of "before the last N user messages"."""
    shows_empty: bool = True
    """Whether an empty think block stays where reasoning would be shown."""
    has_calls: bool = True
    """Whether the rule is also proved for conversations with calls."""
    triggers: tuple[tuple[str, ...], ...] = ()
    """Texts of user and system messages that change what is shown: each time, all of them together in one message."""

    def __str__(self) -> str:
        reasoning = {
            "nothing": "no reasoning",
            "everything": "all reasoning",
            "before the last user messages": f"reasoning before the last {self.users} user messages",
            "up to the last answer": "reasoning up to the last answer",
        }[self.hides]
        return f"hides {reasoning}" + ("" if self.shows_empty else " and empty think blocks")

    def settles(self, message: Message) -> bool:
        """Return whether no message before the last `users` of these can change anymore."""
        if self.hides == "before the last user messages":
            return message.role == "user"
        if self.hides == "up to the last answer":
            return message.role == "assistant" and not message.tool_calls
        return message.role != "assistant"

    def covers(self, message: Message) -> bool:
        """Return whether the rule holds in a conversation with this message, in which control tokens are hidden."""
        if message.role == "assistant":
            return self.has_calls or not message.tool_calls
        return not any(all(text in message.content for text in texts) for texts in self.triggers)

    def visible(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages as the template shows them in a prompt; see `Renderer.visible`."""
        hidden = self._hidden(messages)
        return [
            message.with_reasoning(None) if index < hidden or not (message.reasoning or self.shows_empty) else message
            for index, message in enumerate(messages)
        ]

    def _hidden(self, messages: Sequence[Message]) -> int:
        """Return how many messages at the start have no visible reasoning."""
        if self.hides in ("nothing", "everything"):
            return len(messages) if self.hides == "everything" else 0
        settling = [index for index, message in enumerate(messages) if self.settles(message)]
        count = self.users if self.hides == "before the last user messages" else 1
        if len(settling) < count:
            return 0
        return settling[-count] + (self.hides == "up to the last answer")
