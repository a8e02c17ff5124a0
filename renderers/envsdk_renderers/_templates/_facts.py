"""The facts about one template with one vocabulary: measured once, and the same for all renderers and episodes."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter

from envsdk.errors import RenderError, TemplateUnsupported
from envsdk.messages import Message

from .._grammars._grammar import Grammar
from .._grammars._measuring import Renderings, Thought, measure
from .._grammars._probes import SIMPLE_TOOLS, TOOLS, call_of, reply, two_arguments
from .._grammars._proof import ReadingVerdict, prove
from ._reply import ReplyProbe
from ._reply_formats import ReplyWriter, TemplateReplyReader
from ._sentinels import PROBE_TOOL
from ._turns import TemplateTurns
from ._writer import Writer

_GRAMMAR = TypeAdapter(Grammar)
_VERDICT = TypeAdapter(ReadingVerdict)
_TAGS = TypeAdapter(tuple[str, str] | None)


class TemplateFacts:
    """The measured facts about a template.

    Args:
        turns: Measures its turns.
        ends: The tokens that are known to end a turn.
        reply_format: The name of the format of replies, or `"auto"`; see `FixedBase`.
        response_template: The response template that the user gave.
        own_template: The tokenizer's own response template, which `"auto"` uses.

    Attributes:
        generation_prompt: The scaffold after which a model samples a reply, as after a plain user message.
        opening: The scaffold that begins every reply.
        blocks: The control tokens that open a block inside a reply, with what closes it; reasoning comes first.
        text_stop: How a turn with text ends.
        call_stop: How a turn with calls ends; None if the template has no calls.
        stop_tokens: The tokens that end a turn.
        unconfirmed_stops: Those of them that no file of the tokenizer specifies.
        openers: Those of them that open the next message.
        written_ends: Those of them that the template writes.
        reader: Reads replies.
        writer: Writes rendered text.
        reply_writer: Writes replies.

    Raises:
        TemplateUnsupported: If no token ends a turn with text.
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
        self.call_stop, self.opening, self.blocks = self.probe.call_stop, self.probe.opening, self.probe.blocks
        self.stops = [stop for stop in (self.text_stop, self.call_stop) if stop]
        self.stop_tokens = tuple(dict.fromkeys([*(name for stop in self.stops for name in stop.sampled), *ends]))
        self.unconfirmed_stops = tuple(dict.fromkeys(n for s in self.stops if not s.is_confirmed for n in s.sampled))
        self.openers = frozenset(n for s in self.stops if not (s.written or s.is_unwritten) for n in s.sampled)
        self.written_ends = frozenset(name for stop in self.stops if stop.written for name in stop.sampled)
        self.reader = TemplateReplyReader(
            self.probe,
            self._mask,
            reply_format=reply_format,
            response_template=response_template,
            own_template=own_template,
            known=[*self.stop_tokens, *self.blocks],
            grammar=lambda: self.grammar,
        )
        grammar = self.grammar if self.reader.is_measured else None
        self.writer = Writer(self._mask)
        self.reply_writer = ReplyWriter(self.probe, self.writer, plain.generation_prompt, grammar)

    @property
    def grammar(self) -> Grammar:
        """The grammar of replies; it has no calls if the template writes none, or none that can be measured."""

        def measured() -> Grammar:
            thinking = self._grammar_probe.thinking
            return measure(self._renderings, Thought(*thinking) if thinking else None, self.stop_tokens)

        return self._turns.measured(f"grammar {json.dumps(self.stop_tokens)}", _GRAMMAR, measured)

    @property
    def reading(self) -> ReadingVerdict:
        """What can be relied on when replies are read by the grammar."""
        name = f"reading {json.dumps(self.stop_tokens)}"
        return self._turns.measured(name, _VERDICT, lambda: prove(self.grammar, self._renderings))

    @property
    def _renderings(self) -> Renderings:
        return Renderings(self._grammar_probe.probe, self._turns.template.dialect.addressed, self._mask)

    @cached_property
    def _grammar_probe(self) -> ReplyProbe:
        """The probe with tools of several types, or with simple ones if the template refuses those."""
        probes = [
            ReplyProbe(self._plain, self._turns.base((), tools), self.text_stop) for tools in (TOOLS, SIMPLE_TOOLS)
        ]
        for probe in probes:
            try:
                probe.probe(reply(calls=(call_of(0, two_arguments(0)),)), ())
            except RenderError:
                continue
            return probe
        return probes[0]

    @property
    def reasoning_in_content(self) -> tuple[str, str] | None:
        """The tags between which the template reads reasoning in the content; measured when it is needed."""
        return self._turns.measured("reasoning in content", _TAGS, self.probe.tags_in_content)

    @cached_property
    def reasoning_closer(self) -> str:
        """What closes a block of reasoning that several tokens open; empty if the end of a turn does (Harmony)."""
        if not self.reader.is_measured or self.probe.thinking is None:
            return ""
        closer, stop = self.grammar.written.get(("reasoning", "text"), ""), self.text_stop.written
        return "" if stop and closer.lstrip().startswith(stop) else closer

    def stop_of(self, reply: Message) -> str:
        """Return what the template writes at the end of a turn; empty if that is the next message's opener."""
        return ((self.call_stop if reply.tool_calls else None) or self.text_stop).written
