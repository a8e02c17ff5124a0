"""What a model sees of a conversation: messages, their tokens, and how a rewrite of the past changes them.

A rewrite renders as little as possible. Messages that stay are copied, token for token. Of a reply that lost its
reasoning, the rest is copied if the cut falls on a token boundary. Only what remains is rendered again.
"""

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise, takewhile
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import RenderError
from ..images import PlacedImage
from ..messages import Message, ToolSchema
from ..rendering.renderer import EmittedDelta, Rendered, Renderer, writable
from ._arrays import GrowableArray
from ._history_policy import Rewrite

if TYPE_CHECKING:
    from numpy.typing import NDArray


_BYTES_OF_TOKEN = 3
"""Fewer than the tokens of most texts have on average."""
_start_of, _stop_of = operator.attrgetter("start"), operator.attrgetter("stop")


class View:
    """The messages that a model sees, and their tokens."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self.tools: Sequence[ToolSchema] = ()
        self.tokens = GrowableArray(np.int32)
        self.messages: list[Message] = []
        self.starts: list[int] = []
        """The position of each message's first token."""
        self.bodies: list[int] = []
        """The position where the sampled part of each message begins; -1 if the model did not write it."""
        self.end = 0
        """The position after the last message, where the generation prompt begins."""
        self.body = 0
        """The position after the generation prompt, where the next reply begins, or its prefill."""
        self.prefill: str | Message | None = None
        """The beginning of the next reply, on which the generation prompt depends."""
        self._placed: list[PlacedImage] = []
        """The images of the first `_n_placed` messages, in order."""
        self._n_placed = 0

    def append(
        self,
        tokens: "NDArray[np.int32]",
        messages: Sequence[Message],
        starts: Sequence[int],
        prefill: str | Message | None = None,
    ) -> None:
        """Append rendered messages; the generation prompt, if there is one, begins at the last of `starts`."""
        before = self.tokens.length
        self.tokens.append(tokens)
        for message, start in zip(messages, starts, strict=False):
            self._add(message, before + start)
        self.body = self.tokens.length
        self.end = before + starts[len(messages)] if len(starts) > len(messages) else self.body
        self.prefill = prefill
        if prefill is not None:
            self.tokens.append(self.renderer.prefill(prefill))

    def add_reply(self, message: Message) -> None:
        """Add the reply whose tokens follow the generation prompt."""
        self._add(message, self.end, self.body)

    def reopen_reply(self, kept: int, tokens: "NDArray[np.int32]") -> None:
        """Reopen the last message, a reply: its first `kept` tokens stay, and `tokens` follow them."""
        self.end, self.body = self.starts[-1], self.bodies[-1]
        self._forget(len(self.messages) - 1)
        self.tokens.truncate(self.body + kept)
        self.tokens.append(tokens)

    def copy(self) -> "View":
        """Return an independent copy."""
        view = View(self.renderer)
        view.tools, view.end, view.body, view.prefill = self.tools, self.end, self.body, self.prefill
        view.tokens.append(self.tokens.view)
        view.messages, view.starts, view.bodies = list(self.messages), list(self.starts), list(self.bodies)
        view._placed, view._n_placed = list(self._placed), self._n_placed
        return view

    def drop_generation_prompt(self) -> None:
        """End with the last message: no further reply is requested."""
        self.tokens.truncate(self.end)
        self.body = self.end

    def rewrite(self, rewrite: Rewrite) -> int:
        """Replace the messages from `rewrite.start` on.

        Returns:
            How many tokens stay: those before the first message that differs, or is rendered differently.
        """
        if self.renderer.renders_whole:
            return self._replace_rendered(rewrite)
        first, messages = self._first_changed(rewrite)
        is_same = first == len(self.messages) and not messages
        return len(self.tokens) if is_same else self._replace(first, messages)

    def reopen(self, system: str | None, tools: Sequence[ToolSchema] | None) -> None:
        """Change the system message or the tools; None leaves them as they are."""
        messages = list(self.messages)
        if system is not None:
            has_system = messages[0].role == "system"
            messages = [Message(role="system", content=system), *messages[1 if has_system else 0 :]]
        before = self.tools
        self.tools = before if tools is None else tools
        try:
            if self.renderer.renders_whole:
                self._replace_whole(messages, as_template=False)
            else:
                self._replace(0, messages)
        except Exception:
            self.tools = before
            raise

    def _replace(self, first: int, messages: Sequence[Message]) -> int:
        """Replace the messages from `first` on; return how many tokens stay."""
        past = _Past(self, first)
        view = [*self.messages[self._start_of_round(first) : first], *messages]  # with the neighbors before them
        before = len(view) - len(messages)
        written = [self._write(view, before + i, past) for i in range(len(messages))]
        prompt, asks = self.tokens.copy(self.end), self.body - self.end
        self._forget(first)
        self.tokens.truncate(past.start)
        for message, (tokens, body) in zip(messages, written, strict=True):
            start = len(self.tokens)
            self._add(message, start, start + body if body >= 0 else -1)
            self.tokens.append(tokens)
        self.end = len(self.tokens)
        self.tokens.append(prompt)
        self.body = self.end + asks
        return past.start

    def _replace_rendered(self, rewrite: Rewrite) -> int:
        """Replace messages with a renderer of whole conversations; return how many tokens stay."""
        start = rewrite.start
        if rewrite.as_template and 0 < start < len(self.starts) and self._is_seam(self.starts[start]):
            history = [self.messages[0], self.messages[start - 1]]
            # The template hides what is hidden: it may write that differently from a message that never had it.
            shown = self.messages[start:]
            options: dict[str, Any] = {"tools": self.tools, "prefill": self.prefill}
            keep = self._replace_written(
                start,
                rewrite.messages,
                lambda written: self.renderer.render_after(history, [*map(written, shown)], **options),
            )
            if keep is not None:
                return keep
        return self._replace_whole([*self.messages[:start], *rewrite.messages], as_template=rewrite.as_template)

    def _is_seam(self, position: int) -> bool:
        """Return whether a token is a control token or follows one, so that no token crosses its beginning."""
        around = self.tokens.copy(max(position - 1, 0), position + 1)
        return bool(np.isin(around, self._controls).any())

    @property
    def _controls(self) -> "NDArray[np.int32]":
        controls = self.renderer.tokenizer.control_tokens.values()
        return np.fromiter(controls, np.int32)

    def _replace_whole(self, messages: Sequence[Message], *, as_template: bool) -> int:
        """Replace all messages with a renderer of whole conversations; return how many tokens stay."""
        if not as_template and _are_same(self.messages, messages):
            return len(self.tokens)
        history: Literal["template", "keep"] = "template" if as_template else "keep"

        def write(written: Callable[[Message], Message]) -> Rendered:
            out = self.renderer.emission()
            self.renderer.emit_history(
                out, [*map(written, messages)], history, tools=self.tools, generation_prompt=True
            )
            self.renderer.emit_generation_prompt(out, len(messages), self.prefill)
            return Rendered(out)

        keep = self._replace_written(0, messages, write)
        assert keep is not None  # only `render_after` renders nothing
        return keep

    def _replace_written(
        self,
        first: int,
        messages: Sequence[Message],
        write: Callable[[Callable[[Message], Message]], Rendered | None],
    ) -> int | None:
        """Replace the messages from `first` on with rendered ones; return how many tokens stay.

        A reply that the template refuses to write, such as one with a spoiled call, keeps its own tokens as they are.

        Args:
            first: The first message that is replaced.
            messages: The messages from there on.
            write: Renders them, each as the function writes it that it is given; None if it cannot.

        Raises:
            RenderError: If the template refuses the conversation for another reason.
        """
        try:
            rendered = write(_as_it_is)
            return None if rendered is None else self._replace_from(first, messages, rendered.tokens, rendered.starts)
        except RenderError:
            refused = {i for i, message in enumerate(messages) if writable(message) is not message}
            rendered = write(writable) if refused else None
            if rendered is None:
                raise
        past, shown = _Past(self, first), list(messages)
        tokens, starts = [rendered.tokens[: rendered.starts[0]]], list[int]()
        for index, (start, stop) in enumerate(pairwise([*rendered.starts, len(rendered.tokens)])):
            starts.append(sum(map(len, tokens)))
            source = past.find(messages[index]) if index < len(messages) else None
            if index in refused and source is not None:
                following = rendered.tokens[stop : stop + 1]
                tokens.append(self._up_to_end(past.tokens(source), rendered.tokens[start:stop], following))
                shown[index] = past.messages[source]
            else:
                tokens.append(rendered.tokens[start:stop])
        return self._replace_from(first, shown, np.concatenate(tokens), starts)

    def _up_to_end(
        self, own: "NDArray[np.int32]", rendered: "NDArray[np.int32]", following: "NDArray[np.int32]"
    ) -> "NDArray[np.int32]":
        """Return a reply's own tokens up to the end of its turn, then what is rendered after the end.

        A rendering that begins the next message with the token that ended the turn (GLM) brings that token.
        """
        end, at = (
            int(np.flatnonzero(found)[-1]) + 1 if (found := np.isin(tokens, self.renderer.stop_token_ids)).any() else 0
            for tokens in (own, rendered)
        )
        if not end or at:
            return np.concatenate([own[:end], rendered[at:]]) if end else own
        return own[: end - 1] if np.array_equal(own[end - 1 : end], following) else own

    def _replace_from(
        self, first: int, messages: Sequence[Message], new: "NDArray[np.int32]", rendered_starts: Sequence[int]
    ) -> int:
        """Replace the messages from `first` on with rendered ones, which begin at `rendered_starts` in `new`.

        The common text stays, up to the last control token before the first difference. The generation prompt is
        rendered with the messages, since it may share a token with the last one; what follows it stays.

        Returns:
            How many tokens stay.
        """
        offset = self.starts[first] if first else 0
        old = self.tokens.copy(offset, self.body)
        keep, same = self._shared(old, new, self._first_other_image(first, messages, new, rendered_starts))
        if keep == len(old) and same == len(new):
            self.messages[first:] = messages
            return len(self.tokens)
        keep += offset
        begun = self.tokens.copy(self.body)
        starts, bodies = [*self.starts[first:], self.end], self.bodies[first:]
        self._forget(first)
        new_starts: list[int] = []
        for index, start in enumerate(rendered_starts):
            is_old = start < same and index < len(starts) and starts[index] < keep
            new_starts.append(starts[index] if is_old else keep + start - same)
        for index, (message, start) in enumerate(zip(messages, new_starts, strict=False)):
            is_kept = index < len(bodies) and start == starts[index] and starts[index + 1] <= keep
            self._add(message, start, bodies[index] if is_kept else -1)
        self.tokens.truncate(keep)
        self.tokens.append(new[same:])
        self.end, self.body = new_starts[-1], len(self.tokens)
        self.tokens.append(begun)
        return keep

    def _first_other_image(
        self, first: int, messages: Sequence[Message], tokens: "NDArray[np.int32]", starts: Sequence[int]
    ) -> tuple[int, int]:
        """Return where the first image that differs begins, in the tokens after `first` and in rendered ones.

        The placeholders of different images may be the same tokens. Without such an image, it is their ends.
        """
        offset = self.starts[first] if first else 0
        ends = self.body - offset, len(tokens)
        if self.renderer.vision is None:
            return ends
        new = [
            placed.moved(start)
            for message, (start, stop) in zip(messages, pairwise(starts), strict=True)
            for placed in self._places(tokens[start:stop], message)
        ]
        old = [placed.moved(-offset) for placed in self.placed_images(offset)]
        same = sum(1 for _ in takewhile(lambda pair: pair[0].image == pair[1].image, zip(old, new, strict=False)))
        return old[same].start if same < len(old) else ends[0], new[same].start if same < len(new) else ends[1]

    def _places(self, tokens: "NDArray[np.int32]", message: Message) -> list[PlacedImage]:
        """Return where the images of a message are in its tokens."""
        images = message.images if message.parts is not None else ()
        vision = self.renderer.vision if images else None
        return [] if vision is None else vision.places(tokens, images)

    def placed_images(self, keep: int = 0) -> list[PlacedImage]:
        """Return the images whose tokens come after the first `keep`, with their positions in the view.

        Only the tokens of messages that were added since the last call are read.
        """
        if self.renderer.vision is None:
            return []
        for index in range(self._n_placed, len(self.messages)):
            start = self.starts[index]
            tokens = self.tokens.view[start : start + self.count(index)]
            self._placed += [placed.moved(start) for placed in self._places(tokens, self.messages[index])]
        self._n_placed = len(self.messages)
        return self._placed[bisect_right(self._placed, keep, key=_stop_of) :]

    def _forget(self, first: int) -> None:
        """Drop the messages from `first` on; their tokens stay until they are truncated."""
        if first < len(self.starts):
            del self._placed[bisect_left(self._placed, self.starts[first], key=_start_of) :]
        self._n_placed = min(self._n_placed, first)
        del self.messages[first:], self.starts[first:], self.bodies[first:]

    def _shared(self, old: "NDArray[np.int32]", new: "NDArray[np.int32]", at_most: tuple[int, int]) -> tuple[int, int]:
        """Return how many tokens of each have the same text at the start, cut where a control token begins.

        A control token is not the same as a text that spells it.

        Args:
            old: Tokens, shape (n,).
            new: Tokens, shape (m,).
            at_most: The largest results.
        """
        old, new = old[: at_most[0]], new[: at_most[1]]
        old_text, old_offsets = self._offsets(old)
        new_text, new_offsets = self._offsets(new)
        shorter = min(len(old_text), len(new_text))
        differs = old_text[:shorter] != new_text[:shorter]
        length = int(np.argmax(differs)) if differs.any() else shorter
        both: NDArray[np.int64] = np.intersect1d(old_offsets, new_offsets)
        both = both[both <= length]
        kept: NDArray[np.int64] = np.searchsorted(new_offsets, both)
        begins_control = (kept == 0) | (kept == len(new)) | np.isin(np.append(new, -1)[kept], self._controls)
        at = int(np.flatnonzero(begins_control)[-1])
        left: NDArray[np.int64] = np.searchsorted(old_offsets, both)
        return int(left[at]), int(kept[at])

    def _offsets(self, tokens: "NDArray[np.int32]") -> "tuple[NDArray[np.uint8], NDArray[np.int64]]":
        """Return the bytes of the tokens, and the position of each token in them, with the end of the last one.

        A control token is a byte that no UTF-8 has, and its id.
        """
        pieces = self.renderer.tokenizer.token_bytes(tokens)
        for index in np.flatnonzero(np.isin(tokens, self._controls)).tolist():
            pieces[index] = b"\xff" + int(tokens[index]).to_bytes(4, "big")
        return np.frombuffer(b"".join(pieces), np.uint8), np.cumsum([0, *map(len, pieces)], dtype=np.int64)

    def emitted(self) -> list[EmittedDelta]:
        """Return the deltas that were emitted after sampled replies, as far as they are still in the view."""
        replies = [index for index, message in enumerate(self.messages) if message.role == "assistant"]
        turns: list[EmittedDelta] = []
        for reply, following in pairwise([*replies, len(self.messages)]):
            is_last = following == len(self.messages)
            stop = self.body if is_last else self.bodies[following]
            if following > reply + 1 and self.bodies[reply] >= 0 and stop >= 0:
                tokens = self.tokens.copy(self.starts[reply + 1], stop)
                turns.append(EmittedDelta(reply, tokens, not is_last or self.body > self.end))
        return turns

    def count(self, index: int) -> int:
        """Return how many tokens message `index` has."""
        following = self.starts[index + 1] if index + 1 < len(self.starts) else self.end
        return following - self.starts[index]

    def measure(self, index: int, message: Message) -> int:
        """Return how many tokens a message would have in place of message `index`."""
        if self.renderer.renders_whole:  # an estimate
            return max(0, self.count(index) + self._size(message) - self._size(self.messages[index]))
        start = self._start_of_round(index)
        view = [*self.messages[start:index], message, *self.messages[index + 1 : index + 2]]
        return len(self._write_again(view, index - start, self._sampled(index))[0])

    def _start_of_round(self, index: int) -> int:
        """Return the first message that the tokens of message `index` may depend on: a result depends on its reply."""
        start = max(index - 1, 0)
        while start > 0 and self.messages[start].role == "tool":
            start -= 1
        return start

    def _size(self, message: Message) -> int:
        vision = self.renderer.vision if message.images else None
        placeholders = sum(vision.count(image) for image in message.images) if vision is not None else 0
        return placeholders + len(self.renderer.tokenizer.encode(message.content + (message.reasoning or "")))

    def _add(self, message: Message, start: int, body: int = -1) -> None:
        self.messages.append(message)
        self.starts.append(start)
        self.bodies.append(body)

    def _first_changed(self, rewrite: Rewrite) -> tuple[int, Sequence[Message]]:
        """Return the first message that has to be rendered again, and all messages from there on."""
        first, offset = rewrite.start, 0
        while offset < len(rewrite.messages) and first < len(self.messages):
            if rewrite.messages[offset] is not self.messages[first]:
                break
            first, offset = first + 1, offset + 1
        messages = rewrite.messages[offset:]
        if first:
            before, old, new = self.messages[first - 1], _at(self.messages, first), _at(messages, 0)
            if self.renderer.seam(before, old) != self.renderer.seam(before, new):
                return first - 1, [before, *messages]  # its neighbor changed, so it is rendered differently
        return first, messages

    def _sampled(self, index: int) -> "NDArray[np.int32] | None":
        """Return the tokens of message `index` from the first sampled one on; None if the model did not write it."""
        body = self.bodies[index]
        return self.tokens.view[body : self.starts[index] + self.count(index)] if body >= 0 else None

    def _write(self, view: Sequence[Message], at: int, past: "_Past") -> "tuple[NDArray[np.int32], int]":
        """Return the tokens of `view[at]`, and the position of its sampled part in them, or -1."""
        source = past.find(view[at])
        if source is None:
            return self._write_again(view, at, None)
        # The first message's tokens hold the tools, so they cannot be copied to another place.
        is_same = past.messages[source] is view[at] and at and not past.is_opening(source)
        if is_same and self._has_same_neighbors(view, at, past, source):
            return past.tokens(source), past.body(source)
        return self._write_again(view, at, past.sampled(source))

    def _write_again(
        self, view: Sequence[Message], at: int, sampled: "NDArray[np.int32] | None"
    ) -> "tuple[NDArray[np.int32], int]":
        """As `_write`, with the renderer, but reuse the sampled tokens of the old message for the same text."""
        out = self.renderer.emission()
        self.renderer.emit_conversation(out, view, tools=self.tools, first=at, stop=at + 1)
        opening = self.renderer.opening_tokens
        tail = None if sampled is None else self._tail(sampled, out.text().removeprefix(self.renderer.opening))
        return (out.tokens()[0], -1) if tail is None else (np.concatenate([opening, tail]), len(opening))

    def _has_same_neighbors(self, view: Sequence[Message], at: int, past: "_Past", source: int) -> bool:
        seam, message = self.renderer.seam, view[at]
        return all(
            seam(message, _at(view, at + side)) == seam(message, _at(past.messages, source + side)) for side in (-1, 1)
        )

    def _tail(self, sampled: "NDArray[np.int32]", text: str) -> "NDArray[np.int32] | None":
        """Return the end of `sampled` whose text is exactly `text`, or None if no token begins there."""
        wanted = text.encode()
        end = sampled[-(len(wanted) // _BYTES_OF_TOKEN + 1) :]
        pieces = self.renderer.tokenizer.token_bytes(end)
        if len(end) < len(sampled) and sum(map(len, pieces)) < len(wanted):
            pieces = self.renderer.tokenizer.token_bytes(sampled)
        sizes = [0, *accumulate(map(len, reversed(pieces)))]  # of the last token, of the last two, and so on
        count = bisect_left(sizes, len(wanted))
        if count == len(sizes) or sizes[count] != len(wanted) or not b"".join(pieces).endswith(wanted):
            return None
        return sampled[len(sampled) - count :]


class _Past:
    """The messages of a view from `first` on, with the one before them, before a rewrite."""

    def __init__(self, view: View, first: int) -> None:
        lead = min(first, 1)
        bounds = [*view.starts[first:], view.end]
        self.start = bounds[0]
        self.messages = view.messages[first - lead :]
        self._has_opening = not first
        self._tokens = view.tokens.copy(self.start, view.end)
        self._bounds = [0] * lead + [bound - self.start for bound in bounds]
        self._bodies = [-1] * lead + [body - self.start if body >= 0 else -1 for body in view.bodies[first:]]
        self._same = {id(message): index for index, message in enumerate(self.messages) if index >= lead}
        self._next = lead

    def find(self, message: Message) -> int | None:
        """Return the index of a message, or of the reply that it is without its reasoning; they come in order."""
        index = self._same.get(id(message))
        if index is None and message.role == "assistant":
            later = range(self._next, len(self.messages))
            index = next((i for i in later if self._bodies[i] >= 0 and is_same_answer(self.messages[i], message)), None)
        if index is not None:
            self._next = index + 1
        return index

    def is_opening(self, index: int) -> bool:
        """Return whether this is the conversation's first message."""
        return self._has_opening and index == 0

    def tokens(self, index: int) -> "NDArray[np.int32]":
        """Return the tokens of message `index`."""
        return self._tokens[self._bounds[index] : self._bounds[index + 1]]

    def sampled(self, index: int) -> "NDArray[np.int32] | None":
        """Return its tokens from the first sampled one on, its end included; None if the model did not write it."""
        return self._tokens[self._bodies[index] : self._bounds[index + 1]] if self._bodies[index] >= 0 else None

    def body(self, index: int) -> int:
        """Return the position of the sampled part in its tokens, or -1."""
        return self._bodies[index] - self._bounds[index] if self._bodies[index] >= 0 else -1


def _as_it_is(message: Message) -> Message:
    return message


def _at(messages: Sequence[Message], index: int) -> Message | None:
    return messages[index] if 0 <= index < len(messages) else None


def _are_same(first: Sequence[Message], second: Sequence[Message]) -> bool:
    return len(first) == len(second) and all(map(operator.is_, first, second))


def is_same_answer(old: Message, message: Message) -> bool:
    """Return whether two replies are the same apart from their reasoning."""
    return old.content == message.content and old.tool_calls == message.tool_calls
