"""The base class of renderers that write only whole conversations, as a chat template does.

A rewrite renders the conversation again and keeps the common text, up to the last control token before the first
difference: O(context).
"""

import operator
from abc import abstractmethod
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import RenderError
from ..images import PlacedImage, keyed
from ..messages import Message, ToolSchema
from .emission import Rendered, WrittenPrompt, is_same_answer
from .renderer import Renderer, writable

__all__ = ["WholeRenderer"]

if TYPE_CHECKING:
    from numpy.typing import NDArray


class WholeRenderer(Renderer):
    """A renderer that writes only whole conversations: how a message begins may depend on all messages before it."""

    @abstractmethod
    def check_tools(self, tools: Sequence[ToolSchema]) -> None:
        """Raise an error before an episode begins if the renderer cannot express it with these tools.

        Raises:
            RenderError: If it cannot write the tools, or cannot express the turns of an environment.
        """

    def _render_end(
        self,
        history: Sequence[Message],
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema],
        prefill: str | Message | None,
    ) -> Rendered | None:
        """Render the end of a conversation as the official chat template does, with a generation prompt.

        Args:
            history: The conversation before it, at least one message. Only the first and the last message are read.
            messages: The end of the conversation; the first message is a reply.
            tools: JSON schemas of the tools that the model may call.
            prefill: The beginning of the next reply.

        Returns:
            None if these messages can only be rendered with the whole conversation.
        """
        return None

    def rewrite(
        self,
        prompt: WrittenPrompt,
        start: int,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema] | None = None,
        as_template: bool = False,
    ) -> int:
        """See `Renderer.rewrite`. A reply that the template refuses to write keeps its sampled tokens."""
        shown_tools = prompt.tools if tools is None else tools
        is_new = not prompt.messages
        if is_new:
            self.check_tools(shown_tools)
        elif as_template and 0 < start < len(prompt.starts):
            history, position = [prompt.messages[0], prompt.messages[start - 1]], prompt.starts[start]
            # Tokenization never merges across a control token.
            if self._is_control(np.asarray(prompt.tokens[max(position - 1, 0) : position + 1])).any():
                keep = self._replace(
                    prompt,
                    start,
                    messages,
                    # The messages are passed with their reasoning, which the template hides: it may write such a
                    # message differently from one that never had reasoning.
                    prompt.messages[start:],
                    lambda end: self._render_end(history, end, tools=shown_tools, prefill=prompt.prefill),
                )
                if keep is not None:
                    return keep
        whole = [*prompt.messages[:start], *messages]
        is_same = len(whole) == len(prompt.messages) and all(map(operator.is_, whole, prompt.messages))
        if is_same and not as_template and tools is None:
            return len(prompt.tokens)

        def write(shown: Sequence[Message]) -> Rendered:
            form = "template" if as_template or is_new else "keep"
            return self._render(shown, form, tools=shown_tools, generation_prompt=True, prefill=prompt.prefill)

        if is_new:
            prompt.append(write(whole), messages, prompt.prefill)
            keep = 0
        else:
            keep = self._replace(prompt, 0, whole, whole, write)
        prompt.tools = shown_tools
        assert keep is not None  # only `_render_end` may return None
        return keep

    def measure(self, prompt: WrittenPrompt, index: int, message: Message) -> int:
        """See `Renderer.measure`; an estimate."""
        return max(0, prompt.count(index) + self._size(message) - self._size(prompt.messages[index]))

    def _size(self, message: Message) -> int:
        vision = self.vision if message.images else None
        placeholders = sum(vision.count(image) for image in message.images) if vision is not None else 0
        return placeholders + len(self.tokenizer.encode(message.content + (message.reasoning or "")))

    def _is_control(self, tokens: "NDArray[np.integer[Any]]") -> "NDArray[np.bool_]":
        """Return which tokens are control tokens, or the tokens of images in `keyed` tokens: bool, shape (n,)."""
        return np.isin(tokens, np.fromiter(self.tokenizer.control_tokens.values(), np.int32)) | (tokens < 0)

    def _replace(
        self,
        prompt: WrittenPrompt,
        first: int,
        messages: Sequence[Message],
        shown: Sequence[Message],
        write: Callable[[Sequence[Message]], Rendered | None],
    ) -> int | None:
        """Replace the messages from `first` on with rendered ones; return the number of tokens that stay.

        A reply that the template refuses to write, such as one with an invalid call, keeps its sampled tokens.

        Args:
            prompt: The prompt.
            first: The index of the first message that is replaced.
            messages: The messages from there on.
            shown: The same messages in the form that is rendered.
            write: Renders messages; returns None if it cannot render them.

        Raises:
            RenderError: If the template refuses the conversation for another reason.
        """
        try:
            rendered = write(shown)
            return rendered and self._keep_common(prompt, first, messages, rendered.tokens, rendered.starts)
        except RenderError:
            refused = {index for index, message in enumerate(messages) if writable(message) is not message}
            rendered = write([*map(writable, shown)]) if refused else None
            if rendered is None:
                raise
        messages, following_reply = list(messages), first
        tokens, starts = [rendered.tokens[: rendered.starts[0]]], list[int]()
        for index, (start, stop) in enumerate(pairwise([*rendered.starts, len(rendered.tokens)])):
            starts.append(sum(map(len, tokens)))
            tokens.append(rendered.tokens[start:stop])
            own = _own_reply(prompt, following_reply, messages[index]) if index < len(messages) else None
            if own is None:
                continue
            following_reply = own + 1
            if index in refused:
                sampled = np.asarray(prompt.tokens[prompt.starts[own] :][: prompt.count(own)])
                tokens[-1] = self._up_to_end(sampled, tokens[-1], rendered.tokens[stop : stop + 1])
                messages[index] = prompt.messages[own]
        return self._keep_common(prompt, first, messages, np.concatenate(tokens), starts)

    def _up_to_end(
        self, own: "NDArray[np.int32]", rendered: "NDArray[np.int32]", following: "NDArray[np.int32]"
    ) -> "NDArray[np.int32]":
        """Return a reply's sampled tokens up to the end of its turn, followed by the rendered tokens after the end.

        If the rendering begins the next message with the token that ended the turn (GLM), that token is left out here.
        """
        end, at = (
            int(np.flatnonzero(found)[-1]) + 1 if (found := np.isin(tokens, self.stop_token_ids)).any() else 0
            for tokens in (own, rendered)
        )
        if not end or at:
            return np.concatenate([own[:end], rendered[at:]]) if end else own
        return own[: end - 1] if np.array_equal(own[end - 1 : end], following) else own

    def _keep_common(
        self,
        prompt: WrittenPrompt,
        first: int,
        messages: Sequence[Message],
        new: "NDArray[np.int32]",
        rendered_starts: Sequence[int],
    ) -> int:
        """Replace the messages from `first` on with rendered ones, which begin at `rendered_starts` in `new`.

        The common text stays, up to the last control token before the first difference. The generation prompt is
        rendered with the messages, since it may share a token with the last one. The tokens after it stay.

        Returns:
            The number of tokens that stay.
        """
        offset = prompt.starts[first] if first else 0
        old = np.asarray(prompt.tokens[offset : prompt.body])
        old_images: list[PlacedImage] = []
        new_images: list[PlacedImage] = []
        if self.vision is not None:
            old_images += [placed.moved(-offset) for placed in prompt.placed_images(self.vision, offset)]
            for message, (start, stop) in zip(messages, pairwise(rendered_starts), strict=True):
                if message.images:
                    places = self.vision.places(new[start:stop], message.images)
                    new_images += [placed.moved(start) for placed in places]
        keep, same = self._shared(keyed(old, old_images), keyed(new, new_images))
        if keep == len(old) and same == len(new):
            prompt.messages[first:] = messages
            return len(prompt.tokens)
        keep += offset
        begun = prompt.tokens[prompt.body :]
        starts, bodies = [*prompt.starts[first:], prompt.end], prompt.bodies[first:]
        prompt.forget(first)
        new_starts: list[int] = []
        for index, start in enumerate(rendered_starts):
            is_old = start < same and index < len(starts) and starts[index] < keep
            new_starts.append(starts[index] if is_old else keep + start - same)
        for index, (message, start) in enumerate(zip(messages, new_starts, strict=False)):
            is_kept = index < len(bodies) and start == starts[index] and starts[index + 1] <= keep
            prompt.add(message, start, bodies[index] if is_kept else -1)
        prompt.tokens[keep:] = array("i", new[same:].tolist())
        prompt.end, prompt.body = new_starts[-1], len(prompt.tokens)
        prompt.tokens.extend(begun)
        return keep

    def _shared(self, old: "NDArray[np.int64]", new: "NDArray[np.int64]") -> tuple[int, int]:
        """Return the number of tokens of each with the same text at the start, cut at the beginning of a control token.

        A control token differs from text that spells its name.

        Args:
            old: `keyed` tokens, shape (n,).
            new: `keyed` tokens, shape (m,).
        """
        old_text, old_offsets = self._offsets(old)
        new_text, new_offsets = self._offsets(new)
        shorter = min(len(old_text), len(new_text))
        differs = old_text[:shorter] != new_text[:shorter]
        length = int(np.argmax(differs)) if differs.any() else shorter
        both: NDArray[np.int64] = np.intersect1d(old_offsets, new_offsets)
        both = both[both <= length]
        kept: NDArray[np.int64] = np.searchsorted(new_offsets, both)
        begins_control = (kept == 0) | (kept == len(new)) | self._is_control(np.append(new, 0)[kept])
        at = int(np.flatnonzero(begins_control)[-1])
        left: NDArray[np.int64] = np.searchsorted(old_offsets, both)
        return int(left[at]), int(kept[at])

    def _offsets(self, keys: "NDArray[np.int64]") -> "tuple[NDArray[np.uint8], NDArray[np.int64]]":
        """Return the bytes of `keyed` tokens, and the position of each of them, followed by the end of the last one.

        A control token, or a token of an image, is represented by a byte that never occurs in UTF-8, and its key.
        """
        pieces = self.tokenizer.token_bytes(np.maximum(keys, 0).astype(np.int32))
        for index in np.flatnonzero(self._is_control(keys)).tolist():
            pieces[index] = b"\xff" + int(keys[index]).to_bytes(8, "big", signed=True)
        return np.frombuffer(b"".join(pieces), np.uint8), np.cumsum([0, *map(len, pieces)], dtype=np.int64)


def _own_reply(prompt: WrittenPrompt, first: int, message: Message) -> int | None:
    """Return the index of a message from `first` on; a sampled reply may differ in its reasoning. None if missing."""
    later = range(first, len(prompt.messages))
    same = [i for i in later if prompt.messages[i] is message]
    if not same and message.role == "assistant":
        same = [i for i in later if prompt.bodies[i] >= 0 and is_same_answer(prompt.messages[i], message)]
    return same[0] if same else None
