"""What a request of a program is: the next one of a conversation, the first one of another, or a retry."""

from dataclasses import dataclass

from ..messages import Message, ToolSchema
from ._requests import ModelRequest


@dataclass(frozen=True, slots=True)
class Continues:
    """A request that continues a conversation.

    Attributes:
        context: The name of its context.
        messages: The messages after `keep`. One that is recorded already, such as a reply, is the recorded object.
        keep: None if the whole conversation stays and `messages` follow; else how many of its messages stay, including
            its system message if it has one: `messages` replace the others.
        changed: What changed first, for people; empty if `keep` is None.
        system: The new system text, empty if it was left out; None if it is the context's.
        tools: The new tools; None if they are the context's.
        was_choice: Whether it fits other contexts equally well.
    """

    context: str
    messages: tuple[Message, ...]
    keep: int | None = None
    changed: str = ""
    system: str | None = None
    tools: tuple[ToolSchema, ...] | None = None
    was_choice: bool = False


@dataclass(frozen=True, slots=True)
class Opens:
    """A request that opens a context.

    Attributes:
        context: Its name, which no other context has.
        role: Its role.
        messages: The messages after the first `keep` of `base`, without the system message.
        system: The text of its system message, which replaces that of `base`; None without any.
        tools: Its tools.
        base: The context whose messages it begins with; None if it shares none.
        keep: How many messages of `base` it begins with, including the system message of `base` if that has one. They
            may include those of a request to which no reply was given yet.
        was_choice: Whether it begins with other contexts equally well.
    """

    context: str
    role: str
    messages: tuple[Message, ...]
    system: str | None
    tools: tuple[ToolSchema, ...]
    base: str | None = None
    keep: int = 0
    was_choice: bool = False

    @property
    def detail(self) -> str:
        """Why the context is opened, for people."""
        return f"{self.role}: a conversation of its own" if self.base is None else f"from {self.base}"


@dataclass(frozen=True, slots=True)
class Repeats:
    """A retry of a request whose reply did not reach the program.

    Attributes:
        request: The earlier request; its replies are the answer.
    """

    request: ModelRequest
