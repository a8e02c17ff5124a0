"""The facts about one template with one vocabulary: measured once, and the same for all renderers and episodes."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, TypeAlias

from pydantic import TypeAdapter

from envsdk.errors import ConfigError, RenderError, TemplateUnsupported

from .._grammars._grammar import CALL_FIELDS, Edge, Grammar
from .._grammars._measuring import Renderings, Thought, measure
from .._grammars._probes import SIMPLE_TOOLS, TOOLS, call_of, reply, two_arguments
from .._grammars._reading import GrammarReader
from .._replies._formats import PLAIN, ReplyFormat, choose_format, get_format
from .._replies._response_template import ResponseTemplate
from ._conversation import ConversationWriter
from ._mask import TextMask
from ._reply import ReplyProbe
from ._sentinels import PROBE_TOOL
from ._turns import TemplateTurns
from ._writer import ReplyWriter, Writer

_GRAMMAR = TypeAdapter(Grammar)
ReplyReader: TypeAlias = ResponseTemplate | ReplyFormat | GrammarReader


class TemplateFacts:
    """The measured facts about a template.

    Args:
        turns: Measures its turns.
        ends: The tokens that are known to end a turn.
        reply_format: The name of the format of replies, or `"auto"`; see `FixedBase`.
        response_template: The response template that the user gave.
        own_template: The tokenizer's own response template, which `"auto"` uses.

    Attributes:
        probe: Measures the form of replies.
        generation_prompt: The scaffold after which a model samples a reply, as after a plain user message.
        text_stop: How a turn with text ends.
        stop_tokens: The tokens that end a turn.
        unconfirmed_stops: Those of them that no file of the tokenizer specifies.
        openers: Those of them that open the next message.
        written_ends: Those of them that the template writes.
        reader: Reads replies: by a response template if there is one, else by a format or the measured grammar.
        is_measured: True if replies are read by the measured grammar, with calls.
        structure: The control tokens that are distinguished from text, besides stop tokens and those that open blocks.
        writer: Writes rendered text.
        reply_writer: Writes replies.
        conversation_writer: Writes whole conversations.

    Raises:
        TemplateUnsupported: If no token ends a turn with text.
        ConfigError: If `response_template` cannot be used.
        UnknownName: If there is no such reply format.
    """

    def __init__(
        self,
        turns: TemplateTurns,
        ends: Sequence[str],
        *,
        reply_format: str,
        response_template: Mapping[str, Any] | None,
        own_template: Mapping[str, Any] | None,
    ) -> None:
        plain, with_tools = turns.base((), ()), turns.base((), (PROBE_TOOL,))
        if plain.text_stop is None:
            raise TemplateUnsupported("no token ends a turn with text", pair=("text", "user"))
        self._turns, self._plain, self._mask = turns, plain, turns.template.mask
        self.text_stop = plain.text_stop
        self.generation_prompt = plain.generation_prompt
        self.probe = ReplyProbe(plain, with_tools, self.text_stop)
        stops = [stop for stop in (self.text_stop, self.probe.call_stop) if stop]
        self.stop_tokens = tuple(dict.fromkeys([*(name for stop in stops for name in stop.sampled), *ends]))
        self.unconfirmed_stops = tuple(dict.fromkeys(n for s in stops if not s.is_confirmed for n in s.sampled))
        self.openers = frozenset(n for s in stops if not (s.written or s.is_unwritten) for n in s.sampled)
        self.written_ends = frozenset(name for stop in stops if stop.written for name in stop.sampled)
        found = _chosen_reader(self.probe.rendered, reply_format, response_template, own_template)
        self.is_measured = found is None
        if found is None or isinstance(found, str):
            found = GrammarReader(without_calls(self.grammar, self._mask) if found else self.grammar)
        self.reader: ReplyReader = found
        match self.reader:
            case ResponseTemplate():
                names = list[str]()
            case ReplyFormat(controls=controls):
                names = [name for name in controls if self._mask.controls(name)]
            case GrammarReader(grammar=grammar):
                names = [name for name in grammar.controls if self._mask.controls(name)]
        texts = *(self.probe.thinking or ()), self.probe.text_opener, self.text_stop.closing
        names += [name for text in texts for name, _ in self._mask.controls(text)]
        known = {*self.stop_tokens, *self.probe.blocks}
        self.structure = tuple(name for name in dict.fromkeys(names) if name not in known)
        self.writer = Writer(self._mask)
        grammar = self.grammar if self.is_measured else None
        openings, in_past = (self.generation_prompt, self.probe.opening), [stop for stop in stops if stop.written]
        past_ends = {name for stop in in_past for name in (stop.written, *stop.sampled)}
        self.conversation_writer = ConversationWriter(turns.template, self.writer, openings, past_ends)
        self.reply_writer = ReplyWriter(self.probe, self.writer, plain.generation_prompt, grammar)

    @property
    def grammar(self) -> Grammar:
        """The grammar of replies; it has no calls if the template writes none, or none that can be measured."""
        return self._turns.measured(
            f"grammar {json.dumps(self.stop_tokens)}",
            _GRAMMAR,
            lambda: measure(
                self.renderings,
                Thought(*thinking) if (thinking := self._grammar_probe.thinking) else None,
                self.stop_tokens,
            ),
        )

    @property
    def renderings(self) -> Renderings:
        """The renderings of probes, from which the grammar is measured and proved."""
        return Renderings(self._grammar_probe.probe, self._turns.template.dialect.addressed, self._mask)

    @cached_property
    def _grammar_probe(self) -> ReplyProbe:
        """The probe with tools of several types, or with simple ones if the template refuses those."""
        probes = [
            ReplyProbe(self._plain, self._turns.base((), tools), self.text_stop) for tools in (TOOLS, SIMPLE_TOOLS)
        ]
        for probe in probes:
            with suppress(RenderError):
                probe.probe(reply(calls=(call_of(0, two_arguments(0)),)), ())
                return probe
        return probes[0]


def _chosen_reader(
    rendered: str,
    reply_format: str,
    response_template: Mapping[str, Any] | None,
    own_template: Mapping[str, Any] | None,
) -> ResponseTemplate | ReplyFormat | str | None:
    """Return what reads replies: a response template, a format, `PLAIN`, or None for the measured grammar.

    Args:
        rendered: A rendered reply that calls a tool.
        reply_format: The name of the format, or `"auto"` for a registered one that fits.
        response_template: The response template that the user gave.
        own_template: The tokenizer's own response template, which `"auto"` uses.
    """
    if response_template:
        return ResponseTemplate(response_template)
    if response_template is None and reply_format == "auto" and own_template:
        with suppress(ConfigError):  # the installed transformers may not read it; then the grammar is measured
            return ResponseTemplate(own_template)
    name = choose_format(rendered) if reply_format == "auto" else reply_format
    return name if name in (None, PLAIN) else get_format(name)


def without_calls(grammar: Grammar, mask: TextMask) -> Grammar:
    """Return a grammar that reads calls as text, and reasoning between `<think>` tags if it has no tags for it."""
    edges = [edge for edge in grammar.edges if not {edge.source, edge.target} & CALL_FIELDS]
    if not any(edge.target == "reasoning" for edge in edges):
        edges += [Edge("start", "reasoning", "<think>\n"), Edge("reasoning", "text", "\n</think>\n\n")]
    controls = dict.fromkeys(name for edge in edges for name, _ in mask.controls(edge.constant))
    return Grammar(tuple(edges), controls=tuple(controls))
