"""A token budget: old messages are dropped only when the prompt would exceed it."""

from collections import Counter
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from ...errors import ContextFull
from ...messages import Message
from .._history_policy import History, HistoryPolicy, Rewrite
from ._images import names_of, without_images

Stage: TypeAlias = Literal["thinking", "tool_results", "oldest", "images"]
DROPPED_RESULT = "[This result was dropped to save space.]"


class Budget(HistoryPolicy):
    """Rewrite the past only when the prompt would exceed a limit, down to a fraction of it, so that rewrites are rare.

    Attributes:
        max_tokens: The longest prompt, in tokens.
        target: The fraction of `max_tokens` that a rewrite aims at, above 0 and at most 1.
        order: The stages of dropping, in order; each drops the oldest parts first: `thinking` (reasoning),
            `tool_results` (their content is replaced by a notice), `oldest` (replies together with the messages that
            answer them), `images` (each is replaced by a notice). The first turn stays, except its images, and so do
            the last reply and the messages that answer it.
        keep_images: The number of last images that the stage `images` keeps; it needs `images` in `order`.
    """

    name: ClassVar[str] = "budget"

    max_tokens: int = Field(ge=1)
    target: float = Field(default=0.5, gt=0, le=1)
    order: Annotated[tuple[Stage, ...], Field(min_length=1)] = ("thinking", "tool_results", "oldest")
    keep_images: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _keep_images_has_its_stage(self) -> Self:
        if self.keep_images and "images" not in self.order:
            raise ValueError(
                f"keep_images is {self.keep_images}, but order does not drop images: add 'images' to order"
            )
        return self

    @property
    def full_beyond(self) -> int:
        """See `HistoryPolicy.full_beyond`."""
        return self.max_tokens

    def view(self, history: History) -> Rewrite | None:
        """Drop the oldest parts, stage by stage, until the target is reached."""
        if history.length <= self.max_tokens:
            return None
        draft = _Draft(history, goal=int(self.target * self.max_tokens), keep_images=self.keep_images)
        for stage in self.order:
            draft.drop(stage)
        if draft.length > self.max_tokens:
            raise ContextFull(
                f"the prompt has {history.length} tokens, the budget is {self.max_tokens}, and dropping {self.order} "
                f"leaves {draft.length}"
            )
        return draft.rewrite()


class _Draft:
    """A view from which parts are dropped until it is short enough."""

    def __init__(self, history: History, goal: int, keep_images: int) -> None:
        self.length = history.length
        self._history = history
        self._goal = goal
        self._keep_images = keep_images
        self._messages: list[Message | None] = list(history.messages)
        self._tokens: dict[int, int] = {}  # of the messages that were replaced

    def drop(self, stage: Stage) -> None:
        """Drop the oldest parts of one kind, until the goal is reached."""
        for index, message in enumerate(self._messages):
            if self.length <= self._goal:
                return
            is_old = index < self._history.new
            if message is None:
                continue
            if stage == "oldest":
                self._drop_round(index)
            elif stage == "thinking" and message.reasoning is not None:
                self._replace(index, message.with_reasoning(None))
            elif stage == "tool_results" and is_old and message.role == "tool" and message.content != DROPPED_RESULT:
                self._replace(index, message.model_copy(update={"content": DROPPED_RESULT, "parts": None}))
            elif stage == "images" and is_old:
                self._drop_images(index, message)

    def rewrite(self) -> Rewrite:
        """Return the draft as a rewrite."""
        old = self._history.messages
        start = next(i for i, message in enumerate(self._messages) if message is not old[i])
        left = [message for message in self._messages[start:] if message is not None]
        shown = Counter(image for message in left for image in message.images)
        dropped = Counter(image for message in old[start:] for image in message.images) - shown
        detail = f"{self._history.length} to about {self.length} tokens{names_of(dropped)}"
        return Rewrite(start, left, "budget", detail)

    def _drop_images(self, index: int, message: Message) -> None:
        """Drop images of an old message, from the first one on, as long as `keep_images` images follow."""
        later = sum(len(m.images) for m in self._messages[index + 1 :] if m is not None)
        while self.length > self._goal and message.images and len(message.images) + later > self._keep_images:
            message = without_images(message, 1)
            if not self._replace(index, message):
                return

    def _drop_round(self, index: int) -> None:
        """Drop a reply and all messages up to the next reply, so that no tool result stays without its call."""
        replies = (i for i in range(index, len(self._messages)) if self._is_reply(i))
        if index < self._history.opening or next(replies, None) != index or (end := next(replies, None)) is None:
            return
        for position in range(index, end):
            self.length -= self._tokens.get(position, self._history.tokens(position))
            self._messages[position] = None

    def _is_reply(self, index: int) -> bool:
        message = self._messages[index]
        return message is not None and message.role == "assistant"

    def _replace(self, index: int, message: Message) -> bool:
        """Replace a message if the new one has fewer tokens; return whether it has."""
        before = self._tokens.get(index, self._history.tokens(index))
        after = self._history.measure(index, message)
        if after < before:
            self.length -= before - after
            self._tokens[index] = after
            self._messages[index] = message
        return after < before
