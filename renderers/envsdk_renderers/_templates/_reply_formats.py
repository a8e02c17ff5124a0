"""Reads and writes the replies of a model with a chat template."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from envsdk.errors import ConfigError, TemplateUnsupported
from envsdk.messages import Message, ToolSchema
from envsdk.rendering.emission import Emission
from envsdk.rendering.reading import Segment, SplitReply

from .._grammars._grammar import CALL_FIELDS, Edge, Grammar
from .._grammars._reading import GrammarReader, GrammarReading
from .._grammars._writing import write_after
from .._replies._formats import PLAIN, ReplyFormat, choose_format, get_format
from .._replies._response_template import ResponseTemplate
from ._base import Stop
from ._mask import TextMask
from ._reply import ReplyProbe
from ._sentinels import slot
from ._writer import Writer


class TemplateReplyReader:
    """Reads replies with a response template of transformers if there is one, else by a format or the measured grammar.

    Args:
        probe: How the template writes replies.
        mask: Finds the control tokens.
        reply_format: The name of the format, or `"auto"`; see `FixedBase`.
        response_template: The response template that the user gave.
        own_template: The tokenizer's own response template, which `"auto"` uses.
        known: The stop tokens and the tokens that open blocks.
        grammar: The measured grammar, which `"auto"` uses if there is no response template and no registered format
            fits.

    Raises:
        ConfigError: If `response_template` cannot be used.
        UnknownName: If there is no such format.
    """

    def __init__(
        self,
        probe: ReplyProbe,
        mask: TextMask,
        *,
        reply_format: str,
        response_template: Mapping[str, Any] | None,
        own_template: Mapping[str, Any] | None,
        known: Sequence[str],
        grammar: Callable[[], Grammar],
    ) -> None:
        is_auto = reply_format == "auto"
        reader: ResponseTemplate | ReplyFormat | GrammarReader | None = None
        if response_template:
            reader = ResponseTemplate(response_template)
        elif response_template is None and is_auto and own_template:
            with suppress(ConfigError):  # the installed transformers may not read it; then the grammar is measured
                reader = ResponseTemplate(own_template)
        name = choose_format(probe.rendered) if is_auto else reply_format
        if name not in (None, PLAIN):
            reader = reader or get_format(name)
        self.is_measured = reader is None and name is None
        """True if replies are read by the measured grammar, with calls."""
        self._reader = reader or GrammarReader(grammar() if self.is_measured else without_calls(grammar(), mask))
        around_text = (probe.text_opener, probe.text_stop.closing)
        match self._reader:
            case ResponseTemplate():
                controls: Sequence[str] = ()
            case ReplyFormat():
                controls = self._reader.controls
            case _:
                controls = self._reader.grammar.controls
        names = [name for name in controls if mask.controls(name)]
        names += [name for text in (*(probe.thinking or ()), *around_text) for name, _ in mask.controls(text)]
        self.structure = tuple(name for name in dict.fromkeys(names) if name not in known)
        """The control tokens, besides `known`, that are distinguished from text."""

    def begin(self, tools: Sequence[ToolSchema]) -> GrammarReading | None:
        """Begin to read a reply as it arrives; None if replies can only be read whole.

        Args:
            tools: JSON schemas of the tools that the model has.
        """
        return self._reader.begin(tools) if isinstance(self._reader, GrammarReader) else None

    def read(
        self,
        segments: Sequence[Segment],
        sampled: SplitReply,
        *,
        opening: str,
        stop_tokens: Sequence[str],
        tools: Sequence[ToolSchema],
        controls: Collection[str],
    ) -> Message:
        """Read a reply.

        Args:
            segments: The beginning of the reply in the prompt, and what was sampled.
            sampled: What was sampled, with how it ended.
            opening: The scaffold before the reply.
            stop_tokens: The tokens that end a reply.
            tools: JSON schemas of the tools that the model has.
            controls: The names of the vocabulary's control tokens.
        """
        match self._reader:
            case ResponseTemplate():
                return self._reader.read(opening, segments, sampled, stop_tokens)
            case ReplyFormat():
                return self._reader.read(segments, sampled, tools, controls)
            case _:
                return self._reader.read(segments, sampled, tools)


def without_calls(grammar: Grammar, mask: TextMask) -> Grammar:
    """Return a grammar that reads calls as text, and reasoning between `<think>` tags if it has no tags for it."""
    edges = [edge for edge in grammar.edges if not {edge.source, edge.target} & CALL_FIELDS]
    if not any(edge.target == "reasoning" for edge in edges):
        edges += [Edge("start", "reasoning", "<think>\n"), Edge("reasoning", "text", "\n</think>\n\n")]
    controls = dict.fromkeys(name for edge in edges for name, _ in mask.controls(edge.constant))
    return Grammar(tuple(edges), controls=tuple(controls))


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
        return (self._probe.call_stop if message.tool_calls else None) or self._probe.text_stop

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
