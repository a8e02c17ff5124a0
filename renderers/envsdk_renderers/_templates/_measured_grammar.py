"""The measured reply grammar of a bound chat template, with its proof."""

import json
from collections.abc import Sequence
from functools import cached_property

from pydantic import TypeAdapter

from envsdk.errors import RenderError
from envsdk.messages import ToolSchema

from .._grammars._grammar import Grammar
from .._grammars._measuring import Renderings, Thought, measure
from .._grammars._probes import SIMPLE_TOOLS, TOOLS, call_of, reply, two_arguments
from .._grammars._proof import ReadingVerdict, prove
from ._base import Base, Stop
from ._bound_template import BoundTemplate
from ._reply import ReplyProbe
from ._turns import TemplateTurns

_GRAMMAR = TypeAdapter(Grammar)
_VERDICT = TypeAdapter(ReadingVerdict)


class MeasuredGrammar:
    """The reply grammar of one template, and what can be relied on when replies are read by it.

    Args:
        template: The template.
        turns: Measures its turns.
        plain: The fixed base without tools.
        text_stop: How a turn with text ends.
        stops: The tokens that end a reply; no constant of the grammar contains one.
    """

    def __init__(
        self, template: BoundTemplate, turns: TemplateTurns, plain: Base, text_stop: Stop, stops: Sequence[str]
    ) -> None:
        self._template = template
        self._turns = turns
        self._plain = plain
        self._text_stop = text_stop
        self._stops = stops

    @property
    def grammar(self) -> Grammar:
        """The grammar; it has no calls if the template writes none, or none that can be measured."""
        return self._turns.measured(f"grammar {json.dumps(self._stops)}", _GRAMMAR, self._measure)

    @property
    def verdict(self) -> ReadingVerdict:
        """What can be relied on."""
        name = f"reading {json.dumps(self._stops)}"
        return self._turns.measured(name, _VERDICT, lambda: prove(self.grammar, self._renderings))

    def _measure(self) -> Grammar:
        probe = self._probe
        thought = Thought(*probe.thinking) if probe.thinking else None
        return measure(self._renderings, thought, self._stops)

    @property
    def _renderings(self) -> Renderings:
        return Renderings(self._probe.probe, self._template.dialect.addressed, self._template.mask)

    @cached_property
    def _probe(self) -> ReplyProbe:
        """The probe with tools of several types, or with simple ones if the template refuses those."""
        return next(filter(_writes_calls, map(self._probe_with, (TOOLS, SIMPLE_TOOLS))), self._probe_with(TOOLS))

    def _probe_with(self, tools: Sequence[ToolSchema]) -> ReplyProbe:
        return ReplyProbe(self._plain, self._turns.base((), tools), self._text_stop)


def _writes_calls(probe: ReplyProbe) -> bool:
    try:
        probe.probe(reply(calls=(call_of(0, two_arguments(0)),)), ())
    except RenderError:
        return False
    return True
