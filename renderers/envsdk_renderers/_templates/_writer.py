"""Writes rendered text as pieces of an emission: the template's own text as scaffold, the messages' as content.

Strings that were hidden from the template are restored here, as content.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envsdk.errors import TemplateUnsupported
from envsdk.messages import Message
from envsdk.rendering.emission import Emission, Encoder

from .._grammars._grammar import Grammar
from .._grammars._writing import write_after
from ._base import Stop
from ._mask import TextMask, count_stems, has_stem
from ._reply import ReplyProbe
from ._sentinels import slot

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LONG_SCAFFOLD = 200


class TemplateEmission(Emission):
    """An emission that stores the generation prompt of its conversation, and refuses words of probes and masks."""

    __slots__ = ("_given", "generation_prompt", "placeholder")
    generation_prompt: str

    def __init__(self, encoder: Encoder, generation_prompt: str) -> None:
        super().__init__(encoder)
        self.generation_prompt = generation_prompt
        self.placeholder = None if encoder.vision is None else encoder.vision.placeholder
        """The token that the template writes for an image; None for a renderer that refuses images."""
        self._given = 0
        """The number of stems in the content, which may contain them like any other text."""

    def content(self, text: str) -> None:
        """See `Emission.content`."""
        self._given += count_stems(text)
        super().content(text)

    def tokens(self) -> "tuple[NDArray[np.int32], list[int]]":
        """See `Emission.tokens`.

        Raises:
            TemplateUnsupported: If a word of a probe or a mask was written, whole or in parts.
        """
        written = "".join([piece.text for piece in self._pieces])
        if count_stems(written) > self._given:
            raise TemplateUnsupported("a word of a probe or of the mask would reach the model", rendered=written)
        return super().tokens()


@dataclass(frozen=True)
class Writer:
    """Writes rendered text.

    Attributes:
        mask: The mask that hid the names of control tokens in content.
        is_emitted: Whether the text leaves the renderer; if not, it is only compared, and may contain words of probes.
    """

    mask: TextMask
    is_emitted: bool = True

    def fill(self, out: Emission, text: str, contents: Mapping[str, str], *, is_scaffold: bool = True) -> None:
        """Write text, and in place of its slots their contents."""
        slots = re.compile(f"({'|'.join(map(re.escape, contents)) or '(?!)'})")
        for index, part in enumerate(slots.split(text)):
            if index % 2:
                out.content(self.mask.restore(contents[part], is_compared=not self.is_emitted))
            else:
                self.write(out, part, is_scaffold=is_scaffold)

    def write(self, out: Emission, text: str, *, is_scaffold: bool = True) -> None:
        """Write rendered text. Hidden strings in it are content, and so are strings that are too long to be cached."""
        if is_scaffold and len(text) <= _LONG_SCAFFOLD and not has_stem(text):
            out.scaffold(text)
            return
        for part, is_control in self.mask.parts(text):
            shown = part if is_control else self.mask.restore(part, is_compared=not self.is_emitted)
            is_own = is_control or (is_scaffold and shown == part and len(part) <= _LONG_SCAFFOLD)
            out.scaffold(part) if is_own else out.content(shown)

    def write_message(self, out: Emission, text: str, content: str) -> None:
        """Write a rendered message, in which `content` is the text of the message and everything else is scaffold."""
        if content and content not in text:  # the template changes it: nothing of this text is worth caching
            self.write(out, text, is_scaffold=False)
            return
        for part, is_control in self.mask.parts(text):
            at = self.mask.find(part, content, 0) if content and not is_control else -1
            if at < 0:
                self.write(out, part)
                continue
            self.write(out, part[:at])
            out.content(self.mask.restore(content, is_compared=not self.is_emitted))
            self.write(out, part[at + len(content) :])
            content = ""


class ReplyWriter:
    """Writes replies after a generation prompt.

    Args:
        probe: How the template writes replies.
        writer: Writes rendered text.
        generation_prompt: The generation prompt.
        grammar: The measured grammar; what it does not write is rendered by the template.
    """

    def __init__(self, probe: ReplyProbe, writer: Writer, generation_prompt: str, grammar: Grammar | None) -> None:
        self._probe = probe
        self._grammar = grammar
        self._writer = writer
        self._generation_prompt = prompt = generation_prompt
        thinking = probe.thinking
        self.tag = tag = thinking.opener.strip() if thinking else ""
        """The tag that opens reasoning; empty if it is missing."""
        self.prompt_closes_block = bool(
            thinking and tag in prompt and thinking.closer.strip() in prompt.split(tag, 1)[1]
        )
        """True if the generation prompt contains an empty think block."""
        self.prompt_opens_block = bool(tag) and prompt.rstrip().endswith(tag)
        """True if the generation prompt ends with the tag that opens reasoning."""

    def write(self, out: Emission, message: Message, hidden: Message) -> Stop:
        """Write a reply without its end; return how it ends.

        Args:
            out: Where it is written.
            message: The reply, with ids of its calls.
            hidden: The same with its control tokens hidden, for the template.

        Raises:
            TemplateUnsupported: If the template does not write the reply's text or its calls.
        """
        opens_block = message.reasoning is not None and self.prompt_closes_block
        prompted = "" if opens_block else self._generation_prompt.removeprefix(self._probe.opening)
        calls = tuple(call.model_copy(update={"raw": None}) for call in message.tool_calls)  # it knows no tokens
        try:
            given = message.model_copy(update={"tool_calls": calls})
            pieces = None if self._grammar is None else write_after(self._grammar, given, prompted)
        except TemplateUnsupported:  # or it is written in another way, such as text as reasoning
            pieces = None
        if pieces is None:
            return self._write_rendered(out, hidden)
        for piece in pieces:
            out.scaffold(piece.text) if piece.is_scaffold else out.content(piece.text)
        return self._probe.stop_of(message)

    def _write_rendered(self, out: Emission, message: Message) -> Stop:
        """Write a reply, in which control tokens are hidden, as the template renders it."""
        content = {"content": slot(0)} if message.content else {}
        reasoning = {"reasoning": slot(1)} if message.reasoning else {}
        opens_block = message.reasoning is not None and self.prompt_closes_block
        sentinel = message.model_copy(update={**content, **reasoning})
        text, stop = self._probe.body(sentinel, self._probe.opening if opens_block else None)
        if message.content and slot(0) not in text:
            raise TemplateUnsupported("the text of a reply is not rendered next to its calls", rendered=text)
        thinking = self._probe.thinking
        if thinking and self.prompt_opens_block and slot(1) not in text:
            if message.reasoning:
                text = slot(1) + thinking.closer + text
            elif not text.lstrip().startswith(thinking.closer.strip()):
                self._writer.write(out, thinking.closer)
        self._writer.fill(out, text, {slot(0): message.content, slot(1): message.reasoning or ""}, is_scaffold=False)
        return stop
