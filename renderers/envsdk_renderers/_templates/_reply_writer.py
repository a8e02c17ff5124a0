"""Writes the replies of a model with a chat template, as the model would sample them."""

from functools import cached_property

from envsdk.errors import TemplateUnsupported
from envsdk.messages import Message
from envsdk.rendering.emission import Emission

from .._grammars._grammar import Grammar
from .._grammars._styles import Piece
from .._grammars._writing import write_after
from ._reply import ReplyProbe
from ._sentinels import slot
from ._stop import Stop
from ._writer import Writer


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
        self._generation_prompt = generation_prompt

    @cached_property
    def tag(self) -> str:
        """The tag that opens reasoning; empty if there is none."""
        return self._probe.thinking.opening_tag if self._probe.thinking else ""

    @cached_property
    def prompt_closes_block(self) -> bool:
        """Whether the generation prompt contains an empty think block."""
        thinking, prompt = self._probe.thinking, self._generation_prompt
        return bool(thinking and self.tag in prompt and thinking.closing_tag in prompt.split(self.tag, 1)[1])

    @cached_property
    def prompt_opens_block(self) -> bool:
        """Whether the generation prompt ends with the tag that opens reasoning."""
        return bool(self.tag) and self._generation_prompt.rstrip().endswith(self.tag)

    def write(self, out: Emission, message: Message, hidden: Message) -> Stop:
        """Write a reply without its end; return how it ends.

        Args:
            out: Where it is written.
            message: The reply, with ids of its calls.
            hidden: The same with its control tokens hidden, for the template.

        Raises:
            TemplateUnsupported: If the template does not write the reply's text or its calls.
        """
        try:
            pieces = None if self._grammar is None else self._pieces(self._grammar, message)
        except TemplateUnsupported:  # or in a way of its own, such as text as reasoning
            pieces = None
        if pieces is None:
            return self._write_rendered(out, hidden)
        for piece in pieces:
            out.scaffold(piece.text) if piece.is_scaffold else out.content(piece.text)
        return (self._probe.call_stop if message.tool_calls else None) or self._probe.text_stop

    def _pieces(self, grammar: Grammar, message: Message) -> list[Piece]:
        """Return what is written after the generation prompt, or after the opening if the block is the reply's own."""
        opens_block = message.reasoning is not None and self.prompt_closes_block
        calls = tuple(
            call.model_copy(update={"raw": None}) for call in message.tool_calls
        )  # a template knows no tokens
        return write_after(
            grammar, message.model_copy(update={"tool_calls": calls}), "" if opens_block else self._prompted
        )

    @property
    def _prompted(self) -> str:
        return self._generation_prompt.removeprefix(self._probe.opening)

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
            elif not text.lstrip().startswith(thinking.closing_tag):
                self._writer.write(out, thinking.closer)
        self._writer.fill(out, text, {slot(0): message.content, slot(1): message.reasoning or ""}, is_scaffold=False)
        return stop
