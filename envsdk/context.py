"""A context: the token sequence that one agent sees, and how it grows.

A context only truncates and appends. Its log holds every token that was ever handed out or sampled, once, in the order
in which it came; its view is the prompt as it is now. Tokens of a reply are never decoded and encoded again.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, overload

import numpy as np

from .action import Break, RewriteReason
from .arrays import Growing
from .errors import ContextFull, UndeclaredBreak
from .history import History, HistoryPolicy, Rewrite
from .limits import StopReason
from .messages import Message, ToolSchema
from .renderer import Renderer
from .view import View

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Delta(NamedTuple):
    """How a context changes: keep its first tokens, then append."""

    tokens: "NDArray[np.int32]"
    keep: int
    broken: Break | None = None
    closed_reply: bool = False
    """Whether the reply had to be closed, because its turn did not end."""
    full: StopReason | None = None
    """Why nothing more can be sampled in this context, if so; there is no generation prompt then."""


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
        self.steps = 0
        self.log_tokens = Growing(np.int32)
        self.log_logprobs = Growing(np.float32)
        self._view = View(renderer)
        self._seen = 0
        self._opening = 0
        self._state: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._view.tokens)

    def prompt(self) -> "NDArray[np.int32]":
        """The context as it is now, int32 of shape (n,): a copy."""
        return self._view.tokens.copy()

    @property
    def view(self) -> Sequence[Message]:
        """What the model sees now."""
        return self._view.messages

    @property
    def tools(self) -> Sequence[ToolSchema]:
        """The tools that the model may call."""
        return self._view.tools

    # The model speaks.

    def act(self, tokens: "NDArray[np.int32]", logprobs: "NDArray[np.float32] | None") -> None:
        """Append sampled tokens, verbatim; log-probabilities that are not known are NaN in the log."""
        self._view.tokens.append(tokens)
        self.log_tokens.append(tokens)
        self.log_logprobs.extend(len(tokens), np.nan if logprobs is None else logprobs)

    def parse_reply(self) -> Message:
        """Read what was sampled since the generation prompt, as a message."""
        view, tokens = self._view, self._view.tokens.view
        return self.renderer.parse(tokens[view.body :], prompt_tail=tokens[view.end : view.body])

    def add_reply(self, message: Message) -> None:
        """Take the reply into the record and the view."""
        self.messages.append(message)
        self._view.add_reply(message)
        self.steps += 1

    # The environment speaks.

    def open(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), *, max_tokens: int | None = None
    ) -> Delta:
        """Render the first messages; see `observe`."""
        self._view.tools = tuple(tools)
        self._opening = len(messages)
        out = self.renderer.emission()
        self.renderer.emit_conversation(out, messages, tools=tools)
        self.renderer.emit_generation_prompt(out, len(messages))
        tokens, starts = out.tokens()
        self._view.append(tokens, messages, starts)
        try:
            rewrite = self._ask_policy()
        except ContextFull:
            return self._hand_out(messages, 0, full=StopReason.CONTEXT_FULL)
        if rewrite is not None:
            self._view.rewrite(rewrite)
        return self._hand_out(messages, 0, max_tokens=max_tokens)

    def observe(self, messages: Sequence[Message], *, is_final: bool = False, max_tokens: int | None = None) -> Delta:
        """Render what the environment says after a reply.

        Args:
            messages: What it says.
            is_final: Whether nobody will be asked again: then there is no generation prompt, and nothing is rewritten.
            max_tokens: How long the context may become, the next reply included.

        Raises:
            RenderError: If the model family cannot express one of the messages; the context is then as it was.
        """
        view, length = self._view, len(self)
        reply = view.tokens.view[view.body :]
        closed_reply = not self.renderer.is_closed(reply)
        rendered = self.renderer.extension(reply, messages, previous=view.messages[-1], generation_prompt=not is_final)
        before = view.mark()
        view.append(rendered.tokens, messages, rendered.starts)
        if is_final:
            return self._hand_out(messages, length, closed_reply=closed_reply)
        try:
            rewrite = self._ask_policy()
            keep = length if rewrite is None else min(view.rewrite(rewrite), length)
        except ContextFull:
            view.go_back(before)
            return self.observe(messages, is_final=True)._replace(full=StopReason.CONTEXT_FULL)
        except Exception:
            view.go_back(before)
            raise
        broken = None
        if rewrite is not None and keep < length:
            broken = Break("rewrite", rewrite.reason, self.name, self.name, keep, length - keep, rewrite.detail)
        return self._hand_out(messages, keep, broken, closed_reply=closed_reply, max_tokens=max_tokens)

    def _ask_policy(self) -> Rewrite | None:
        """What the history policy says of the view.

        Raises:
            UndeclaredBreak: If it returns anything but None and a legal rewrite.
        """
        view = self._view
        rewrite = self.policy.view(
            History(
                messages=ReadOnly(view.messages),
                new=self._seen,
                opening=self._opening,
                steps=self.steps,
                length=len(view.tokens),
                renderer=self.renderer,
                state=self._state,
                tokens=view.count,
                measure=view.measure,
            )
        )
        if rewrite is not None and not _is_legal(rewrite, len(view.messages)):
            raise UndeclaredBreak(
                f"the history policy {type(self.policy).__name__} returned {rewrite!r:.200} for a view of "
                f"{len(view.messages)} messages. It returns None or a Rewrite that starts in the view, leaves a "
                f"message, and has one of the reasons {get_args(RewriteReason)}"
            )
        return rewrite

    def _hand_out(
        self,
        messages: Sequence[Message],
        keep: int,
        broken: Break | None = None,
        *,
        closed_reply: bool = False,
        max_tokens: int | None = None,
        full: StopReason | None = None,
    ) -> Delta:
        """Log the tokens behind the first `keep`, and give them out."""
        self.messages.extend(messages)
        self._seen = len(self._view.messages)
        if full is None and max_tokens is not None and len(self) >= max_tokens:
            full = StopReason.MAX_CONTEXT_TOKENS
        if full is not None:
            self._view.drop_generation_prompt()
        tokens = self._view.tokens.copy(keep)
        self.log_tokens.append(tokens)
        self.log_logprobs.extend(len(tokens), 0.0)
        return Delta(tokens, keep, broken, closed_reply, full)


class ReadOnly(Sequence[Message]):
    """Messages to read, without a copy of them all."""

    __slots__ = ("_messages",)

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return self._messages[index]


def _is_legal(rewrite: object, length: int) -> bool:
    return (
        isinstance(rewrite, Rewrite)
        and rewrite.reason in get_args(RewriteReason)
        and 0 <= rewrite.start <= length
        and bool(rewrite.start or rewrite.messages)
        and all(isinstance(message, Message) for message in rewrite.messages)  # pyright: ignore[reportUnnecessaryIsInstance]
    )
