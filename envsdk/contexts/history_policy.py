"""What a history policy is, what it sees and what it answers."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_jsonable_python

from ..messages import Message
from ..rendering.renderer import Renderer
from .protocol import RewriteReason

Writer: TypeAlias = Callable[[list[Message]], str | Awaitable[str | None] | None]
"""Writes a summary of messages; None writes none. It may be `async def`."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A declared change of the past: the view from message `start` on becomes `messages`."""

    start: int
    messages: Sequence[Message]
    reason: RewriteReason
    detail: str = ""
    as_template: bool = False
    """For a renderer that renders only whole conversations: write the view as its template does, and not by joining
    replies and what followed them."""


@dataclass(slots=True)
class History:
    """What a policy sees."""

    messages: Sequence[Message]
    """The view: what the model would see if nothing were rewritten. Read-only."""
    new: int
    """The index of the first message that was added since the policy last looked."""
    opening: int
    """How many messages the first turn had."""
    steps: int
    """How many replies the context holds, hidden ones included."""
    length: int
    """How many tokens the next prompt would have."""
    renderer: Renderer
    state: dict[str, Any]
    """The policy's own memory for this context, empty at first."""
    tokens: Callable[[int], int] = field(repr=False)
    """`tokens(index)`: how many tokens a message has."""
    measure: Callable[[int, Message], int] = field(repr=False)
    """`measure(index, message)`: how many tokens a message would have in the place of that one; O(its length)."""
    summary: str | None = None
    """The summary that the policy asked for, if there is one now."""


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """A policy asks for a summary."""

    messages: list[Message]
    """What is to be summarised, ..."""
    writer: Writer | None = None
    """... by this function; None: by the model, in a context of its own that starts with all of this one, ..."""
    instruction: str = ""
    """... which ends with this user message."""
    max_tokens: int | None = None
    """How many tokens the model may use for it, its reasoning included."""


class HistoryPolicy(BaseModel, ABC):
    """The base class of history policies. Its fields are the policy's options."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str] = ""
    """The name that `history=` knows it by; one's own policies may do without and be passed as objects."""

    @abstractmethod
    def view(self, history: History) -> Rewrite | None:
        """Say what the model sees from now on; None keeps the past.

        It is called before every prompt. A step stays O(new tokens) if it looks at `history.messages[history.new:]`
        and not at the whole past.

        Raises:
            ContextFull: If the context is too long and nothing can be dropped; the episode is then truncated.
        """

    def request(self, history: History) -> SummaryRequest | None:
        """Ask for a summary, which `view` then finds in `history.summary`; None asks for none.

        It is called when the environment has answered a reply, before what it says is added: the view ends with a
        reply.
        """
        return None

    def rejects(self, history: History, summary: str) -> str | None:
        """Why a summary is of no use; None takes it. A rejected one is recorded, and gives no sample."""
        return None

    @property
    def needs_model(self) -> bool:
        """Whether it asks the model itself for something."""
        return False

    @property
    def is_async(self) -> bool:
        """Whether a function that it has asked for has to be waited for."""
        return False

    def specification(self) -> dict[str, Any]:
        """The policy as JSON: its name and options; of an option that is no JSON, such as a function, its name."""
        return {"name": self.name or type(self).__name__, **to_jsonable_python(self, fallback=_name)}


def _name(option: object) -> str:
    return str(getattr(option, "__qualname__", None) or type(option).__qualname__)
