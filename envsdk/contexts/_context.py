"""A context: the growing token sequence that one agent sees.

A context is only ever truncated and appended to. Its log holds every token that was observed or sampled, once, in
order; its view is the current prompt. Sampled tokens are never decoded and encoded again.
"""

import codecs
import copy
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from .._describing import encodable
from .._visible import brief
from ..errors import ContextFull, RenderError, UndeclaredBreak
from ..images import PlacedImage
from ..limits import StopReason
from ..messages import Message, TextPart, ToolSchema, check_calls
from ..rendering.renderer import NOT_ENDED, Renderer, WrittenPrompt, as_given, as_prefill
from ._edits import Edit, among, edited
from ._history import History, HistoryPolicy, Rewrite, SummaryRequest
from ._notes import Notes, ShownNotes
from ._protocol import Break, RewriteReason
from ._roles import RoleLog

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..rendering.reading import ReplyEvent, ReplyReader


class Delta(NamedTuple):
    """A change of a context: keep its first tokens, then append new ones.

    Attributes:
        tokens: The new tokens: int32, shape (n,).
        keep: How many tokens stay.
        break_: The break that declares the dropped tokens, or None if nothing was dropped.
        closed_reply: Whether the reply had to be closed, because its turn did not end.
        full: The reason why no further reply fits into the context, or None. If it is set, the delta has no generation
            prompt.
        media: The images in the new tokens, in order, with their positions in them.
    """

    tokens: "NDArray[np.int32]"
    keep: int
    break_: Break | None = None
    closed_reply: bool = False
    full: StopReason | None = None
    media: tuple[PlacedImage, ...] = ()


@dataclass(eq=False, repr=False)
class Context:
    """One context of an episode.

    Args:
        name: Its name, such as `main`.
        role: The role of its agent.
        renderer: Renders its messages.
        policy: The history policy, which decides which part of its past stays visible.
        parent: The context that opened this one, or None.
    """

    name: str
    role: str
    renderer: Renderer
    policy: HistoryPolicy
    parent: str | None = field(kw_only=True, default=None)
    messages: list[Message] = field(default_factory=list[Message])
    """All messages, in order. Rewrites change the view, never this record."""
    steps: int = 0
    inherited: int = 0
    """The number of messages that were copied from the context that this one started from."""
    is_trainable: bool = True
    """True if its samples are trained."""
    reward: float | None = None
    """The context's own reward; None if it shares the episode's."""
    conversation: list[Message] = field(default_factory=list[Message])
    """The conversation from the environment's point of view: its edits change it, the history policy does not."""
    unfolded: int = 0
    """The index in the conversation of the first message that a fold replaces. The messages before it are those that
    opened the context, and those that earlier folds left."""
    notes: Notes | None = None
    """The model's notes. After a rewrite that drops the call of a note, the view ends with the block of all notes."""
    log_tokens: "array[int]" = field(default_factory=lambda: array("i"))
    log_logprobs: "array[float]" = field(default_factory=lambda: array("f"))
    log_media: list[PlacedImage] = field(default_factory=list[PlacedImage])
    """The images in the log, with their positions in it."""
    roles: RoleLog | None = None
    """The labels of the tokens of the log, if they are recorded."""
    _prompt: WrittenPrompt = field(default_factory=WrittenPrompt)
    _seen: int = 0  # how many messages of the view the policy has seen
    _seen_before: int = 0  # the same before its last call
    _opening: int = 0
    _state: dict[str, Any] = field(default_factory=dict[str, Any])
    rewriting: str = ""
    """An example of how the chat template rewrites earlier text that the prompts keep; empty if it does not."""
    _cut: int = 0  # how many tokens of the last reply were dropped since the last observation
    turn: dict[str, Any] = field(default_factory=dict[str, Any])
    """How the last observation was made, unless its messages were appended as they are; see `Step.turn`."""
    _noted: int = -1  # how many notes the last observation knew; -1: it had none
    _block: ShownNotes | None = None  # the last block of notes
    _late: int = 0  # how many messages were added to the view after the policy's last call
    skips_rewrite: bool = False
    """True if the next observation keeps the past: neither the history policy nor an edit of its turn drops anything.
    The policy is called again at the observation after it."""

    def __len__(self) -> int:
        return len(self._prompt.tokens)

    def earn(self, reward: float) -> None:
        """Add to the context's own reward."""
        self.reward = (self.reward or 0.0) + reward

    def prompt(self) -> "NDArray[np.int32]":
        """Return the whole context: int32, shape (n,), a copy."""
        return np.asarray(self._prompt.tokens[:])

    def media(self) -> tuple[PlacedImage, ...]:
        """Return the images of the whole context, in order, with their positions in it."""
        vision = self.renderer.vision
        return () if vision is None else tuple(self._prompt.placed_images(vision))

    @property
    def view(self) -> Sequence[Message]:
        """The messages that the model sees."""
        return self._prompt.messages

    @property
    def tools(self) -> Sequence[ToolSchema]:
        """The tools that the model may call."""
        return self._prompt.tools

    def trial(self) -> "Context":
        """Return a copy in which a turn can be tried without changing the context. Its log is empty."""
        other = copy.copy(self)
        other.messages, other.conversation = list(self.messages), list(self.conversation)
        other.log_tokens, other.log_logprobs = array("i"), array("f")
        other.log_media, other.roles = [], None
        other._prompt, other._state = self._prompt.copy(), copy.deepcopy(self._state)
        return other

    # Replies.

    def act(self, tokens: "NDArray[np.int32]", logprobs: "NDArray[np.float32] | None") -> None:
        """Append sampled tokens verbatim. Log-probabilities that are not known are NaN in the log."""
        sampled = tokens.tolist()
        self._prompt.tokens.extend(sampled)
        self.log_tokens.extend(sampled)
        self.log_logprobs.extend([math.nan] * len(sampled) if logprobs is None else logprobs.tolist())
        if self.roles is not None:
            self.roles.act(len(tokens))

    def take_reply(
        self, count: int = 0, stops: Sequence[str] = (), *, known: Message | None = None
    ) -> "tuple[Message, SampledText]":
        """Parse what was sampled since the generation prompt, and add it to the record and the view.

        Args:
            count: How many of the reply's last tokens the returned text has.
            stops: Strings that end a reply; if the text has one of them, no stop token is missing.
            known: The reply, if it was parsed before.

        Returns:
            The reply, and the text.
        """
        message, text = known or self._parse_reply(), self.new_text(count)
        if stops and NOT_ENDED in message.errors and any(stop in str(text) for stop in stops):
            errors = tuple(error for error in message.errors if error != NOT_ENDED)
            message = message.model_copy(update={"errors": errors})
        self._add_reply(message)
        return message, text

    def read_reply(self) -> "tuple[ReplyReader, list[ReplyEvent]]":
        """Return a reader of the reply that is being sampled, and its events for the part that was sampled already."""
        prompt_tail, sampled = self.reply_tokens()
        reader = self.renderer.reader(prompt_tail=prompt_tail, tools=self._prompt.tools)
        return reader, reader.feed(sampled)

    def reply_tokens(self) -> "tuple[NDArray[np.int32], NDArray[np.int32]]":
        """Return copies of the end of the prompt from the assistant's opening on, and of the tokens sampled since."""
        prompt = self._prompt
        return np.asarray(prompt.tokens[prompt.end : prompt.body]), np.asarray(prompt.tokens[prompt.body :])

    def _parse_reply(self) -> Message:
        prompt_tail, sampled = self.reply_tokens()
        tools = self._prompt.tools
        return check_calls(self.renderer.parse(sampled, prompt_tail=prompt_tail, tools=tools), tools)

    def _add_reply(self, message: Message) -> None:
        self._add([message])
        self._prompt.add(message, self._prompt.end, self._prompt.body)
        self.steps += 1
        if self.roles is not None:
            self.roles.read(self.renderer, self._prompt)

    def new_text(self, count: int) -> "SampledText":
        """Return the text of the last `count` tokens of the log. It is decoded when it is first used."""
        return SampledText(self.renderer, np.asarray(self.log_tokens[len(self.log_tokens) - count :]))

    def cut_reply(self, count: int) -> None:
        """Drop the last `count` tokens of the last reply. The next observation declares it as an `edit`."""
        prompt = self._prompt
        del prompt.tokens[len(prompt.tokens) - count :]
        prompt.messages[-1] = self.conversation[-1] = self._parse_reply()
        self._cut = count

    def check_end(self) -> None:
        """Check all deltas against a full rendering at the end, if the renderer measures its template."""
        self.renderer.check_episode(self.view, self._prompt.emitted(), self.tools)

    # Turns.

    def open(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        max_tokens: int | None = None,
        prefill: str | Message | None = None,
    ) -> Delta:
        """Render the first messages; see `observe`."""
        messages, self._opening = self._read(messages), len(messages)
        self.turn = {} if prefill is None else {"prefill": _stored(prefill)}
        self._prompt.prefill = None if prefill is None else as_prefill(self.renderer, prefill)
        self.renderer.rewrite(self._prompt, 0, messages, tools=tuple(tools))
        self._add(messages)
        self.unfolded = len(messages)
        return self._emit(self._rewrite(Delta(self.prompt(), 0)), max_tokens)

    def open_on(
        self,
        base: "Context",
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        prefill: str | Message | None = None,
        system: str | None = None,
        tools: Sequence[ToolSchema] | None = None,
        edit: Edit | None = None,
    ) -> Delta:
        """Start with a copy of another context after its last reply, or the part that `edit` keeps; see `observe`."""
        self._prompt, self.conversation = base._prompt.copy(), list(base.conversation)
        self.messages, self.notes, self._block = list(base.messages), base.notes, base._block
        self._noted = base._noted
        if edit is not None:
            repeated = among(messages, base.conversation)
            self.messages = [*base.conversation[edit.start : edit.keep], *repeated]
        self.inherited = len(self.messages)
        self._opening = len(self.view) + len(messages)
        delta = self.observe(messages, max_tokens=max_tokens, prefill=prefill, system=system, tools=tools, edit=edit)
        self.unfolded = len(self.conversation)
        return delta

    def observe(
        self,
        messages: Sequence[Message],
        *,
        is_final: bool = False,
        max_tokens: int | None = None,
        prefill: str | Message | None = None,
        system: str | None = None,
        tools: Sequence[ToolSchema] | None = None,
        edit: Edit | None = None,
        summary: str | None = None,
    ) -> Delta:
        """Render the messages after a reply.

        Args:
            messages: The new messages. With an `edit`, messages of the conversation may come before the first new one.
            is_final: Whether no further reply is requested. The generation prompt and rewrites are left out then.
            max_tokens: The largest length of the context, the next reply included.
            prefill: The beginning of the next reply.
            system: A new system message, or None. A change is a declared `edit`.
            tools: New tools, or None. A change is a declared `edit`.
            edit: The messages of the conversation that `messages` replace, a declared `edit` or `fold`; None appends
                them.
            summary: The summary that the history policy requested.

        Raises:
            RenderError: If the model family cannot express one of the messages.
        """
        prompt, length = self._prompt, len(self)
        messages = self._read(messages)
        if self.skips_rewrite and edit is not None:
            messages, edit = among(messages, self.conversation, are=False), None
        self.turn = {"cut": self._cut} if self._cut else {}
        if self.skips_rewrite:
            self.turn["skips_rewrite"] = True
        if self.notes is not None and len(self.notes.texts) != self._noted:
            self.turn["notes"] = self.notes.since(max(0, self._noted), messages[-1] if messages else None)
            self._noted = len(self.notes.texts)
        if prefill is not None:
            self.turn["prefill"] = _stored(prefill)
        if edit is not None:
            places = {id(message): index for index, message in enumerate(self.conversation)}
            self.turn["edit"] = {**edit._asdict(), "messages": [places.get(id(message)) for message in messages]}
        prefill = None if prefill is None else as_prefill(self.renderer, prefill)
        given, unknown = messages, messages if edit is None else among(messages, self.conversation, are=False)
        messages = unknown if edit is None or is_final else ()  # an edit renders them where they belong
        rendered = self.renderer.extension(
            np.asarray(prompt.tokens[prompt.body :]),
            messages,
            history=prompt.messages,
            tools=prompt.tools,
            generation_prompt=not is_final,
            prefill=prefill,
            drops_end=not is_final,
        )
        self.rewriting = self.rewriting or rendered.rewriting
        delta = Delta(rendered.tokens, length + self._cut, closed_reply=rendered.closed_reply)
        if rendered.dropped or self._cut:
            keep = length - rendered.dropped
            del prompt.tokens[keep:]
            delta = self._declared(delta, "edit" if self._cut else "template", keep, "the end of the reply")
        prompt.append(rendered, messages, None if is_final else prefill)
        if is_final:
            self._add(unknown)
            return self._emit(delta)
        if system is not None or tools is not None:
            delta = self._edit(delta, system, tools)
        self._add(unknown)
        if edit is not None:
            delta = self._replace(delta, [*self.conversation[edit.start : edit.keep], *given], edit)
        return self._emit(self._rewrite(delta, summary), max_tokens)

    def go_on(self, addition: str | Message, *, max_tokens: int | None = None) -> Delta:
        """Append to the last reply, which the model then continues. Dropping its stop token is a declared `edit`.

        Args:
            addition: The text or message to append; see `Renderer.continuation`.
            max_tokens: The largest length of the context, the rest of the reply included.

        Raises:
            RenderError: If it does not fit the reply; the context is then as it was.
        """
        prompt, length = self._prompt, len(self)
        self.turn = {"continues": _stored(addition), **({"cut": self._cut} if self._cut else {})}
        body = prompt.bodies[-1]
        kept, tokens = self.renderer.continuation(np.asarray(prompt.tokens[body:]), addition)
        dropped = prompt.tokens[body + kept :]
        reply = self.conversation.pop()
        self.messages.pop()
        prompt.end, prompt.body = prompt.starts[-1], body
        prompt.forget(len(prompt.messages) - 1)
        prompt.tokens[body + kept :] = array("i", tokens.tolist())
        self.steps -= 1
        self._seen = self._seen_before
        delta = Delta(tokens, length + self._cut)
        if len(dropped) or self._cut:
            detail = "the end of the reply" if self._cut else "the reply continues after its end"
            delta = self._declared(delta, "edit", body + kept, detail)
        rewritten = self._rewrite(delta)
        is_full = max_tokens is not None and len(self) >= max_tokens
        if rewritten.full is None and not is_full:
            return self._emit(rewritten)
        # The rest of the reply does not fit: the reply is restored.
        prompt.tokens[prompt.body + kept :] = dropped
        self._add_reply(reply)
        if rewritten.break_ is not delta.break_:
            ended = Delta(tokens, rewritten.keep, rewritten.break_)
        else:
            ended = Delta(tokens, length + self._cut)
            ended = self._declared(ended, "edit", length, "the end of the reply") if self._cut else ended
        closing = self.renderer.extension(
            np.asarray(prompt.tokens[prompt.body :]), [], history=self.view, tools=self.tools, generation_prompt=False
        )
        prompt.append(closing, [])
        return self._emit(
            ended._replace(closed_reply=closing.closed_reply, full=rewritten.full or StopReason.MAX_CONTEXT_TOKENS)
        )

    def _read(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Apply `as_given` to the messages of a turn, except those that are in the conversation already."""
        if all(message.role != "assistant" for message in messages):
            return messages
        known = {id(message) for message in self.conversation}
        return [message if id(message) in known else as_given(self.renderer, message) for message in messages]

    def _edit(self, delta: Delta, system: str | None, tools: Sequence[ToolSchema] | None) -> Delta:
        """Change the system message or the tools, if they differ."""
        prompt, first = self._prompt, self.view[0]
        if system is not None and first.role == "system" and first.content == system:
            system = None
        if tools is not None and list(tools) == list(prompt.tools):
            tools = None
        changed = [name for name, value in (("system", system), ("tools", tools)) if value is not None]
        if not changed:
            return delta
        count, messages = len(prompt.messages), list(prompt.messages)
        if tools is not None:
            self.turn["tools_before"] = list(prompt.tools)
        if system is not None:
            self.turn["system"] = True
            messages[: first.role == "system"] = [Message(role="system", content=system)]
        self.renderer.rewrite(prompt, 0, messages, tools=None if tools is None else tuple(tools))
        if system is not None:
            self.messages.append(messages[0])
            self.conversation[: first.role == "system"] = messages[:1]
            self.unfolded += first.role != "system"
        self._opening += len(messages) - count
        self._seen += len(messages) - count
        return self._declared(delta, "edit", 0, f"new {' and '.join(changed)}")

    def foldable(self) -> tuple[int, int]:
        """Return how many messages before the last reply a fold replaces, and how many tokens of the view."""
        messages = self.conversation
        start, _ = edited(self.view, messages, [*messages[: self.unfolded], messages[-1]])
        block = None if self._block is None else self._block.message
        replaced = (index for index in range(start, len(self.view) - 1) if self.view[index] is not block)
        return len(messages) - 1 - self.unfolded, sum(map(self._prompt.count, replaced))

    def _replace(self, delta: Delta, whole: Sequence[Message], edit: Edit) -> Delta:
        """Make `whole` the conversation. The policy's state is reset, so that it examines all messages again."""
        start, messages = edited(self.view, self.conversation, whole)
        keep = self.renderer.rewrite(self._prompt, start, messages)
        if edit.reason == "fold":  # the reply with the call stays, and so does its result
            later = range(edit.keep + 1, len(whole))
            self.unfolded = next((index for index in later if whole[index].role != "tool"), len(whole))
        else:
            before = {id(message) for message in self.conversation[: self.unfolded]}
            left = [index for index, message in enumerate(whole) if id(message) in before]
            replies = (index for index, message in enumerate(whole) if message.role == "assistant")
            self.unfolded = left[-1] + 1 if left else next(replies, len(whole))
        self.conversation[:] = whole
        first_reply = (i for i, message in enumerate(self.view) if message.role == "assistant")
        self._opening = min(self._opening, next(first_reply, len(self.view)))
        self._seen = 0
        self._state.clear()
        before, detail = delta.break_, edit.detail
        if before is not None and before.reason == "edit":
            detail = f"{before.detail}; {detail}"
        elif keep >= delta.keep:
            return delta
        return self._show_notes(self._declared(delta, edit.reason, min(keep, delta.keep), detail))

    def _show_notes(self, delta: Delta) -> Delta:
        """Add the block of notes at the end of the view if a rewrite has hidden a note. An earlier block is dropped."""
        if self.notes is None or delta.break_ is None:
            return delta
        view, old, count = self.view, self._block, len(self.notes.texts)
        at = next((index for index, message in enumerate(view) if old is not None and message is old.message), None)
        if not self.notes.are_hidden(view, 0 if at is None or old is None else old.number):
            return delta
        start = max(0, len(view) - 1 if at is None else at - 1)
        shown = [message if old is None or message is not old.message else old.instead_of for message in view[start:]]
        messages = [message for message in shown if message is not None]
        text = self.notes.block()
        try:
            block = Message(role="user", content=text)
            keep = self.renderer.rewrite(self._prompt, start, [*messages, block])
            self._block, self._late = ShownNotes(block, count), 1
        except RenderError:  # such as of a template in which users and replies alternate
            last, added = messages[-1], TextPart(text=f"\n\n{text}")
            parts = None if last.parts is None else (*last.parts, added)
            block = last.model_copy(update={"content": last.content + added.text, "parts": parts})
            keep = self.renderer.rewrite(self._prompt, start, [*messages[:-1], block])
            self._block = ShownNotes(block, count, last)
        if keep >= delta.keep:
            return delta
        dropped = delta.break_.dropped + delta.break_.kept - keep
        return delta._replace(keep=keep, break_=replace(delta.break_, kept=keep, dropped=dropped))

    def _add(self, messages: Sequence[Message]) -> None:
        self.messages.extend(messages)
        self.conversation.extend(messages)

    def _rewrite(self, delta: Delta, summary: str | None = None) -> Delta:
        """Let the policy rewrite the view. If two rewrites apply, report the one that keeps fewer tokens.

        Raises:
            UndeclaredBreak: If the policy returns something other than None or a legal rewrite.
        """
        self._late = 0
        if self.skips_rewrite:
            return delta
        try:
            rewrite = self.policy.view(self._history(summary))
        except ContextFull:
            return delta._replace(full=StopReason.CONTEXT_FULL)
        if rewrite is None:
            return self._show_notes(delta)
        is_legal = (
            isinstance(rewrite, Rewrite)  # pyright: ignore[reportUnnecessaryIsInstance]
            and rewrite.reason in _REASONS
            and 0 <= rewrite.start <= len(self.view)
            and bool(rewrite.start or rewrite.messages)
            and all(isinstance(message, Message) for message in rewrite.messages)  # pyright: ignore[reportUnnecessaryIsInstance]
            and isinstance(rewrite.detail, str)  # pyright: ignore[reportUnnecessaryIsInstance]
            and rewrite.detail == encodable(rewrite.detail)
        )
        if not is_legal:
            raise UndeclaredBreak(
                f"the history policy {type(self.policy).__name__} returned {brief(rewrite, 200)} for a view of "
                f"{len(self.view)} messages; expected None or a Rewrite that starts in the view, leaves at least one "
                f"message, has one of the reasons {_REASONS}, and a detail in valid Unicode"
            )
        known = {message.content for message in self.view[rewrite.start :] if message.role == "assistant"}
        messages = [m if m.content in known else as_given(self.renderer, m) for m in rewrite.messages]
        keep = self.renderer.rewrite(self._prompt, rewrite.start, messages, as_template=rewrite.as_template)
        delta = delta if keep >= delta.keep else self._declared(delta, rewrite.reason, keep, rewrite.detail)
        delta, most = self._show_notes(delta), self.policy.full_beyond
        is_full = self._late > 0 and most is not None and len(self) > most
        return delta._replace(full=StopReason.CONTEXT_FULL) if is_full else delta

    def _declared(self, delta: Delta, reason: RewriteReason, keep: int, detail: str) -> Delta:
        """Return a delta that keeps fewer tokens, with the break that declares all that was dropped."""
        length = delta.keep if delta.break_ is None else delta.break_.kept + delta.break_.dropped
        break_ = Break("rewrite", reason, self.name, self.name, keep, length - keep, detail)
        return delta._replace(keep=keep, break_=break_)

    def request(self) -> SummaryRequest | None:
        """Return the summary that the history policy requests before the next turn is rendered, or None."""
        return None if self.skips_rewrite else self.policy.request(self._history())

    def rejects(self, summary: str) -> str | None:
        """Return why the history policy rejects a summary, or None if it accepts it."""
        return self.policy.rejects(self._history(), summary)

    def _history(self, summary: str | None = None) -> History:
        """Return the part of the context that the history policy sees."""
        prompt, renderer = self._prompt, self.renderer
        return History(
            messages=tuple(prompt.messages),
            new=self._seen,
            opening=self._opening,
            steps=self.steps,
            length=len(prompt.tokens),
            renderer=renderer,
            state=self._state,
            tokens=prompt.count,
            measure=lambda index, message: renderer.measure(prompt, index, message),
            summary=summary,
        )

    def _emit(self, delta: Delta, max_tokens: int | None = None) -> Delta:
        """Log the tokens after those that are kept, and return them as a delta."""
        prompt = self._prompt
        self._seen_before, self._cut = self._seen, 0
        if not self.skips_rewrite:
            self._seen = len(prompt.messages) - self._late
        self.skips_rewrite, self._late = False, 0
        full = delta.full
        if full is None and max_tokens is not None and len(self) >= max_tokens:
            full = StopReason.MAX_CONTEXT_TOKENS
        if full is not None:
            del prompt.tokens[prompt.end :]
            prompt.body = prompt.end
        tokens = prompt.tokens[delta.keep :]
        media: tuple[PlacedImage, ...] = ()
        if self.renderer.vision is not None:
            placed = prompt.placed_images(self.renderer.vision, delta.keep)
            media = tuple([image.moved(-delta.keep) for image in placed])
            self.log_media += [image.moved(len(self.log_tokens)) for image in media]
        self.log_tokens.extend(tokens)
        self.log_logprobs.extend([0.0] * len(tokens))
        if self.roles is not None:
            self.roles.observe(self.renderer, prompt, delta.keep)
        return Delta(np.asarray(tokens), delta.keep, delta.break_, delta.closed_reply, full, media)


def _stored(text: str | Message) -> str | dict[str, Any]:
    return text if isinstance(text, str) else text.model_dump(mode="json", exclude_unset=True)


_REASONS = get_args(RewriteReason)


_CONTINUATION = frozenset(bytes([byte]) for byte in range(0x80, 0xC0))
"""The bytes that continue a character in UTF-8."""


@dataclass(frozen=True, slots=True, eq=False)
class SampledText:
    """The text of sampled tokens, decoded by `str()`. A stop token at the end is not part of it."""

    _renderer: Renderer
    tokens: "NDArray[np.int32]"

    def __str__(self) -> str:
        return self._renderer.tokenizer.decode(self.tokens[: self.body])

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    @property
    def body(self) -> int:
        """The number of tokens before the stop token at the end."""
        count = len(self.tokens)
        return count - 1 if count and int(self.tokens[-1]) in self._renderer.stop_token_ids else count

    def tokens_of(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of tokens that overlap the characters `start` to `stop`.

        If tokens share a character, each of them overlaps it.
        """
        if start >= stop:
            return 0, 0
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        overlapping, decoded, is_open = list[int](), 0, False
        for index, piece in enumerate(self._renderer.tokenizer.token_bytes(self.tokens[: self.body])):
            first = decoded + (is_open and piece[:1] not in _CONTINUATION)
            decoded += len(decoder.decode(piece))
            is_open = bool(decoder.getstate()[0])  # the bytes of a character that is not complete
            if first < stop and decoded + is_open > start:
                overlapping.append(index)
        return (overlapping[0], overlapping[-1] + 1) if overlapping else (0, 0)
