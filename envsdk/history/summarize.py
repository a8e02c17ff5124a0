"""Summaries: what is old is replaced by what somebody writes about it."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import Field

from ..contexts.history_policy import History, HistoryPolicy, Rewrite, SummaryRequest, Writer
from ..messages import Message

INSTRUCTION = (
    "Stop here for a moment. Write a summary of everything above for yourself: the task, what was done, what came out "
    "of it, and what is left to do. It takes the place of the conversation, so leave out nothing that you still need. "
    "Answer with the summary alone."
)
HEADING = "Summary of the conversation so far:\n\n"


class Summarize(HistoryPolicy):
    """Replaces what is old by a summary, which the model writes, or a function.

    The first turn stays, and so does the last reply with its answer; what stands between them becomes one user message.
    The model writes it in a context of its own that starts with all of this one: those tokens are trained like any
    others. A summary that is rejected (empty, cut, not shorter than what it replaces, or not accepted) is recorded with
    the reason and not trained; nothing is replaced, and after the next reply another one is asked for.
    """

    name: ClassVar[str] = "summarize"

    threshold: int = Field(ge=1)
    """A summary is written when the context, the last reply included, has more tokens than this."""
    summarizer: Writer | None = Field(default=None, exclude=True)
    """Writes the summary of the messages that it replaces. None: the model does."""
    instruction: str = Field(default=INSTRUCTION, min_length=1)
    """What the model is asked."""
    heading: str = HEADING
    """What stands before the summary."""
    max_tokens: int | None = Field(default=None, ge=1)
    """How many tokens the model may use for it, its reasoning included."""
    accept: Callable[[str], bool] | None = Field(default=None, exclude=True)
    """Whether a summary is good enough."""

    def view(self, history: History) -> Rewrite | None:
        """Put the summary in the place of what it is about."""
        if history.summary is None:
            return None
        message = Message(role="user", content=self.heading + history.summary)
        start, stop = history.opening, _last_reply(history)
        return Rewrite(start, [message, *history.messages[stop:]], "summary", f"{stop - start} messages")

    def request(self, history: History) -> SummaryRequest | None:
        """Ask for a summary when the context is too long and there is a reply to be summarised."""
        if history.length <= self.threshold:
            return None
        old = list(history.messages[history.opening : _last_reply(history)])
        if not any(message.role == "assistant" for message in old):
            return None
        return SummaryRequest(old, self.summarizer, self.instruction, self.max_tokens)

    def rejects(self, history: History, summary: str) -> str | None:
        """Refuse one that is empty, or saves nothing, or is not accepted."""
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
        """Whether the model writes the summaries."""
        return self.summarizer is None

    @property
    def is_async(self) -> bool:
        """Whether the summarizer is `async def`."""
        return inspect.iscoroutinefunction(self.summarizer)

    def specification(self) -> dict[str, Any]:
        """See `HistoryPolicy.specification`; functions by their names."""
        functions = {"summarizer": self.summarizer, "accept": self.accept}
        named = {key: _name(value) for key, value in functions.items() if value is not None}
        return {**super().specification(), **named}


def _last_reply(history: History) -> int:
    """The index of the last reply; that of the first message behind the first turn, if there is none."""
    replies = range(len(history.messages) - 1, history.opening - 1, -1)
    return next((index for index in replies if history.messages[index].role == "assistant"), history.opening)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
