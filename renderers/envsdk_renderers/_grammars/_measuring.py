"""Measures the reply grammar of a chat template from renderings of probe messages. Knows no format."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, cast

from envsdk.errors import RenderError
from envsdk.messages import Message

from .._templates._mask import TextMask, has_stem
from ._grammar import CALL_FIELDS, Edge, Field, Grammar, Values
from ._locating import CallForm, FieldSpan, find_form, spans_of, with_counter
from ._patterns import Code, is_mark
from ._probes import (
    HARD_TEXT,
    KEYS,
    REASONING,
    TEXT,
    TYPED,
    UPPER_KEY,
    call_of,
    reply,
    shapes,
    two_arguments,
    typed,
    word,
)
from ._styles import JSON, PYTHON, VERBATIM, Style, written_text

_VALUE_STYLES = (JSON, replace(JSON, comma=",", colon=":"), replace(JSON, escapes="ascii"), PYTHON)


class Renderings(NamedTuple):
    """The functions that render the probes."""

    body: Callable[[Message, Sequence[str]], str]
    """Returns the text of a reply from its opening to its end, which is after the last of the given words; raises a
    `RenderError` if the template does not write it."""
    addressed: Callable[[Sequence[Message]], list[Message]]
    """Adds ids to calls."""
    mask: TextMask
    """Finds control tokens."""


class Thought(NamedTuple):
    """The text before and after reasoning that only a generation prompt shows."""

    opener: str
    closer: str


def measure(renderings: Renderings, thought: Thought | None = None, stops: Collection[str] = ()) -> Grammar:
    """Measure how a template writes replies.

    Args:
        renderings: Renders the probes.
        thought: How reasoning is written, if no reply shows it.
        stops: The tokens that end a reply, which no constant may contain.

    Returns:
        The grammar; it has no calls if they cannot be measured.
    """
    measured = _GrammarProbes(renderings)
    edges = [  # that a model may sample: without the end of the reply, and without a word of a probe
        edge
        for edge in measured.edges
        if not has_stem(edge.constant) and not any(name in stops for name, _ in renderings.mask.controls(edge.constant))
    ]
    if thought and any(_opens_unmarked(edge) for edge in edges):  # only the generation prompt opens it
        edges = [replace(e, constant=thought.opener) if _opens_unmarked(e) else e for e in edges]
    if thought and not any(edge.target == "reasoning" for edge in edges):
        edges += [Edge("start", "reasoning", thought.opener), Edge("reasoning", "text", thought.closer)]
        edges += [
            Edge("reasoning", edge.target, thought.closer + edge.constant)
            for edge in edges
            if edge.source == "start" and edge.target in CALL_FIELDS
        ]
    if any((e.source, e.target) == ("reasoning", "text") and not e.constant.strip() for e in edges):
        edges = [e for e in edges if "reasoning" not in (e.source, e.target)]  # nothing shows where it ends
    edges = [e for e in edges if not (e.source == "text" and e.target in CALL_FIELDS and not e.constant.strip())]
    values = measured.values
    form = measured.form if values is not None and any(e.target in CALL_FIELDS for e in edges) else None
    edges = edges if form else [e for e in edges if not {e.source, e.target} & CALL_FIELDS]
    if form:
        edges += _derived(edges, form, renderings.mask)
    edges = list(dict.fromkeys(edges))
    style = measured.style if form else JSON
    constants = [edge.constant for edge in edges] + [item.before for item in values or ()]
    constants += [*style.quotes, *style.key_quotes] + [quote for v in values or () for quote in v.style.quotes]
    controls = dict.fromkeys(name for text in constants for name, _ in renderings.mask.controls(text))
    if form is None:
        return Grammar(tuple(edges), controls=tuple(controls))
    return Grammar(
        tuple(edges),
        call=form.call,
        controls=tuple(controls),
        layout=form.layout,
        name_path=form.name_path,
        arguments_path=form.arguments_path,
        id_path=form.id_path,
        style=style,
        values=values or (),
        name_in_id=form.name_in_id,
        first_id=form.first_id,
        quoted=measured.quoted,
        wrapper=measured.wrapper if "key" in form.call else ("", ""),
    )


class _GrammarProbes:
    """The renderings of one template's probes, and the facts that they show."""

    def __init__(self, renderings: Renderings) -> None:
        self._renderings = renderings
        self._texts: dict[str, tuple[Message, str | None]] = {}

    def _text(self, message: Message) -> tuple[Message, str | None]:
        """Return a probe with ids, and its rendering; None if the template does not write it."""
        (addressed,) = self._renderings.addressed([message])
        key = repr(addressed)
        if key not in self._texts:
            try:
                self._texts[key] = addressed, self._renderings.body(addressed, [*words_of(addressed)])
            except RenderError:
                self._texts[key] = addressed, None
        return self._texts[key]

    @cached_property
    def form(self) -> CallForm | None:
        """The format of a call."""
        for text in ("", TEXT):
            message, rendered = self._text(reply(text, calls=(call_of(0, two_arguments(0)),)))
            form = None if rendered is None else find_form(rendered, message.tool_calls[0])
            if form is not None:
                several = reply(text, calls=(call_of(0, two_arguments(0)), call_of(1, two_arguments(1))))
                message, rendered = self._text(several)
                return with_counter(form, rendered, message.tool_calls) if rendered else form
        return None

    # Constants.

    @cached_property
    def edges(self) -> list[Edge]:
        """The constants between adjacent fields in all probes."""
        found: dict[Edge, None] = {}
        thoughts = self._thought_openers
        for message in shapes():
            if message.tool_calls and self.form is None:
                continue
            addressed, text = self._text(message)
            spans = None if text is None else self._spans(addressed, text)
            if text is not None and spans is not None:
                edges = list(_edges(text, spans))
                if not any(e.target == "text" and e.constant in thoughts for e in edges):  # text written as reasoning
                    found.update(dict.fromkeys(edges))
        return list(found)

    @property
    def _thought_openers(self) -> set[str]:
        """The text that opens reasoning, if a reply shows it."""
        addressed, text = self._text(reply(TEXT, REASONING))
        spans = None if text is None else self._spans(addressed, text)
        first = next(_edges(text, spans)) if text and spans else None
        return {first.constant} if first and first.target == "reasoning" and first.constant.strip() else set()

    def _spans(self, message: Message, text: str) -> list[FieldSpan] | None:
        """Return the fields of a rendered probe; None if the template drops one of them."""
        spans: list[FieldSpan] = []
        for field, wanted in (("reasoning", message.reasoning), ("text", message.content)):
            if not wanted:
                continue
            if text.count(wanted) != 1:
                return None
            at = text.index(wanted)
            spans.append(FieldSpan("reasoning" if field == "reasoning" else "text", at, at + len(wanted)))
        position = 0
        for call in message.tool_calls:
            found = spans_of(text, position, call, self.form) if self.form else None
            if found is None:
                return None
            spans += self._quoted(text, found)
            position = spans[-1].end
        spans.sort(key=lambda span: span.start)
        return spans if all(a.end <= b.start for a, b in pairwise(spans)) else None

    def _quoted(self, text: str, spans: list[FieldSpan]) -> list[FieldSpan]:
        """Return the spans, in which values include the quotes that their coding writes."""
        quote = len(written_text("", self._string_style)) // 2 if "key" in (self.form.call if self.form else ()) else 0
        return [
            s._replace(start=s.start - quote, end=s.end + quote) if s.field == "value" and quote else s for s in spans
        ]

    # Values.

    @cached_property
    def _string_style(self) -> Style:
        """How a string is written as a value of a pair, or as an argument of a call in Python's syntax."""
        message = reply(calls=(call_of(0, {KEYS["string"]: HARD_TEXT}),))
        _, text = self._text(message)
        for style in (JSON, replace(JSON, escapes="ascii"), PYTHON):
            if text is not None and written_text(HARD_TEXT, style) in text:
                return style
        if self.form and self.form.call == ("python",):
            _, simple = self._text(reply(calls=(call_of(0, two_arguments(0)),)))
            quote = '"' if simple and f'"{two_arguments(0)[KEYS["string"]]}"' in simple else "'"
            return Style(quotes=(quote, quote), escapes="none")
        return VERBATIM

    @cached_property
    def values(self) -> tuple[Values, ...] | None:
        """How values of each JSON type are written as pairs; None if that cannot be measured."""
        if self.form is None:
            return None
        if "python" in self.form.call:
            kinds = [("string", self._string_style), *((kind, self._python_style(kind)) for kind in TYPED)]
            return tuple(Values((kind,), "", style) for kind, style in kinds)
        if "key" not in self.form.call:
            return ()
        return self._pair_values()

    @cached_property
    def quoted(self) -> Style | None:
        """How values of other types are spelled in the quotes of a string, if a notation writes all of them there."""
        style = self.style
        if self.form is None or self.form.call[-1] != "arguments" or style.is_json or style.escapes != "none":
            return None
        for spelled in (JSON, PYTHON):
            texts = [self._text(typed(kind, TYPED[kind]))[1] for kind in ("number", "boolean")]
            values = [written_text(TYPED[kind], spelled).join(style.quotes) for kind in ("number", "boolean")]
            if all(text and value in text for text, value in zip(texts, values, strict=True)):
                return spelled
        return None

    @property
    def wrapper(self) -> tuple[str, str]:
        """What is written around a string that needs it, and not around a usual one."""
        before, after = (
            next((e.constant for e in self.edges if (e.source, e.target) == ends), "")
            for ends in (("key", "value"), ("value", "end"))
        )
        _, text = self._text(reply(calls=(call_of(0, {KEYS["string"]: HARD_TEXT}),)))
        opened, found, closed = (text or "").partition(HARD_TEXT)
        opener = opened.rpartition(KEYS["string"])[2]
        if not (found and self._string_style == VERBATIM and before and after):
            return "", ""
        is_wrapped = opener.startswith(before) and closed.endswith(after)
        around = opener.removeprefix(before), closed.removesuffix(after)
        return around if is_wrapped and all(part.strip() for part in around) else ("", "")

    def _pair_values(self) -> tuple[Values, ...] | None:
        before = next((e.constant for e in self.edges if (e.source, e.target) == ("key", "value")), None)
        after = next((e.constant for e in self.edges if (e.source, e.target) == ("value", "key")), None)
        if before is None or after is None:
            return None
        found = [Values(("string",), before, self._string_style)]
        for kind, value in TYPED.items():
            _, text = self._text(typed(kind, value))
            values = None if text is None else _typed_values(text, kind, value, after)
            found += [values] if values else []
        return tuple(found)

    def _python_style(self, kind: str) -> Style:
        _, text = self._text(typed(kind, TYPED[kind]))
        for style in (PYTHON, JSON):
            if text is not None and f"{KEYS[kind]}={written_text(TYPED[kind], style)}" in text:
                return style
        return PYTHON

    @cached_property
    def style(self) -> Style:
        """How the arguments are written, with the spelling of words and the order of keys."""
        if self.form is None:
            return JSON
        style, call = self.form.style, self.form.call
        if call[-1] in ("arguments", "object") and not style.is_json and style.escapes == "none":
            return self._notationwords_of(style)
        return self._folded(style)

    def _folded(self, style: Style) -> Style:
        """Distinguish whether sorting regards the case of letters."""
        if style.order == "given":
            return style
        message = reply(
            calls=(call_of(0, {KEYS["string"]: word(0, 0), UPPER_KEY: word(0, 1), KEYS["second"]: word(0, 2)}),)
        )
        _, text = self._text(message)
        is_folded = text is not None and text.find(UPPER_KEY) > text.find(KEYS["second"])
        return replace(style, order="folded" if is_folded else "sorted")

    def _notationwords_of(self, style: Style) -> Style:
        words: list[str] = []
        for value, spellings in ((True, ("true", "True")), (False, ("false", "False")), (None, ("null", "None"))):
            _, text = self._text(reply(calls=(call_of(0, {KEYS["string"]: word(0, 0), KEYS["second"]: value}),)))
            end = [f"{style.key_quotes[1]}{style.colon}{word}" for word in spellings]
            found = next((w for w, e in zip(spellings, end, strict=True) if text and KEYS["second"] + e in text), None)
            words.append(found or spellings[0])
        return self._folded(replace(style, words=(words[0], words[1], words[2])))


def _opens_unmarked(edge: Edge) -> bool:
    return (edge.source, edge.target) == ("start", "reasoning") and not edge.constant.strip()


def words_of(message: Message) -> Iterator[str]:
    """Yield the words of a probe after the last of which its reply ends."""
    yield from filter(None, (message.content, message.reasoning))
    for call in message.tool_calls:
        arguments = cast("dict[str, Any]", call.arguments)
        yield from (value for value in arguments.values() if value and isinstance(value, str))


def _edges(text: str, spans: Sequence[FieldSpan]) -> Iterator[Edge]:
    position, source = 0, cast("Field", "start")
    for span in [*spans, FieldSpan("end", len(text), len(text))]:
        yield Edge(source, span.field, text[position : span.start])
        position, source = span.end, span.field


def _typed_values(text: str, kind: str, value: Any, after: str) -> Values | None:
    """Return how a value is written that `after` follows; None if it is dropped, or written in no known way."""
    _, found, rest = text.partition(KEYS[kind])
    for style in _VALUE_STYLES if found else ():
        written = written_text(value, style)
        at = rest.find(written)
        while at >= 0:
            if rest.startswith(after, at + len(written)):
                return Values((kind,), rest[:at], style)
            at = rest.find(written, at + 1)
    return None


def _derived(edges: Sequence[Edge], form: CallForm, mask: TextMask) -> Iterator[Edge]:
    """Yield what a model may write although no probe shows it: text or reasoning before a call, calls after calls."""
    known = {(edge.source, edge.target): edge.constant for edge in reversed(edges)}
    first = form.call[0]
    code = Code([name for edge in edges for name, _ in mask.controls(edge.constant)])
    opening = known.get(("start", first), known.get(("text", first)))
    if opening is None or not is_mark(code.constant(opening.strip())):
        return
    closer = known.get(("reasoning", "text"))
    if closer is None and known.get(("reasoning", first), "").endswith(opening):
        closer = known["reasoning", first].removesuffix(opening)
        yield Edge("reasoning", "text", closer + known.get(("start", "text"), ""), is_written=False)
    if ("text", first) not in known:
        yield Edge("text", first, opening, is_written=False)
    if ("start", first) not in known:
        yield Edge("start", first, opening, is_written=False)
    if ("reasoning", first) not in known and closer is not None:
        yield Edge("reasoning", first, closer + opening, is_written=False)
