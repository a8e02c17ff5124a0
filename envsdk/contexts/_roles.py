"""Labels of the tokens of a context, recorded on request: the text of a message, or the family's scaffold."""

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..messages import Message
from ..rendering.emission import Emission
from ..rendering.family import FamilyRenderer
from ..rendering.renderer import Renderer, WrittenPrompt

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCAFFOLD = "scaffold"
"""The label of the family's own text: control tokens, headers, a generation prompt, a prefill."""
SAMPLED = ("content", "reasoning", "call")
"""The labels of an assistant's text."""
UNKNOWN = -1
"""The code of a token without a label, because its reply was never finished."""


class LabeledSpan(NamedTuple):
    """A run of tokens with the same label."""

    start: int
    stop: int
    label: str


@dataclass(eq=False, repr=False)
class RoleLog:
    """The labels of all tokens in a context's log, as indices into a legend."""

    legend: list[str] = field(default_factory=list[str])
    codes: "array[int]" = field(default_factory=lambda: array("h"))
    _unread: int = 0  # how many sampled tokens at the end have no label yet

    def observe(self, renderer: Renderer, prompt: WrittenPrompt, keep: int) -> None:
        """Add the labels of the tokens of a prompt from `keep` on."""
        codes = np.full(len(prompt.tokens) - keep, self._code(SCAFFOLD), dtype=np.int16)
        bounds = [*prompt.starts, prompt.end]
        for index in range(len(prompt.messages) - 1, -1, -1):
            start, stop, message = bounds[index], bounds[index + 1], prompt.messages[index]
            if stop <= keep:
                break
            tokens = np.asarray(prompt.tokens[start:stop])
            is_reply = message.role == "assistant"
            found = reply_spans(renderer, tokens, message) if is_reply else _text_spans(renderer, prompt, index, tokens)
            begin = start - keep
            for span in found:
                codes[max(begin + span.start, 0) : max(begin + span.stop, 0)] = self._code(span.label)
        self.codes.extend(codes.tolist())
        self._unread = 0

    def act(self, count: int) -> None:
        """Add sampled tokens, which are labeled later, by `read`."""
        self.codes.extend([UNKNOWN] * count)
        self._unread += count

    def read(self, renderer: Renderer, prompt: WrittenPrompt) -> None:
        """Label the sampled tokens of the last message, a reply that has been parsed."""
        tokens = np.asarray(prompt.tokens[prompt.starts[-1] :])
        codes = np.full(len(tokens), self._code(SCAFFOLD), dtype=np.int16)
        for span in reply_spans(renderer, tokens, prompt.messages[-1]):
            codes[span.start : span.stop] = self._code(span.label)
        if self._unread:
            self.codes[-self._unread :] = array("h", codes[-self._unread :].tolist())

    def _code(self, label: str) -> int:
        if label not in self.legend:
            self.legend.append(label)
        return self.legend.index(label)


def _text_spans(
    renderer: Renderer, prompt: WrittenPrompt, index: int, tokens: "NDArray[np.int32]"
) -> list[LabeledSpan]:
    """Return the spans of the text of a message that the model did not sample, as the renderer attributes them."""
    message = prompt.messages[index]
    label = f"tool:{message.name}" if message.role == "tool" and message.name else message.role
    if isinstance(renderer, FamilyRenderer):
        out = Emission(renderer.encoder)
        renderer.emit_conversation(out, prompt.messages, tools=prompt.tools, first=index, stop=index + 1)
        if np.array_equal(out.tokens()[0], tokens):
            return [LabeledSpan(span.start, span.stop, label) for span in out.spans() if span.is_content]
    text = _Text(renderer, tokens)  # a template that is measured has another neighbor's scaffold among its tokens
    return [LabeledSpan(*found, label) for found in [text.find(message.content)] if found is not None]


def reply_spans(renderer: Renderer, tokens: "NDArray[np.int32]", message: Message) -> list[LabeledSpan]:
    """Return the spans of a reply's reasoning, content and calls.

    Args:
        renderer: The renderer of the reply.
        tokens: Its tokens: int32, shape (n,), also with the assistant's opening before them.
        message: The message that the renderer parsed from them.
    """
    text = _Text(renderer, tokens, skip=len(tokens) - len(renderer.after_opening(tokens)))
    found = [(text.find(message.reasoning or ""), "reasoning"), (text.find(message.content), "content")]
    spans = [LabeledSpan(*place, label) for place, label in found if place is not None]
    is_complete = all(place is not None for place, label in found if getattr(message, label))
    if not message.tool_calls and is_complete:
        return spans
    label, word = ("call", message.tool_calls[0].name) if message.tool_calls else ("content", None)
    return [*(LabeledSpan(start, stop, label) for start, stop in text.rest(word)), *spans]  # later spans win


class _Text:
    """The text of tokens for searches, which never match control tokens.

    A token belongs to the span that contains its last byte.

    Args:
        renderer: The renderer.
        tokens: The tokens: int32, shape (n,).
        skip: The number of tokens at the start that are scaffold.
    """

    def __init__(self, renderer: Renderer, tokens: "NDArray[np.int32]", *, skip: int = 0) -> None:
        pieces = renderer.tokenizer.token_bytes(tokens)
        controls = set(renderer.tokenizer.control_tokens.values())
        is_text = [int(token) not in controls and at >= skip for at, token in enumerate(tokens)]
        self._bytes = b"".join(
            piece if own else b"\xff" * len(piece) for piece, own in zip(pieces, is_text, strict=True)
        )
        self._ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
        self._is_text = is_text
        self._cursor = 0

    def find(self, text: str) -> tuple[int, int] | None:
        """Return the range of tokens of the next occurrence of a string, or None; the next search begins after it."""
        wanted = text.encode()
        start = self._bytes.find(wanted, self._cursor) if wanted else -1
        if start < 0:
            return None
        self._cursor = start + len(wanted)
        first, last = np.searchsorted(self._ends, [start, self._cursor], side="right").tolist()
        return first, last

    def rest(self, word: str | None) -> list[tuple[int, int]]:
        """Return the runs of tokens between control tokens that hold more than white space.

        Args:
            word: A string that the first returned run contains; None for all runs.
        """
        at = -1 if word is None else self._bytes.find(word.encode())
        token = int(np.searchsorted(self._ends, at, side="right")) if at >= 0 else 0
        bounds = [0, *self._ends.tolist()]
        runs: list[list[int]] = np.flatnonzero(np.diff([False, *self._is_text, False])).reshape(-1, 2).tolist()
        return [(a, b) for a, b in runs if token < b and not self._bytes[bounds[a] : bounds[b]].isspace()]
