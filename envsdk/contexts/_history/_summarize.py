"""Summaries: old messages are replaced by a summary that the model or a function writes."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import Field

from ...messages import Message
from .._history_policy import History, HistoryPolicy, Rewrite, SummaryRequest, Writer

INSTRUCTION = (
    "Stop here for a moment. Write a summary of everything above for yourself: the task, what was done, what came out "
    "of it, and what is left to do. It takes the place of the conversation, so leave out nothing that you still need. "
    "Answer with the summary alone."
)
HEADING = "Summary of the conversation so far:\n\n"


class Summarize(HistoryPolicy):
    """Replace old messages by a summary that the model or a function writes.

    The first turn stays, and so do the last reply and the messages that answer it; the messages between become one user
    message. The model writes the summary in a separate context that starts with all of this one; these tokens are
    trained like any others. A summary that is rejected (empty, cut, not shorter than what it replaces, or not accepted)
    is recorded with the reason and not trained; nothing is replaced, and another summary is requested after the next
    reply.

    Attributes:
        threshold: A summary is requested when the context, the last reply included, has more tokens than this.
        summarizer: The function that writes the summary of the messages. If it is None, the model writes it.
        instruction: The user message that requests the summary from the model.
        heading: The text before the summary.
        max_tokens: The most tokens that the model may sample for it, its reasoning included; None for no limit.
        accept: A function that returns whether a summary is good enough; None accepts all.
    """

    name: ClassVar[str] = "summarize"

    threshold: int = Field(ge=1)
    summarizer: Writer | None = Field(default=None, exclude=True)
    instruction: str = Field(default=INSTRUCTION, min_length=1)
    heading: str = HEADING
    max_tokens: int | None = Field(default=None, ge=1)
    accept: Callable[[str], bool] | None = Field(default=None, exclude=True)

    def view(self, history: History) -> Rewrite | None:
        """Replace the old messages by the summary, if there is one."""
        if history.summary is None:
            return None
        message = Message(role="user", content=self.heading + history.summary)
        start, stop = history.opening, _last_reply(history)
        return Rewrite(start, [message, *history.messages[stop:]], "summary", f"{stop - start} messages")

    def request(self, history: History) -> SummaryRequest | None:
        """Request a summary when the context is too long and there is a reply to summarize."""
        if history.length <= self.threshold:
            return None
        old = list(history.messages[history.opening : _last_reply(history)])
        if not any(message.role == "assistant" for message in old):
            return None
        return SummaryRequest(old, self.summarizer, self.instruction, self.max_tokens)

    def rejects(self, history: History, summary: str) -> str | None:
        """Return why a summary is rejected: it is empty, not shorter than what it replaces, or not accepted."""
        if not summary.strip():
            return "it is empty"
        old = sum(history.tokens(index) for index in range(history.opening, _last_reply(history)))
        length = len(history.renderer.tokenizer.encode(self.heading + summary))
        if length >= old:
            return f"it has {length} tokens, and what it replaces has {old}"
        if self.accept is not None and not self.accept(summary):
            return "it was not accepted"
        return None

    @property
    def needs_model(self) -> bool:
        """True if the model writes the summaries."""
        return self.summarizer is None

    @property
    def is_async(self) -> bool:
        """True if the summarizer is `async def`."""
        return inspect.iscoroutinefunction(self.summarizer)

    def specification(self) -> dict[str, Any]:
        """See `HistoryPolicy.specification`; functions by their names."""
        functions = {"summarizer": self.summarizer, "accept": self.accept}
        named = {key: _name(value) for key, value in functions.items() if value is not None}
        return {**super().specification(), **named}


def _last_reply(history: History) -> int:
    """Return the index of the last reply; without one, the index of the first message after the first turn."""
    replies = range(len(history.messages) - 1, history.opening - 1, -1)
    return next((index for index in replies if history.messages[index].role == "assistant"), history.opening)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
