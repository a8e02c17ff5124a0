"""The interface of history policies: what a policy sees, and what it returns.

Authors import it from `envsdk.history`.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_jsonable_python

from ..messages import Message
from ..rendering.renderer import Renderer
from ._protocol import RewriteReason

Writer: TypeAlias = Callable[[list[Message]], str | Awaitable[str | None] | None]
"""Writes a summary of messages, or returns None for no summary. It may be `async def`."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A declared change of the past: the view from message `start` on becomes `messages`.

    Attributes:
        start: The index of the first message that changes.
        messages: The messages that the model sees from there on.
        reason: The reason of the break.
        detail: More about the reason, for people.
        as_template: For a renderer that renders only whole conversations: render the view as its template does, not by
            joining replies and deltas.
    """

    start: int
    messages: Sequence[Message]
    reason: RewriteReason
    detail: str = ""
    as_template: bool = False


@dataclass(slots=True)
class History:
    """The part of a context that a history policy sees.

    Attributes:
        messages: The view: the messages that the model would see without a rewrite. Read-only.
        new: The index of the first message that was added since the policy's last call.
        opening: The number of messages of the first turn.
        steps: The number of replies so far, hidden ones included.
        length: The number of tokens that the next prompt would have.
        renderer: The renderer of the context.
        state: The policy's own memory for this context, empty at first.
        tokens: `tokens(index)` returns the number of tokens of a message.
        measure: `measure(index, message)` returns the number of tokens that a message would have in place of the one
            at `index`. O(its length).
        summary: The summary that the policy requested, if it has been written.
    """

    messages: Sequence[Message]
    new: int
    opening: int
    steps: int
    length: int
    renderer: Renderer
    state: dict[str, Any]
    tokens: Callable[[int], int] = field(repr=False)
    measure: Callable[[int, Message], int] = field(repr=False)
    summary: str | None = None


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """A policy's request for a summary.

    Attributes:
        messages: The messages to summarize.
        writer: The function that writes the summary. If it is None, the model writes it, in a context that starts with
            all of this one and ends with `instruction`.
        instruction: The user message that requests it.
        max_tokens: The most tokens that the model may sample for it, its reasoning included; None for no limit.
    """

    messages: list[Message]
    writer: Writer | None = None
    instruction: str = ""
    max_tokens: int | None = None


class HistoryPolicy(BaseModel, ABC):
    """The base class of history policies. Its fields are the policy's options."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)  # at its first use, not at import

    name: ClassVar[str] = ""
    """The name for `history=`. It may be empty for your own policies, which are passed as objects."""

    @abstractmethod
    def view(self, history: History) -> Rewrite | None:
        """Return what the model sees from now on; None keeps the past.

        It is called before every prompt. A step costs O(new tokens) if it examines `history.messages[history.new:]`
        and not the whole past.

        Raises:
            ContextFull: If the context is too long and nothing can be dropped; the episode is then truncated.
        """

    def request(self, history: History) -> SummaryRequest | None:
        """Request a summary, which `view` then finds in `history.summary`; None requests none.

        It is called after the environment has answered a reply, before its turn is added: the view ends with a reply.
        """
        return None

    def rejects(self, history: History, summary: str) -> str | None:
        """Return why a summary is rejected, or None if it is accepted. A rejected summary is not trained."""
        return None

    @property
    def full_beyond(self) -> int | None:
        """The length of a prompt, in tokens, beyond which `view` may raise `ContextFull`; None if it never does."""
        return None

    @property
    def needs_model(self) -> bool:
        """True if the model itself writes something for the policy, such as a summary."""
        return False

    @property
    def is_async(self) -> bool:
        """True if the policy has an async function, such as a summarizer."""
        return False

    def specification(self) -> dict[str, Any]:
        """Return the policy as JSON: its name and options. A function is represented by its name."""
        return {"name": self.name or type(self).__name__, **to_jsonable_python(self, fallback=name_of)}


def name_of(option: object) -> str:
    """Return the name of a function, or of the class of another object."""
    return str(getattr(option, "__qualname__", None) or type(option).__qualname__)
