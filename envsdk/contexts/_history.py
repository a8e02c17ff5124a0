"""History policies: which part of the past stays visible to the model.

A policy examines the messages that were added since its last call, and either keeps the past or declares a rewrite of
it. Policies are immutable; their state is in the context, so one object serves many contexts. Authors import the names
from `envsdk.history`.
"""

import functools
import inspect
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import to_jsonable_python

from .._describing import what_is_invalid
from .._specifications import specification
from .._visible import brief
from ..errors import ConfigError, ContextFull, UnknownName
from ..messages import ImagePart, Message, TextPart, text_of
from ..rendering._whole import WholeRenderer
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


SUMMARY = "summary"
"""The role of an agent that writes a summary, in the name of its context: `main/summary-1`."""


def is_summary_of(name: str, context: str | None) -> bool:
    """Return whether a context is one in which the model wrote a summary of another one, by their names."""
    return name.startswith(f"{context}/{SUMMARY}-")


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


Stage: TypeAlias = Literal["thinking", "tool_results", "oldest", "images"]
DROPPED_RESULT = "[This result was dropped to save space.]"
DROPPED_IMAGE = "[An image was dropped to save space.]"
INSTRUCTION = (
    "Stop here for a moment. Write a summary of everything above for yourself: the task, what was done, what came out "
    "of it, and what is left to do. It takes the place of the conversation, so leave out nothing that you still need. "
    "Answer with the summary alone."
)
HEADING = "Summary of the conversation so far:\n\n"


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
        # A new query may change the messages since the last query (or since the last N queries, if the template shows
        # the reasoning after N of them). Without a new query, only the message before the new ones may change.
        settled, count = max(0, history.new - 1), renderer.settling_messages
        if any(settles):
            before: list[int] = state.get("queries", [])
            settled = before[0] if len(before) == count else 0
            state["queries"] = [*before, *(i for i, is_query in enumerate(settles, history.new) if is_query)][-count:]
        is_whole = "unknown" in state or ("queries" not in state and isinstance(renderer, WholeRenderer))
        if is_whole:  # O(context)
            settled, shown = 0, renderer.visible(messages)
        elif "queries" in state:
            shown = renderer.visible(messages, settled)
        else:  # no query so far, so the new messages are a conversation without one
            shown = renderer.visible(messages[settled:])
        changed = [i for i, message in enumerate(shown, settled) if message is not messages[i]]
        if not changed and not is_whole:
            return None
        start = 0 if is_whole else changed[0]
        reason = "thinking_stripped" if any(messages[i].reasoning for i in changed) else "template"
        return Rewrite(start, shown[start - settled :], reason, as_template=True)


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
        if self.keep_images is not None:
            first, shown = 0, [*history.messages[:start], *shown]
            counts = [len(message.images) for message in shown]
            left = min(sum(counts[: history.new]), max(0, sum(counts) - self.keep_images))
            for index, message in enumerate(shown):
                shown[index] = without_images(message, left)
                left -= min(left, len(message.images))
        changed = next((i for i, one in enumerate(shown) if one is not history.messages[first + i]), None)
        if changed is None:
            return None
        images = names_of_dropped(history.messages[first:], shown)
        return Rewrite(first + changed, shown[changed:], "compaction", f"after {history.steps} steps{images}")


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
        draft = _Draft(history, self)
        for stage in self.order:
            draft.drop(stage)
        if draft.length > self.max_tokens:
            raise ContextFull(
                f"the prompt has {history.length} tokens, the budget is {self.max_tokens}, and dropping {self.order} "
                f"leaves {draft.length}"
            )
        start = next(i for i, message in enumerate(draft.messages) if message is not history.messages[i])
        left = [message for message in draft.messages[start:] if message is not None]
        images = names_of_dropped(history.messages[start:], left)
        detail = f"{history.length} to about {draft.length} tokens{images}"
        return Rewrite(start, left, "budget", detail)


class _Draft:
    """A view from which parts are dropped until it is short enough."""

    def __init__(self, history: History, budget: Budget) -> None:
        self.length = history.length
        self.messages: list[Message | None] = list(history.messages)
        self._history = history
        self._goal, self._keep_images = int(budget.target * budget.max_tokens), budget.keep_images
        self._tokens: dict[int, int] = {}  # of the messages that were replaced

    def drop(self, stage: Stage) -> None:
        """Drop the oldest parts of one kind, until the goal is reached."""
        for index, message in enumerate(self.messages):
            if self.length <= self._goal:
                return
            is_old = index < self._history.new
            if message is None:
                continue
            if stage == "oldest":
                self._drop_round(index)
            elif stage == "thinking" or (stage == "tool_results" and is_old):
                self._replace(index, without(message, stage))
            elif stage == "images" and is_old:
                # From the first image on, as long as the context has more than `keep_images` images.
                later = sum(len(m.images) for m in self.messages[index + 1 :] if m is not None)
                while self.length > self._goal and message.images and len(message.images) + later > self._keep_images:
                    message = without_images(message, 1)
                    if not self._replace(index, message):
                        break

    def _drop_round(self, index: int) -> None:
        """Drop a reply and all messages up to the next reply, so that no tool result stays without its call."""
        later = enumerate(self.messages[index:], index)
        replies = (i for i, message in later if message is not None and message.role == "assistant")
        if index < self._history.opening or next(replies, None) != index or (end := next(replies, None)) is None:
            return
        for position in range(index, end):
            self.length -= self._tokens.get(position, self._history.tokens(position))
            self.messages[position] = None

    def _replace(self, index: int, message: Message) -> bool:
        """Replace a message if the new one has fewer tokens; return whether it has."""
        if message is self.messages[index]:
            return False
        before = self._tokens.get(index, self._history.tokens(index))
        after = self._history.measure(index, message)
        if after < before:
            self.length -= before - after
            self._tokens[index] = after
            self.messages[index] = message
        return after < before


def without(message: Message, stage: Stage) -> Message:
    """Return a message without all that a stage drops inside messages, or itself if it has none of it."""
    if stage == "thinking":
        return message.with_reasoning(None)
    if stage == "tool_results" and message.role == "tool" and message.content != DROPPED_RESULT:
        return message.model_copy(update={"content": DROPPED_RESULT, "parts": None})
    return without_images(message, len(message.images)) if stage == "images" else message


def without_images(message: Message, count: int) -> Message:
    """Return a message without its first `count` images, or itself if it has none."""
    if message.parts is None or not message.images or not count:
        return message
    left, parts = count, list[TextPart | ImagePart]()
    for part in message.parts:
        is_dropped = left > 0 and isinstance(part, ImagePart)
        parts.append(TextPart(text=DROPPED_IMAGE) if is_dropped else part)
        left -= is_dropped
    return message.model_copy(update={"parts": tuple(parts), "content": text_of(parts)})


def names_of_dropped(before: Sequence[Message], after: Sequence[Message]) -> str:
    """Return the end of a break's detail, which names the dropped images once each; empty if there are none."""
    images, left = (Counter(image for message in messages for image in message.images) for messages in (before, after))
    names = [image.sha256[:12] for image in images - left]
    return f"; dropped image{'s' if len(names) > 1 else ''} {', '.join(names)}" if names else ""


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
        start, stop = history.opening, last_reply(history)
        return Rewrite(start, [message, *history.messages[stop:]], "summary", f"{stop - start} messages")

    def request(self, history: History) -> SummaryRequest | None:
        """Request a summary when the context is too long and there is a reply to summarize."""
        if history.length <= self.threshold:
            return None
        old = list(history.messages[history.opening : last_reply(history)])
        if not any(message.role == "assistant" for message in old):
            return None
        return SummaryRequest(old, self.summarizer, self.instruction, self.max_tokens)

    def rejects(self, history: History, summary: str) -> str | None:
        """Return why a summary is rejected: it is empty, not shorter than what it replaces, or not accepted."""
        if not summary.strip():
            return "it is empty"
        old = sum(history.tokens(index) for index in range(history.opening, last_reply(history)))
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
        named = {key: name_of(value) for key, value in functions.items() if value is not None}
        return {**super().specification(), **named}


class Planned(HistoryPolicy):
    """Break where it costs least: after the steps of a schedule, or else where an online rule decides.

    A break shortens all messages between the first turn and the last replies by what is in `drops`, so a prompt depends
    only on where the last break was. `envsdk plan` finds the cheapest schedules of recorded episodes.

    The online rule knows only the past. A token of a prompt costs `cached` if a cache holds it, and 1 if not. The rule
    adds up what the prompts since the last break, the next one included, cost for tokens that a break would drop. It
    breaks when that is at least what a break costs now: `1 - cached` for each token that it writes again, which are
    those from the first message that changes up to the last reply.

    With `oldest` in `drops`, a break writes only the last replies and the messages between them again, and the rule has
    a competitive bound. Let X be the cost of a schedule beyond what every schedule pays: the shortest possible prompt
    of each step, from a cache except for its new messages. Let r be the most that a single break may cost in the
    episode, divided by the least. For every episode, and every schedule with the same `max_tokens`, X(online) <= 2 r
    X(schedule). Proof: look at the prompts after one break of the rule, up to its next one. The rule paid for dropped
    tokens less than a break one step earlier would have cost, and then it paid for the break: at most 2 r times the
    cheapest break. If the schedule breaks there as well, it paid at least that. If not, it paid for dropped tokens at
    least what made the rule break, which is the cost of its break, so the rule paid at most 1 + r times as much; and no
    limit made the rule break, since the schedule's prompt is at least as long. After the last break of the rule, the
    same holds without another one. It is the rule for acknowledgments of Dooly, Goldman and Scott (STOC 1998), with
    unequal costs. Without `oldest` there is no such bound; docs/history.md has what was measured.

    Attributes:
        max_tokens: The longest prompt, in tokens. A break comes before a longer one, also if there is a schedule.
        drops: What a break drops, as the stages of `Budget`. The first turn stays.
        keep_last: The number of last replies that stay whole, with the messages that answer them.
        cached: The price of a token of a prompt that a cache holds, divided by that of a token that it does not hold.
        at: The schedule: the numbers of steps after which it breaks. None for the online rule.
    """

    name: ClassVar[str] = "planned"

    max_tokens: int | None = Field(default=None, ge=1)
    drops: Annotated[tuple[Stage, ...], Field(min_length=1)] = ("thinking", "tool_results")
    keep_last: int = Field(default=1, ge=1)
    cached: float = Field(default=0.1, ge=0, le=1)
    at: tuple[Annotated[int, Field(ge=1)], ...] | None = None

    @property
    def full_beyond(self) -> int | None:
        """See `HistoryPolicy.full_beyond`."""
        return self.max_tokens

    def view(self, history: History) -> Rewrite | None:
        """Shorten the messages before the last replies, if a break is due."""
        state, messages, last = history.state, history.messages, last_reply(history, self.keep_last)
        # Both places count from the end of the first turn, which an environment may make longer.
        first = history.opening + state.setdefault("measured", 0)
        for index in range(first, last):
            message, length = shortened(history, index, self.drops)
            if message is not messages[index]:
                state.setdefault("changed", index - history.opening)
                state["saved"] = state.get("saved", 0) + history.tokens(index) - length
            if "changed" in state:
                state["written"] = state.get("written", 0) + length
            state["measured"] += 1
        saved = state.get("saved", 0)
        left, limit = history.length - saved, self.max_tokens or history.length
        state["carried"] = state.get("carried", 0.0) + self.cached * saved
        if left > limit:
            raise ContextFull(
                f"the prompt has {history.length} tokens, the limit is {limit}, and dropping {self.drops} leaves {left}"
            )
        if not saved:
            return None
        if self.at is None:
            written = state["written"] + sum(map(history.tokens, range(last, last_reply(history) + 1)))
            is_due = state["carried"] >= (1 - self.cached) * written
        else:
            is_due = history.steps in self.at
        if not is_due and history.length <= limit:
            return None
        first = history.opening + state["changed"]
        found = [shortened(history, index, self.drops)[0] for index in range(first, last)]
        kept = [message for message in found if message is not None]
        measured = state["changed"] + len(kept)
        state.clear()
        state["measured"] = measured
        reason = "budget" if history.length > limit and not is_due else "compaction"
        images = names_of_dropped(messages[first:last], kept)
        detail = f"after {history.steps} steps: {history.length} to about {left} tokens{images}"
        return Rewrite(first, [*kept, *messages[last:]], reason, detail)


def shortened(history: History, index: int, drops: Sequence[Stage]) -> tuple[Message | None, int]:
    """Return what a break leaves of an old message, and its number of tokens: the message itself if nothing is saved.

    Args:
        history: The context.
        index: The index of the message in the view.
        drops: The stages of dropping.
    """
    message = old = history.messages[index]
    if "oldest" in drops:
        return None, 0
    message = functools.reduce(without, drops, message)
    before = history.tokens(index)
    after = before if message is old else history.measure(index, message)
    return (message, after) if after < before else (old, before)


def last_reply(history: History, count: int = 1) -> int:
    """Return the index of the last reply, or of the one `count` from the end.

    If there are not as many, it is the index of the first message after the first turn.
    """
    indices = range(len(history.messages) - 1, history.opening - 1, -1)
    replies = (index for index in indices if history.messages[index].role == "assistant")
    return next(islice(replies, count - 1, None), history.opening)


POLICIES: dict[str, type[HistoryPolicy]] = {
    policy.name: policy for policy in (Keep, Strip, Compact, Budget, Summarize, Planned)
}


def is_named(policy: HistoryPolicy) -> bool:
    """Return whether `get_history` can make the policy from its name."""
    return POLICIES.get(policy.name) is type(policy)


def get_history(value: "str | Mapping[str, Any] | HistoryPolicy") -> HistoryPolicy:
    """Return a history policy, given as an object, a name, or a name with options.

    Args:
        value: A policy; a name (`"keep"`); or a name with options (`{"name": "compact", "every": 10}`, or
            `"compact:every=10"`).

    Raises:
        UnknownName: If no policy has that name.
        ConfigError: If an option is missing, unknown or out of range.
    """
    if isinstance(value, HistoryPolicy):
        return value
    if not isinstance(value, (str, Mapping)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"history is {brief(value)}; expected a name, a name with options, or a HistoryPolicy object")
    given = specification(value) if isinstance(value, str) else value
    options = {"name": given} if isinstance(given, str) else dict(given)
    name = options.pop("name", None)
    if not isinstance(name, str) or name not in POLICIES:
        raise UnknownName.of(
            "history policy", name, POLICIES, "Pass a policy of your own as an object: history=MyPolicy(...)"
        )
    try:
        return POLICIES[name].model_validate(options)
    except ValidationError as error:
        known = POLICIES[name].model_fields
        raise ConfigError(
            f"history policy {name!r}: {what_is_invalid(error, known)}. Its options: {', '.join(known) or 'none'}"
        ) from error
