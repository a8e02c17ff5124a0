"""A context: the token sequence that one agent sees, and how it grows.

A context only truncates and appends. Its log holds every token that was ever handed out or sampled, once, in the order in
which it came; what it holds now is the prompt. Tokens of a reply are never decoded and encoded again.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from .action import Break, RewriteReason
from .arrays import Growing
from .errors import UndeclaredBreak
from .history import History, HistoryPolicy, Rewrite
from .messages import Message, ToolSchema
from .renderer import Renderer

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Delta(NamedTuple):
    """How a context changes: keep its first tokens, then append."""

    tokens: "NDArray[np.int32]"
    keep: int
    broken: Break | None = None
    closed_reply: bool = False
    """Whether the reply had to be closed, because its turn did not end."""
    is_full: bool = False
    """Whether no token more fits into the context; there is no generation prompt then."""


class _Entry:
    """A message of the view, and where its tokens are."""

    __slots__ = ("body", "message", "start")

    def __init__(self, message: Message, start: int, body: int = -1) -> None:
        self.message = message
        self.start = start
        self.body = body  # where the sampled part begins; -1 if the model did not write this message


class Context:
    """One context of an episode.

    Args:
        name: Its name, such as `main`.
        role: Whose context it is.
        renderer: Writes its messages.
        policy: Decides what of its past stays visible.
        parent: The context that opened this one, or None.
    """

    def __init__(
        self, name: str, role: str, renderer: Renderer, policy: HistoryPolicy, *, parent: str | None = None
    ) -> None:
        self.name = name
        self.role = role
        self.parent = parent
        self.renderer = renderer
        self.policy = policy
        self.messages: list[Message] = []
        """Everything that was said, in order: the record. Rewrites change the view, never the record."""
        self.tools: tuple[ToolSchema, ...] = ()
        self.steps = 0
        self.log_tokens = Growing(np.int32)
        self.log_logprobs = Growing(np.float32)
        self._tokens = Growing(np.int32)
        self._view: list[Message] = []
        self._starts: list[int] = []
        self._bodies: list[int] = []
        self._end = 0  # where the messages end; the generation prompt stands behind
        self._seen = 0
        self._state: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def prompt(self) -> "NDArray[np.int32]":
        """The context as it is now, int32 of shape (n,): a copy."""
        return self._tokens.copy()

    @property
    def view(self) -> Sequence[Message]:
        """What the model sees now."""
        return self._view

    # The model speaks.

    def act(self, tokens: "NDArray[np.int32]", logprobs: "NDArray[np.float32] | None") -> None:
        """Append sampled tokens, verbatim; log-probabilities that are not known are NaN in the log."""
        self._tokens.append(tokens)
        self.log_tokens.append(tokens)
        self.log_logprobs.extend(len(tokens), np.nan if logprobs is None else logprobs)

    def parse_reply(self) -> Message:
        """Read what was sampled since the generation prompt, as a message."""
        tokens = self._tokens.view
        return self.renderer.parse(tokens[self._body :], prompt_tail=tokens[self._end : self._body])

    def add_reply(self, message: Message) -> None:
        """Take the reply into the record and the view."""
        self.messages.append(message)
        self._add(message, self._end, self._body)
        self.steps += 1

    # The environment speaks.

    def open(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), *, max_tokens: int | None = None
    ) -> Delta:
        """Render the first messages; see `observe`.

        Raises:
            RenderError: If the model family cannot express one of them.
        """
        self.tools = tuple(tools)
        out = self.renderer.emission()
        self.renderer.emit_conversation(out, messages, tools=tools)
        self.renderer.emit_generation_prompt(out, len(messages))
        tokens, starts = out.tokens()
        self._append(tokens, messages, starts)
        rewrite = self.policy.view(self._history())
        self._seen = len(self._view)
        if rewrite is not None:
            self._rewrite(rewrite)
        return self._hand_out(0, max_tokens=max_tokens)

    def observe(self, messages: Sequence[Message], *, is_final: bool = False, max_tokens: int | None = None) -> Delta:
        """Render what the environment says after a reply.

        Args:
            messages: What it says.
            is_final: Whether nobody will be asked again: then there is no generation prompt, and nothing is rewritten.
            max_tokens: How long the context may become, the next reply included.

        Raises:
            RenderError: If the model family cannot express one of the messages; the context is then as it was.
            ContextFull: If the history policy finds nothing to drop; the context is then as it was.
        """
        length = len(self._tokens)
        reply = self._tokens.view[self._body :]
        previous = self._view[-1]
        rendered = self.renderer.extension(reply, messages, previous=previous, generation_prompt=not is_final)
        closed_reply = not self.renderer.is_closed(reply)
        count, end, body = len(self._view), self._end, self._body
        self._append(rendered.tokens, messages, [length + start for start in rendered.starts])
        if is_final:
            return self._hand_out(length, closed_reply=closed_reply)
        try:
            rewrite = self.policy.view(self._history())
            keep = length if rewrite is None else min(self._rewrite(rewrite), length)
        except Exception:
            self._take_back(count, length, end, body)
            raise
        self._seen = len(self._view)
        broken = None
        if rewrite is not None and keep < length:
            broken = Break("rewrite", rewrite.reason, self.name, self.name, keep, length - keep, rewrite.detail)
        return self._hand_out(keep, broken, closed_reply=closed_reply, max_tokens=max_tokens)

    def _append(self, tokens: "NDArray[np.int32]", messages: Sequence[Message], starts: Sequence[int]) -> None:
        """Take rendered messages into the view; the generation prompt, if any, begins at the last of `starts`."""
        self._tokens.append(tokens)
        for message, start in zip(messages, starts, strict=False):
            self._add(message, start)
        self.messages.extend(messages)
        self._end = starts[len(messages)] if len(starts) > len(messages) else len(self._tokens)
        self._body = len(self._tokens)

    def _take_back(self, count: int, length: int, end: int, body: int) -> None:
        added = len(self._view) - count
        del self._view[count:], self._starts[count:], self._bodies[count:]
        del self.messages[len(self.messages) - added :]
        self._tokens.truncate(length)
        self._end, self._body = end, body

    def _add(self, message: Message, start: int, body: int = -1) -> None:
        self._view.append(message)
        self._starts.append(start)
        self._bodies.append(body)

    def _hand_out(
        self, keep: int, broken: Break | None = None, *, closed_reply: bool = False, max_tokens: int | None = None
    ) -> Delta:
        is_full = max_tokens is not None and len(self._tokens) >= max_tokens
        if is_full:
            self._tokens.truncate(self._end)
        tokens = self._tokens.copy(keep)
        self.log_tokens.append(tokens)
        self.log_logprobs.extend(len(tokens), 0.0)
        return Delta(tokens, keep, broken, closed_reply, is_full)

    def _history(self) -> History:
        return History(
            messages=self._view,
            new=self._seen,
            steps=self.steps,
            length=len(self._tokens),
            renderer=self.renderer,
            state=self._state,
            starts=self._starts,
            end=self._end,
        )

    # Rewrites.

    def _rewrite(self, rewrite: Rewrite) -> int:
        """Replace the view from `rewrite.start` on; returns how many tokens of the context stay."""
        first, messages = self._first_changed(rewrite)
        keep = self._starts[first] if first < len(self._view) else self._end
        prompt = self._tokens.copy(self._end)
        view = [*self._view[max(first - 1, 0) : first], *messages]  # with the neighbour before them
        before = len(view) - len(messages)
        old = _Past(self, first)
        written = [self._write(view, before + i, first + i, old) for i in range(len(messages))]
        del self._view[first:], self._starts[first:], self._bodies[first:]
        self._tokens.truncate(keep)
        for message, (tokens, body) in zip(messages, written, strict=True):
            start = len(self._tokens)
            self._add(message, start, start + body if body >= 0 else -1)
            self._tokens.append(tokens)
        self._end = len(self._tokens)
        self._tokens.append(prompt)
        self._body = len(self._tokens)
        return keep

    def _first_changed(self, rewrite: Rewrite) -> tuple[int, Sequence[Message]]:
        """The first message that has to be written again, and the view from there on."""
        if rewrite.reason not in get_args(RewriteReason) or not 0 <= rewrite.start <= len(self._view):
            raise UndeclaredBreak(
                f"the history policy {type(self.policy).__name__} rewrites {self.name!r} from message {rewrite.start} of "
                f"{len(self._view)} on, for the reason {rewrite.reason!r}; reasons are {get_args(RewriteReason)}"
            )
        first, offset = rewrite.start, 0
        while offset < len(rewrite.messages) and first < len(self._view):
            if rewrite.messages[offset] is not self._view[first]:
                break
            first, offset = first + 1, offset + 1
        messages = rewrite.messages[offset:]
        if first and self._seam(self._view, first) != self._seam(messages, 0):
            first -= 1  # the message before the change is written in another way, because its neighbour is another
            messages = [self._view[first], *messages]
        return first, messages

    def _seam(self, messages: Sequence[Message], index: int) -> object:
        return self.renderer.seam(messages[index]) if 0 <= index < len(messages) else None

    def _write(self, view: Sequence[Message], at: int, index: int, old: "_Past") -> "tuple[NDArray[np.int32], int]":
        """The tokens of message `view[at]`, which will be message `index`, and where its sampled part begins, or -1.

        A message that stays is copied; of a reply that lost its reasoning the rest is copied, if it can be cut at a
        token boundary; else the message is written again.
        """
        message = view[at]
        source = old.same.get(id(message))
        if source is not None and index and self._has_same_neighbours(view, at, source):
            return old.tokens(source), old.body(source)
        out = self.renderer.emission()
        self.renderer.emit_conversation(out, view, tools=self.tools, first=at, stop=at + 1)
        reply = old.replies.get((id(message.content), id(message.tool_calls)))
        if reply is not None and message.role == "assistant":
            tail = self._tail(old.tokens(reply)[old.body(reply) :], out.text().removeprefix(self.renderer.opening))
            if tail is not None:
                opening = self._opening()
                return np.concatenate([opening, tail]), len(opening)
        return out.tokens()[0], -1

    def _has_same_neighbours(self, view: Sequence[Message], at: int, source: int) -> bool:
        return all(self._seam(view, at + side) == self._seam(self._view, source + side) for side in (-1, 1))

    def _tail(self, sampled: "NDArray[np.int32]", text: str) -> "NDArray[np.int32] | None":
        """The end of `sampled` that says exactly `text`, or None if no token begins there."""
        pieces = self.renderer.tokenizer.token_bytes(sampled)
        wanted = text.encode()
        if not b"".join(pieces).endswith(wanted):
            return None
        left, position = len(wanted), len(pieces)
        while left > 0:
            position -= 1
            left -= len(pieces[position])
        return sampled[position:] if left == 0 else None

    def _opening(self) -> "NDArray[np.int32]":
        out = self.renderer.emission()
        out.scaffold(self.renderer.opening)
        return out.tokens()[0]


class _Past:
    """The messages of a view from one on, as they were before a rewrite: where each was, and its tokens."""

    def __init__(self, context: Context, first: int) -> None:
        self._first = first
        self._start = context._starts[first] if first < len(context._view) else context._end
        self._tokens = context._tokens.copy(self._start, context._end)
        self._bounds = [*context._starts[first:], context._end]
        self._bodies = context._bodies[first:]
        self.same: dict[int, int] = {}
        """Messages by identity."""
        self.replies: dict[tuple[int, int], int] = {}
        """Sampled messages by the identity of what they say behind their reasoning."""
        for index, message in self._messages(context):
            self.same[id(message)] = index
            if context._bodies[index] >= 0:
                self.replies.setdefault((id(message.content), id(message.tool_calls)), index)

    def _messages(self, context: Context) -> Iterator[tuple[int, Message]]:
        return ((i, context._view[i]) for i in range(self._first, len(context._view)))

    def tokens(self, index: int) -> "NDArray[np.int32]":
        """The tokens of message `index`."""
        start, stop = self._bounds[index - self._first], self._bounds[index - self._first + 1]
        return self._tokens[start - self._start : stop - self._start]

    def body(self, index: int) -> int:
        """Where in them the sampled part begins, or -1."""
        body = self._bodies[index - self._first]
        return body - self._bounds[index - self._first] if body >= 0 else -1
