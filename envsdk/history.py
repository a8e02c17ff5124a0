"""History policies: what of the past stays visible to the model.

A policy looks at what was added since it last looked and either keeps the past, which is the rule, or declares a
rewrite of it. Policies are frozen configuration; what they remember lives in the context, so one object serves many.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .action import RewriteReason
from .errors import ConfigError, ContextFull, unknown_name, what_is_invalid
from .messages import Message
from .renderer import Renderer


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

    def specification(self) -> dict[str, Any]:
        """The policy as JSON: its name and options."""
        return {"name": self.name or type(self).__name__, **self.model_dump(mode="json")}


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
        shown = [_without_reasoning(message) for message in messages[first:]]
        return Rewrite(start + first, shown, "compaction", f"after {history.steps} steps")


Stage: TypeAlias = Literal["thinking", "tool_results", "oldest"]
DROPPED_RESULT = "[This result was dropped to save space.]"


class Budget(HistoryPolicy):
    """Rewrites only when the prompt would pass a limit, and then down to a part of it, so that it does so rarely."""

    name: ClassVar[str] = "budget"

    max_tokens: int = Field(ge=1)
    """The longest prompt, in tokens."""
    target: float = Field(default=0.5, gt=0, le=1)
    """The part of `max_tokens` that a rewrite aims at."""
    order: Annotated[tuple[Stage, ...], Field(min_length=1)] = ("thinking", "tool_results", "oldest")
    """What is dropped, in this order, the oldest first: reasoning; the content of tool results (a notice takes its
    place); replies together with what the environment answered. The first turn stays, and so does the last reply with
    its answer."""

    def view(self, history: History) -> Rewrite | None:
        """Drop the oldest things, stage by stage, until the target is reached."""
        if history.length <= self.max_tokens:
            return None
        draft = _Draft(history, goal=int(self.target * self.max_tokens))
        for stage in self.order:
            draft.drop(stage)
        if draft.length > self.max_tokens:
            raise ContextFull(
                f"the prompt has {history.length} tokens, the budget is {self.max_tokens}, and dropping {self.order} "
                f"leaves {draft.length}"
            )
        return draft.rewrite()


class _Draft:
    """A view from which things are being dropped until it is short enough."""

    def __init__(self, history: History, goal: int) -> None:
        self.length = history.length
        self._history = history
        self._goal = goal
        self._messages: list[Message | None] = list(history.messages)
        self._tokens: dict[int, int] = {}  # of the messages that were replaced

    def drop(self, stage: Stage) -> None:
        """Drop the oldest things of one kind, until the goal is reached."""
        steps: dict[Stage, Callable[[int], None]] = {
            "thinking": self._drop_thinking,
            "tool_results": self._drop_result,
            "oldest": self._drop_round,
        }
        for index in range(len(self._messages)):
            if self.length <= self._goal:
                return
            steps[stage](index)

    def rewrite(self) -> Rewrite:
        """The draft as a rewrite."""
        old = self._history.messages
        start = next(i for i, message in enumerate(self._messages) if message is not old[i])
        left = [message for message in self._messages[start:] if message is not None]
        return Rewrite(start, left, "budget", f"{self._history.length} to about {self.length} tokens")

    def _drop_thinking(self, index: int) -> None:
        message = self._messages[index]
        if message is not None and message.reasoning is not None:
            self._replace(index, _without_reasoning(message))

    def _drop_result(self, index: int) -> None:
        message = self._messages[index]
        is_old = index < self._history.new
        if is_old and message is not None and message.role == "tool" and message.content != DROPPED_RESULT:
            self._replace(index, message.model_copy(update={"content": DROPPED_RESULT, "parts": None}))

    def _drop_round(self, index: int) -> None:
        """Drop a reply and all up to the next one: so no tool result stays without its call."""
        if index < self._history.opening or not self._is_reply(index):
            return
        end = index + 1
        while end < len(self._messages) and not self._is_reply(end):
            end += 1
        if end < len(self._messages):
            for position in range(index, end):
                self.length -= self._count(position)
                self._messages[position] = None

    def _is_reply(self, index: int) -> bool:
        message = self._messages[index]
        return message is not None and message.role == "assistant"

    def _replace(self, index: int, message: Message) -> None:
        """Put a message in the place of one that is longer."""
        before, after = self._count(index), self._history.measure(index, message)
        if after < before:
            self.length -= before - after
            self._tokens[index] = after
            self._messages[index] = message

    def _count(self, index: int) -> int:
        return self._tokens.get(index, self._history.tokens(index))


def _without_reasoning(message: Message) -> Message:
    return message if message.reasoning is None else message.model_copy(update={"reasoning": None})


_POLICIES: dict[str, type[HistoryPolicy]] = {policy.name: policy for policy in (Keep, Strip, Compact, Budget)}


def is_named(policy: HistoryPolicy) -> bool:
    """Whether `get_history` finds the policy by its name."""
    return _POLICIES.get(policy.name) is type(policy)


def get_history(value: "str | Mapping[str, Any] | HistoryPolicy") -> HistoryPolicy:
    """Find a history policy.

    Args:
        value: A policy; a name (`"keep"`); or a name with options (`{"name": "compact", "every": 10}`).

    Raises:
        UnknownName: If no policy has that name.
        ConfigError: If an option is missing, unknown or out of range.
    """
    if isinstance(value, HistoryPolicy):
        return value
    if not isinstance(value, (str, Mapping)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"history is {value!r:.80}; expected a name, a name with options, or a HistoryPolicy object")
    options = {"name": value} if isinstance(value, str) else dict(value)
    name = options.pop("name", None)
    if name not in _POLICIES:
        raise unknown_name(
            "history policy", name, _POLICIES, "One of your own is passed as an object: history=Mine(...)"
        )
    try:
        return _POLICIES[name](**options)
    except ValidationError as error:
        known = ", ".join(_POLICIES[name].model_fields) or "none"
        raise ConfigError(f"history policy {name!r}: {what_is_invalid(error)}. Its options: {known}") from error
