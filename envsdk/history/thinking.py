"""Policies for reasoning: keep it, show what the template shows, or drop it every so many steps."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from ..contexts.history_policy import History, HistoryPolicy, Rewrite
from ..contexts.protocol import RewriteReason


class Keep(HistoryPolicy):
    """Everything stays visible: the next prompt always extends the last one."""

    name: ClassVar[str] = "keep"

    def view(self, history: History) -> Rewrite | None:
        """Keep the past."""
        return None


class Strip(HistoryPolicy):
    """What the model's own chat template shows: mostly, reasoning before the last user query is dropped."""

    name: ClassVar[str] = "strip"

    def view(self, history: History) -> Rewrite | None:
        """Rewrite from the first message on that the template shows in another way."""
        if not history.renderer.knows_history:
            return self._whole(history)
        settled = self._settled(history)
        if "query" in history.state:
            shown = history.renderer.visible(history.messages, settled)
        else:  # nobody has asked yet: what is new is shown as a conversation without a query
            shown = history.renderer.visible(history.messages[settled:])
        changed = [i for i, message in enumerate(shown, settled) if message is not history.messages[i]]
        if not changed:
            return None
        return Rewrite(changed[0], shown[changed[0] - settled :], self._reason(history, changed))

    def _whole(self, history: History) -> Rewrite:
        """Ask for the whole conversation as the template renders it, since its rule is not known: O(context)."""
        shown = history.renderer.visible(history.messages)
        changed = [i for i, message in enumerate(shown) if message is not history.messages[i]]
        return Rewrite(0, shown, self._reason(history, changed), as_template=True)

    def _reason(self, history: History, changed: Sequence[int]) -> RewriteReason:
        loses_thinking = any(history.messages[i].reasoning for i in changed)
        return "thinking_stripped" if loses_thinking else "template"

    def _settled(self, history: History) -> int:
        """How many messages stay as they are.

        A new query changes what came since the last one; else the message before the new ones can change, which was the
        last one.
        """
        last = history.state.get("query")
        queries = [
            i for i in range(history.new, len(history.messages)) if history.renderer.settles(history.messages[i])
        ]
        if queries:
            history.state["query"] = queries[-1]
            return last or 0
        return max(0, history.new - 1)


class Compact(HistoryPolicy):
    """Keeps all reasoning for `every` steps, then drops all of it at once, the current query's included."""

    name: ClassVar[str] = "compact"

    every: int = Field(ge=1)
    """So many steps keep their reasoning: steps 1 to N form one segment, N + 1 to 2N the next."""

    def view(self, history: History) -> Rewrite | None:
        """Drop the reasoning of the steps since the last time, when there are `every` of them."""
        if not history.steps or history.steps % self.every:
            return None
        start = history.state.get("compacted", 0)
        history.state["compacted"] = len(history.messages)
        messages = history.messages[start:]
        first = next((i for i, message in enumerate(messages) if message.reasoning is not None), None)
        if first is None:
            return None
        shown = [message.with_reasoning(None) for message in messages[first:]]
        return Rewrite(start + first, shown, "compaction", f"after {history.steps} steps")
