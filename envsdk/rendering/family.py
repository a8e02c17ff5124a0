"""The base class of renderers that specify how each message is written.

A family specifies once how a message is written. The full rendering, the delta after a reply, the generation prompt,
the masks and the attribution are all derived from this specification.
"""

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from .._arguments import explain_arguments
from ..errors import RenderError
from ..messages import Message, ToolSchema
from .emission import Emission, Rendered, WrittenPrompt, is_same_answer
from .renderer import Renderer, TokenIds, refuse_images

__all__ = ["FamilyRenderer"]

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BYTES_OF_TOKEN = 3
"""A low estimate of the average number of bytes in a token."""
_REPLY = Message.model_construct(role="assistant")  # without building the validator at import


class FamilyRenderer(Renderer):
    """A renderer that specifies how each message is written.

    A family sets the class attributes and implements `emit_start`, `emit_message`, `emit_reply` and `parse`; one that
    shows past reasoning also implements `visible` and `settles`. Messages begin and end at control tokens, so the
    tokens of a message depend only on the message and on the properties of its neighbors that `seam` returns.
    """

    after_turn: ClassVar[str]
    """The scaffold between the end of an assistant's turn and the next message; never sampled."""

    # Methods that a family implements.

    @abstractmethod
    def emit_start(self, out: Emission, system: Message | None, tools: Sequence[ToolSchema]) -> None:
        """Write the start of a conversation: its first message if that is a system message, and the tools.

        Raises:
            RenderError: If the family cannot write tools.
        """

    @abstractmethod
    def emit_message(
        self, out: Emission, message: Message, previous: Message | None, following: Message | None
    ) -> None:
        """Write a message of another role than assistant. It may depend on its neighbors only as `seam` specifies."""

    def settles(self, message: Message) -> bool:
        """Return True: what is shown of a message does not depend on its position."""
        return True

    def visible(self, messages: Sequence[Message], settled: int = 0) -> list[Message]:
        """Return the messages without reasoning."""
        return [message.with_reasoning(None) for message in messages[settled:]]

    def emit_past_reply(self, out: Emission, message: Message) -> None:
        """Write an assistant's message as later prompts show it, which is usually as it was sampled."""
        self.emit_reply(out, message)

    def end_of_turn(self, following: Message | None) -> str:
        """Return the scaffold after a past reply. It may depend on the next message (GLM)."""
        return self.after_turn

    def seam(self, message: Message, neighbor: Message | None) -> object:
        """Return the properties of a neighbor that the tokens of a message depend on.

        Two neighbors with equal properties give the same tokens.
        """
        return None if neighbor is None else neighbor.role

    def closing(self, reply: TokenIds, following: Message | None = None) -> str:
        """Return the scaffold that closes a reply: the end of an open block, the end of the turn, and `after_turn`.

        Args:
            reply: The reply's tokens since the generation prompt, shape (n,).
            following: The next message, if any. The end of a turn may depend on it (GLM).
        """
        if len(reply) and int(reply[-1]) == self.stop_token_ids[0]:
            return self.after_turn
        return self._close_open_block(reply) + self.stop_tokens[0] + self.after_turn

    def is_closed(self, reply: TokenIds) -> bool:
        """Return whether the reply ends with the stop token that the family's history shows."""
        return self.closing(reply) == self.after_turn

    def rewritten_end(self, reply: TokenIds, messages: Sequence[Message]) -> int:
        """Return the number of tokens at the end of a reply that are dropped if `messages` follow; see `extension`."""
        return 0

    # Methods that are derived from these.

    def emit_conversation(
        self,
        out: Emission,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema] = (),
        first: int = 0,
        stop: int | None = None,
    ) -> None:
        """Write `messages[first:stop]`; the others are only read as neighbors. Tools are written with message 0.

        Raises:
            RenderError: If the family cannot express a message.
        """
        refuse_images(self, messages[first:stop], first)
        for index in range(first, len(messages) if stop is None else stop):
            message, following = messages[index], _at(messages, index + 1)
            if message.role not in self.roles:
                raise RenderError(
                    f"message {index} has the role {message.role!r}, which {self.name!r} cannot express: its roles are "
                    f"{', '.join(sorted(self.roles))}"
                )
            if index:
                out.begin(index, message.role, message.images)
            else:
                is_system = message.role == "system"
                out.begin(0 if is_system else -1, "system", message.images)
                self.emit_start(out, message if is_system else None, tools)
                if is_system:
                    continue
                out.attribute(0, message.role)
            if message.role != "assistant":
                self.emit_message(out, message, _at(messages, index - 1), following)
                continue
            out.scaffold(self.opening)
            out.attribute(index, message.role, is_sampled=True)
            self.emit_past_reply(out, message)
            out.attribute(index, message.role)
            out.scaffold(self.end_of_turn(following))

    def _emit_whole(
        self,
        out: Emission,
        messages: Sequence[Message],
        history: Literal["template", "keep"],
        *,
        tools: Sequence[ToolSchema],
        generation_prompt: bool,
    ) -> None:
        self.emit_conversation(out, self.visible(messages) if history == "template" else messages, tools=tools)

    def extension(
        self,
        reply: TokenIds,
        messages: Sequence[Message],
        *,
        history: Sequence[Message] = (),
        tools: Sequence[ToolSchema] = (),
        generation_prompt: bool = True,
        prefill: str | Message | None = None,
        drops_end: bool = False,
    ) -> Rendered:
        """See `Renderer.extension`."""
        refuse_images(self, messages, len(history) or 1)
        dropped = self.rewritten_end(reply, messages) if drops_end else 0
        closed_reply = not self.is_closed(reply)
        out = self._emission()
        out.scaffold(self.closing(reply[: len(reply) - dropped], _at(messages, 0)))
        self.emit_conversation(out, [history[-1] if history else _REPLY, *messages], first=1)
        rendered = self._prompted(out, len(messages) + 1, prefill) if generation_prompt else Rendered(out)
        rendered.dropped, rendered.closed_reply = dropped, closed_reply
        return rendered

    # Rewriting the past.

    def rewrite(
        self,
        prompt: WrittenPrompt,
        start: int,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema] | None = None,
        as_template: bool = False,
    ) -> int:
        """See `Renderer.rewrite`."""
        if not prompt.messages:
            out = self._emission()
            self.emit_conversation(out, messages, tools=tools or ())
            prompt.append(self._prompted(out, len(messages), prompt.prefill), messages, prompt.prefill)
            prompt.tools = tools or ()
            return 0
        if tools is None:
            same = zip(messages, prompt.messages[start:], strict=False)
            count = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], same))
            start, messages = start + count, messages[count:]
            before = _at(prompt.messages, start - 1)
            if before is not None and self.seam(before, _at(prompt.messages, start)) != self.seam(
                before, _at(messages, 0)
            ):
                start, messages = start - 1, [before, *messages]  # its neighbor changed, so it is rendered differently
            if start == len(prompt.messages) and not messages:
                return len(prompt.tokens)
        shown_tools = prompt.tools if tools is None else tools
        written = self._rewritten(prompt, start, messages, shown_tools)
        keep = prompt.starts[start] if start < len(prompt.starts) else prompt.end
        generation_prompt, asks = prompt.tokens[prompt.end :], prompt.body - prompt.end
        prompt.forget(start)
        del prompt.tokens[keep:]
        for message, (tokens, body) in zip(messages, written, strict=True):
            at = len(prompt.tokens)
            prompt.add(message, at, at + body if body >= 0 else -1)
            prompt.tokens.extend(tokens.tolist())
        prompt.end = len(prompt.tokens)
        prompt.tokens.extend(generation_prompt)
        prompt.body = prompt.end + asks
        prompt.tools = shown_tools
        return keep

    def measure(self, prompt: WrittenPrompt, index: int, message: Message) -> int:
        """See `Renderer.measure`."""
        start, body = _start_of_round(prompt.messages, index), prompt.bodies[index]
        view = [*prompt.messages[start:index], message, *prompt.messages[index + 1 : index + 2]]
        end = prompt.starts[index] + prompt.count(index)
        sampled = np.asarray(prompt.tokens[body:end]) if body >= 0 else None
        return len(self._write_again(view, index - start, sampled, prompt.tools)[0])

    def _rewritten(
        self, prompt: WrittenPrompt, start: int, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> "list[tuple[NDArray[np.int32], int]]":
        """Return the tokens of the messages that replace those from `start` on, and the position of the sampled part.

        The position is -1 if the model did not sample the message.
        """
        view = [*prompt.messages[_start_of_round(prompt.messages, start) : start], *messages]  # with their neighbors
        first = len(view) - len(messages)
        indices = {id(message): index for index, message in enumerate(prompt.messages[start:], start)}
        following = start
        written: list[tuple[NDArray[np.int32], int]] = []
        for at in range(first, len(view)):
            source = indices.get(id(view[at]))
            if source is None and view[at].role == "assistant":  # a reply may differ in its reasoning
                replies = (i for i in range(following, len(prompt.messages)) if prompt.bodies[i] >= 0)
                source = next((i for i in replies if is_same_answer(prompt.messages[i], view[at])), None)
            if source is None:
                written.append(self._write_again(view, at, None, tools))
                continue
            following, begin = source + 1, prompt.starts[source]
            body = prompt.bodies[source] - begin if prompt.bodies[source] >= 0 else -1
            tokens = np.asarray(prompt.tokens[begin : begin + prompt.count(source)])
            around = [(_at(view, at + side), _at(prompt.messages, source + side)) for side in (-1, 1)]
            is_same = all(self.seam(view[at], new) == self.seam(view[at], old) for new, old in around)
            # The first message's tokens hold the tools, so they cannot be copied to another place.
            if is_same and prompt.messages[source] is view[at] and at and source:
                written.append((tokens, body))
            else:
                written.append(self._write_again(view, at, tokens[body:] if body >= 0 else None, tools))
        return written

    def _write_again(
        self, view: Sequence[Message], at: int, sampled: "NDArray[np.int32] | None", tools: Sequence[ToolSchema]
    ) -> "tuple[NDArray[np.int32], int]":
        """Render `view[at]` as `_rewritten` does, but reuse the old message's sampled tokens for the same text."""
        out = self._emission()
        self.emit_conversation(out, view, tools=tools, first=at, stop=at + 1)
        if sampled is not None:
            # The tokens at the end of `sampled` with exactly this text, if one begins there.
            wanted = out.text().removeprefix(self.opening).encode()
            end = sampled[-(len(wanted) // _BYTES_OF_TOKEN + 1) :]
            pieces = self.tokenizer.token_bytes(end)
            if len(end) < len(sampled) and sum(map(len, pieces)) < len(wanted):
                pieces = self.tokenizer.token_bytes(sampled)
            sizes = [0, *accumulate(map(len, reversed(pieces)))]  # of the last token, of the last two, and so on
            count = bisect_left(sizes, len(wanted))
            if count < len(sizes) and sizes[count] == len(wanted) and b"".join(pieces).endswith(wanted):
                tail = sampled[len(sampled) - count :]
                return np.concatenate([self.opening_tokens, tail]), len(self.opening_tokens)
        return out.tokens()[0], -1


def _start_of_round(messages: Sequence[Message], index: int) -> int:
    """Return the index of the first message that message `index` may depend on: a result depends on its reply."""
    start = max(index - 1, 0)
    while start > 0 and messages[start].role == "tool":
        start -= 1
    return start


def _at(messages: Sequence[Message], index: int) -> Message | None:
    return messages[index] if 0 <= index < len(messages) else None


explain_arguments(globals())
