"""Policies for reasoning: keep it, show what the template shows, or drop it every N steps."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from ...images import Image
from ...rendering._whole import WholeRenderer
from .._history_policy import History, HistoryPolicy, Rewrite
from .._protocol import RewriteReason
from ._images import names_of, without_old_images


class Keep(HistoryPolicy):
    """Keep everything visible: each prompt extends the one before it."""

    name: ClassVar[str] = "keep"

    def view(self, history: History) -> Rewrite | None:
        """Keep the past."""
        return None


class Strip(HistoryPolicy):
    """Show what the model's own chat template shows: usually, reasoning before the last user query is dropped."""

    name: ClassVar[str] = "strip"

    def view(self, history: History) -> Rewrite | None:
        """Rewrite the view, starting at the first message that the template shows differently."""
        renderer, messages, state = history.renderer, history.messages, history.state
        settles = [renderer.settles(message) for message in messages[history.new :]]
        if None in settles:
            state["unknown"] = True  # only a rendering of the whole conversation shows what the template shows
        if "unknown" in state:
            return self._whole(history)
        # A new query may change the messages since the last query (or since the last N queries, if the template shows
        # the reasoning after N of them). Without a new query, only the message before the new ones may change.
        settled, count = max(0, history.new - 1), renderer.settling_messages
        if any(settles):
            before: list[int] = state.get("queries", [])
            settled = before[0] if len(before) == count else 0
            state["queries"] = [*before, *(i for i, is_query in enumerate(settles, history.new) if is_query)][-count:]
        if "queries" in state:
            shown = renderer.visible(messages, settled)
        elif isinstance(renderer, WholeRenderer):
            return self._whole(history)
        else:  # no query so far, so the new messages are a conversation without one
            shown = renderer.visible(messages[settled:])
        changed = [i for i, message in enumerate(shown, settled) if message is not messages[i]]
        if not changed:
            return None
        return Rewrite(changed[0], shown[changed[0] - settled :], self._reason(history, changed), as_template=True)

    def _whole(self, history: History) -> Rewrite:
        """Return a rewrite to the whole conversation as the template shows it, if its rule is not known. O(context)."""
        shown = history.renderer.visible(history.messages)
        changed = [i for i, message in enumerate(shown) if message is not history.messages[i]]
        return Rewrite(0, shown, self._reason(history, changed), as_template=True)

    def _reason(self, history: History, changed: Sequence[int]) -> RewriteReason:
        loses_thinking = any(history.messages[i].reasoning for i in changed)
        return "thinking_stripped" if loses_thinking else "template"


class Compact(HistoryPolicy):
    """Keep all reasoning for `every` steps, then drop the reasoning of older replies, after the current query as well.

    Attributes:
        every: The number of steps per segment: steps 1 to N form the first segment, steps N + 1 to 2N the next.
        keep_last: The number of last replies that keep their reasoning when the older ones lose theirs.
        keep_images: The number of last images that stay then; None keeps all of them. Images that the model has not
            seen yet always stay.
    """

    name: ClassVar[str] = "compact"

    every: int = Field(ge=1)
    keep_last: int = Field(default=0, ge=0)
    keep_images: int | None = Field(default=None, ge=0)

    def view(self, history: History) -> Rewrite | None:
        """Drop the reasoning of replies that are older than the last `keep_last`, every `every` steps."""
        if not history.steps or history.steps % self.every:
            return None
        start = history.state.get("compacted", 0)
        messages = history.messages[start:]
        replies = [i for i, message in enumerate(messages) if message.role == "assistant"]
        end = len(messages) if not self.keep_last else replies[-self.keep_last] if self.keep_last < len(replies) else 0
        history.state["compacted"] = start + end
        first, shown = start, [*(message.with_reasoning(None) for message in messages[:end]), *messages[end:]]
        dropped: list[Image] = []
        if self.keep_images is not None:
            first, shown = 0, [*history.messages[:start], *shown]
            images = [image for message in shown for image in message.images]
            old = sum(len(message.images) for message in shown[: history.new])
            dropped = images[: min(old, max(0, len(images) - self.keep_images))]
            shown = without_old_images(shown, len(images) - len(dropped))
        changed = next((i for i, one in enumerate(shown) if one is not history.messages[first + i]), None)
        if changed is None:
            return None
        detail = f"after {history.steps} steps{names_of(dropped)}"
        return Rewrite(first + changed, shown[changed:], "compaction", detail)
