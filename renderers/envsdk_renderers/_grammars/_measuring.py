"""Measures the reply grammar of a chat template from renderings of probe messages. Knows no format."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, cast

from envsdk.errors import RenderError
from envsdk.messages import Message

from .._templates._mask import TextMask, has_stem
from ._grammar import CALL_FIELDS, Edge, Field, Grammar, Values
from ._locating import FieldSpan, find_form, spans_of, with_counter
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
    if thought:  # only the generation prompt opens it
        unmarked = [e for e in edges if (e.source, e.target) == ("start", "reasoning") and not e.constant.strip()]
        edges = [replace(e, constant=thought.opener) if e in unmarked else e for e in edges]
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
    form, values, style = measured.form, measured.values, measured.style
    if form is None or values is None or not any(e.target in CALL_FIELDS for e in edges):
        form, values, style = None, (), JSON
        edges = [e for e in edges if not {e.source, e.target} & CALL_FIELDS]
    else:
        edges += _derived(edges, form, renderings.mask)
    edges = list(dict.fromkeys(edges))
    constants = [edge.constant for edge in edges] + [item.before for item in values]
    constants += [*style.quotes, *style.key_quotes] + [quote for v in values for quote in v.style.quotes]
    controls = tuple(dict.fromkeys(name for text in constants for name, _ in renderings.mask.controls(text)))
    if form is None:
        return Grammar(tuple(edges), controls=controls)
    wrapper = measured.wrapper if "key" in form.call else ("", "")
    return replace(
        form,
        edges=tuple(edges),
        controls=controls,
        style=style,
        values=values,
        quoted=measured.quoted,
        wrapper=wrapper,
    )


@dataclass(eq=False, repr=False)
class _GrammarProbes:
    """The renderings of one template's probes, and the facts that they show."""

    _renderings: Renderings
    _texts: dict[str, tuple[Message, str | None]] = field(default_factory=dict[str, tuple[Message, str | None]])

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
    def form(self) -> Grammar | None:
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
        opener = next(iter(self._edges_of(reply(TEXT, REASONING))), Edge("start", "end", ""))
        found: dict[Edge, None] = {}
        for message in shapes():
            if message.tool_calls and self.form is None:
                continue
            edges = self._edges_of(message)
            is_reasoning = opener.target == "reasoning" and opener.constant.strip()
            if is_reasoning and any(e.target == "text" and e.constant == opener.constant for e in edges):
                continue  # text is written as reasoning
            found.update(dict.fromkeys(edges))
        return list(found)

    def _edges_of(self, message: Message) -> list[Edge]:
        """Return the constants in a rendered probe; none if the template drops a field."""
        addressed, text = self._text(message)
        spans = None if text is None else self._spans(addressed, text)
        if text is None or spans is None:
            return []
        spans = [FieldSpan("start", 0, 0), *spans, FieldSpan("end", len(text), len(text))]
        return [Edge(a.field, b.field, text[a.end : b.start]) for a, b in pairwise(spans)]

    def _spans(self, message: Message, text: str) -> list[FieldSpan] | None:
        """Return the fields of a rendered probe; None if the template drops one of them."""
        spans: list[FieldSpan] = []
        parts: list[tuple[Field, str | None]] = [("reasoning", message.reasoning), ("text", message.content)]
        for part, wanted in parts:
            if wanted and text.count(wanted) != 1:
                return None
            if wanted:
                at = text.index(wanted)
                spans.append(FieldSpan(part, at, at + len(wanted)))
        has_pairs = self.form is not None and "key" in self.form.call
        quote = len(written_text("", self._string_style)) // 2 if has_pairs else 0  # values include their quotes
        position = 0
        for call in message.tool_calls:
            found = spans_of(text, position, call, self.form) if self.form else None
            if found is None:
                return None
            spans += [s._replace(start=s.start - quote, end=s.end + quote) if s.field == "value" else s for s in found]
            position = spans[-1].end
        spans.sort(key=lambda span: span.start)
        return spans if all(a.end <= b.start for a, b in pairwise(spans)) else None

    # Values.

    @cached_property
    def _string_style(self) -> Style:
        """The spelling of a string that is the value of a pair, or an argument of a call in Python's syntax."""
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
        """The format of values of each JSON type in pairs; None if it cannot be measured."""
        if self.form is None:
            return None
        is_python, texts = "python" in self.form.call, {kind: self._text(typed(kind, TYPED[kind]))[1] for kind in TYPED}
        if not is_python and "key" not in self.form.call:
            return ()
        before, after = self._constant("key", "value"), self._constant("value", "key")
        if is_python:
            found = [Values(("string",), "", self._string_style)]
        elif before is None or after is None:
            return None
        else:
            found = [Values(("string",), before, self._string_style)]
        for kind, value in TYPED.items():
            text = texts[kind] or ""
            if is_python:
                styles = (s for s in (PYTHON, JSON) if f"{KEYS[kind]}={written_text(value, s)}" in text)
                found.append(Values((kind,), "", next(styles, PYTHON)))
            else:
                typed_values = _typed_values(text, kind, value, after or "")
                found += [typed_values] if typed_values else []
        return tuple(found)

    def _constant(self, source: Field, target: Field) -> str | None:
        return next((e.constant for e in self.edges if (e.source, e.target) == (source, target)), None)

    @property
    def quoted(self) -> Style | None:
        """The spelling of other types in the quotes of a string, if a notation writes all values there."""
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
        """The text around a string that needs it, and not around a usual one."""
        before, after = self._constant("key", "value") or "", self._constant("value", "end") or ""
        _, text = self._text(reply(calls=(call_of(0, {KEYS["string"]: HARD_TEXT}),)))
        opened, found, closed = (text or "").partition(HARD_TEXT)
        opener = opened.rpartition(KEYS["string"])[2]
        if not (found and self._string_style == VERBATIM and before and after):
            return "", ""
        is_wrapped = opener.startswith(before) and closed.endswith(after)
        around = opener.removeprefix(before), closed.removesuffix(after)
        return around if is_wrapped and all(part.strip() for part in around) else ("", "")

    @cached_property
    def style(self) -> Style:
        """The spelling of the arguments, with that of words and the order of keys."""
        style = self.form.style if self.form else JSON
        call = self.form.call if self.form else ()
        if call[-1:] in (("arguments",), ("object",)) and not style.is_json and style.escapes == "none":
            words: list[str] = []
            for value, spellings in ((True, ("true", "True")), (False, ("false", "False")), (None, ("null", "None"))):
                _, text = self._text(reply(calls=(call_of(0, {KEYS["string"]: word(0, 0), KEYS["second"]: value}),)))
                before = f"{KEYS['second']}{style.key_quotes[1]}{style.colon}"
                words.append(next((w for w in spellings if text and before + w in text), spellings[0]))
            style = replace(style, words=(words[0], words[1], words[2]))
        if style.order == "given":
            return style
        arguments = {KEYS["string"]: word(0, 0), UPPER_KEY: word(0, 1), KEYS["second"]: word(0, 2)}
        _, text = self._text(reply(calls=(call_of(0, arguments),)))
        is_folded = text is not None and text.find(UPPER_KEY) > text.find(KEYS["second"])
        return replace(style, order="folded" if is_folded else "sorted")


def words_of(message: Message) -> Iterator[str]:
    """Yield the words of a probe after the last of which its reply ends."""
    yield from filter(None, (message.content, message.reasoning))
    for call in message.tool_calls:
        arguments = cast("dict[str, Any]", call.arguments)
        yield from (value for value in arguments.values() if value and isinstance(value, str))


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


def _derived(edges: Sequence[Edge], form: Grammar, mask: TextMask) -> Iterator[Edge]:
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
