"""Reads the replies of a model with a chat template."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from envsdk.errors import ConfigError
from envsdk.messages import Message, ToolSchema
from envsdk.rendering.reading import Segment, SplitReply

from .._grammars._grammar import CALL_FIELDS, Edge, Grammar
from .._grammars._reading import GrammarReader, GrammarReading
from .._replies._formats import PLAIN, ReplyFormat, choose_format, get_format
from .._replies._response_template import ResponseTemplate
from ._mask import Mask
from ._reply import ReplyProbe


class ReplyReader:
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
        mask: Mask,
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
        """Whether replies are read by the measured grammar, with calls."""
        self._reader = reader or GrammarReader(grammar() if self.is_measured else without_calls(grammar(), mask))
        around_text = (probe.text_opener, probe.text_stop.closing)
        names = [name for name in self._controls if mask.controls(name)]
        names += [name for text in (*(probe.thinking or ()), *around_text) for name, _ in mask.controls(text)]
        self.structure = tuple(name for name in dict.fromkeys(names) if name not in known)
        """The control tokens, besides `known`, that are distinguished from text."""

    def begin(self, tools: Sequence[ToolSchema]) -> GrammarReading | None:
        """Begin to read a reply as it comes; None if replies can only be read whole.

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

    @property
    def _controls(self) -> Sequence[str]:
        """The control tokens that the reader distinguishes from text."""
        match self._reader:
            case ResponseTemplate():
                return ()
            case ReplyFormat():
                return self._reader.controls
            case _:
                return self._reader.grammar.controls


def without_calls(grammar: Grammar, mask: Mask) -> Grammar:
    """Return a grammar that reads calls as text, and reasoning between `<think>` tags if it has none of its own."""
    edges = [edge for edge in grammar.edges if not {edge.source, edge.target} & CALL_FIELDS]
    if not any(edge.target == "reasoning" for edge in edges):
        edges += [Edge("start", "reasoning", "<think>\n"), Edge("reasoning", "text", "\n</think>\n\n")]
    controls = dict.fromkeys(name for edge in edges for name, _ in mask.controls(edge.constant))
    return Grammar(tuple(edges), controls=tuple(controls))
