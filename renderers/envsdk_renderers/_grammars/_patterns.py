"""The patterns with which a grammar's constants are found in a reply, in time linear in its length.

A reply is read as a *coded* text, in which each control token is one character that no text contains: half of a
surrogate pair, since replies are decoded from UTF-8. So text that spells a control token never matches it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise, takewhile
from typing import Any

from envsdk.rendering.reading import Segment

from ._grammar import CALL_FIELDS, Edge, Field, Grammar, tags
from ._source import SPACE, SPACES, WORD_REST, Alternative, Part, Pattern, Source, shared_start
from ._styles import CONTROL, PYTHON_WORDS, Style, parse_value

DELIMITED: frozenset[Field] = frozenset({"arguments", "object", "python"})
"""The fields that show themselves where they end; every other field ends where a constant is found."""
_TAG = re.compile(r"</?[^<>\s]+>|\[/?[^\[\]\s]+\]|[\ud800-\udfff]")
_SHORTEST_MARK = 3
_WORD_END, _WORD_START = re.compile(r"\w\Z"), re.compile(r"\w")


class Code:
    """Codes texts: control tokens become single characters."""

    def __init__(self, controls: Sequence[str]) -> None:
        self._characters = {name: chr(0xD800 + index) for index, name in enumerate(controls)}
        self._names = {character: name for name, character in self._characters.items()}
        ordered = sorted(controls, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, ordered)) or "(?!)")

    def constant(self, text: str) -> str:
        """Code a constant, in which the name of a control token is that token."""
        return self._control.sub(lambda found: self._characters[found[0]], text)

    def segments(self, segments: Iterable[Segment]) -> str:
        """Code a reply that is cut at its control tokens; a token that is not in the grammar is text."""
        return "".join([self._characters.get(s.control, s.control) + s.text for s in segments])

    def cut(self, coded: str) -> list[Segment]:
        """Cut a coded text at its control tokens."""
        first, *parts = re.split(f"({CONTROL.pattern})", coded)
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return [Segment("", first), *(Segment(self._names[control], text) for control, text in pairs)]

    def plain(self, coded: str) -> str:
        """Return a coded text with its control tokens by their names."""
        return coded if coded.isascii() else CONTROL.sub(lambda found: self._names.get(found[0], "\ufffd"), coded)


@dataclass(frozen=True)
class Constant:
    """A coded constant: whitespace around what is searched."""

    edge: Edge
    lead: str
    core: str
    tail: str

    @cached_property
    def target(self) -> Field:
        """The field after it."""
        return self.edge.target

    def strip_before(self, text: str) -> str:
        """Return the text before the constant without the whitespace that belongs to the constant."""
        if text.endswith(self.lead):  # mostly
            return text[: len(text) - len(self.lead)]
        return text[: len(text) - shared_start(text[::-1], self.lead[::-1])]


def constant_of(edge: Edge, code: Code) -> Constant:
    """Cut the whitespace off a constant; if it is nothing else, it is what is searched."""
    text = code.constant(edge.constant)
    core = text.strip()
    if not core:
        return Constant(edge, "", text, "")
    start = text.index(core)
    return Constant(edge, text[:start], core, text[start + len(core) :])


def parts_of(core: str) -> list[Part]:
    """Return the parts of the pattern of what is searched, in which whitespace may differ."""
    if not core.strip():
        return [*map(re.escape, core)]
    words = _words(core)
    parts: list[Part] = [*map(re.escape, words[0])]
    for before, after in pairwise(words):
        needs_space = _WORD_END.search(before) and _WORD_START.match(after)
        parts += [SPACE if needs_space else SPACES, *map(re.escape, after)]
    return parts


def _words(core: str) -> list[str]:
    """Cut a constant at its whitespace and around its tags."""
    return [token for word in core.split() for token in _around_tags(word)]


def _around_tags(text: str) -> Iterator[str]:
    """Cut a text before and after its tags and control tokens, where whitespace may be."""
    start = 0
    for tag in _TAG.finditer(text):
        yield from filter(None, (text[start : tag.start()], tag[0]))
        start = tag.end()
    yield from filter(None, (text[start:],))


@lru_cache(256)
def pattern_of(core: str) -> str:
    """Return the regular expression of what is searched."""
    return Alternative(parts_of(core)).pattern


class Patterns:
    """The patterns of one grammar.

    Attributes:
        code: Codes texts.
        closer: Matches what closes a call, after which a broken call ends.
        opener: Matches what opens a call. Where a text contains it and no call follows, a call is broken.
        call_tags: The coded tags around each call, if every call has a pair of its own.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.code = Code(grammar.controls)
        self.constants = [constant_of(edge, self.code) for edge in grammar.edges]
        openers, closers = _longest_first(self._openers), _longest_first(self.closers)
        self.opener = Pattern(map(_verbatim, openers))
        self.closer = Pattern(map(_verbatim, closers))
        self.broken_end = Pattern(map(_verbatim, [*openers, *closers]))
        self.has_control_closers = any(map(CONTROL.search, closers))
        self._opener_count = len(openers)
        opener, closer = map(self.code.constant, grammar.call_tags or ("", ""))
        self.call_tags = (opener, closer) if opener else None
        self._alternatives: dict[Field, tuple[Pattern, list[Constant]]] = {}
        self._or_control: dict[Field, Pattern] = {}

    def is_opener(self, found: re.Match[str]) -> bool:
        """Return whether `broken_end` found what opens a call; else it found what closes one."""
        return (found.lastindex or 1) <= self._opener_count

    def after(self, source: Field) -> tuple[Pattern, list[Constant]]:
        """Return a pattern of what may follow a field, with one group for each constant; the longest come first."""
        found = self._alternatives.get(source)
        if found is None:
            constants = [c for c in self.constants if c.edge.source == source and self._is_usable(c)]
            constants += [end for end in self._call_ends if end.edge.source == source]
            constants.sort(key=lambda c: (-len(c.core), c.target in ("text", "end")))
            found = self._alternatives[source] = Pattern(map(self._alternative, constants)), constants
        return found

    def after_or_control(self, source: Field) -> tuple[Pattern, list[Constant]]:
        """Return the same, with one more group for a control token, which ends every field."""
        _, constants = self.after(source)
        if source not in self._or_control:
            self._or_control[source] = Pattern([*map(self._alternative, constants), _CONTROL])
        return self._or_control[source], constants

    def at_start(self, source: Source, position: int) -> tuple[Constant | None, int]:
        """Return the constant that begins a reply, with its end; None if it is a text without one."""
        pattern, constants = self.after("start")
        found = source.match(pattern, position)
        constant = constants[(found.lastindex or 1) - 1] if found else None
        if found is None or constant is None or constant.target == "end":
            return None, position
        is_marked = bool(constant.core.strip() or self.grammar.written.get(("start", "text"), "").strip())
        if constant.target in ("text", "reasoning") and not (is_marked or found[0]):
            return None, position  # what is not marked is a text
        if constant.target != "reasoning" and found[0] != constant.core:
            return self._empty_reasoning(found) or (constant, found.end())
        return constant, found.end()

    def _empty_reasoning(self, found: re.Match[str]) -> tuple[Constant, int] | None:
        """Return what opens reasoning that is empty, with its end, if other whitespace makes it a constant."""
        opened = self._reasoning_opener.complete.match(found[0])
        if opened is None or self.reasoning_closer.complete.search(found[0], opened.end()) is None:
            return None
        return self._reasoning_openers[(opened.lastindex or 1) - 1], found.start() + opened.end()

    def text_at_start(self, source: Source, position: int) -> tuple[Constant | None, int]:
        """Return the constant between the start and a text, if it is there and not blank, with its end."""
        pattern, constants = self._text_openers
        found = source.match(pattern, position)
        return (None, position) if found is None else (constants[(found.lastindex or 1) - 1], found.end())

    @cached_property
    def _text_openers(self) -> tuple[Pattern, list[Constant]]:
        ends = ("start", "text")
        found = [c for c in self.constants if (c.edge.source, c.target) == ends and c.core.strip()]
        return Pattern(map(_of_core, found)), found

    @cached_property
    def reasoning_closer(self) -> Pattern:
        """Matches what closes reasoning."""
        return Pattern(map(_of_core, self._reasoning_closers))

    def closes_reasoning(self, coded: str, position: int) -> tuple[re.Match[str], Constant] | None:
        """Return what closes reasoning at a position, before a text; None if nothing does."""
        found = self.reasoning_closer.complete.match(coded, position)
        return None if found is None else (found, self._reasoning_closers[(found.lastindex or 1) - 1])

    @cached_property
    def opens_reasoning(self) -> bool:
        """Whether something opens reasoning, so that a blank text before it is dropped."""
        return bool(self._reasoning_openers)

    @cached_property
    def _reasoning_closers(self) -> list[Constant]:
        found = [c for c in self.constants if (c.edge.source, c.target) == ("reasoning", "text") and c.core.strip()]
        return sorted(found, key=lambda c: -len(c.core))

    @cached_property
    def _reasoning_openers(self) -> list[Constant]:
        found = [c for c in self.constants if (c.edge.source, c.target) == ("start", "reasoning") and c.core.strip()]
        return sorted(found, key=lambda c: -len(c.core))

    @cached_property
    def _reasoning_opener(self) -> Pattern:
        return Pattern(map(_of_core, self._reasoning_openers))

    def held_back(self, field: Field, text: str) -> int:
        """Return how many characters at the end of a text that goes on may belong to a constant after it."""
        length = min(self._longest_lead(field), len(text))
        return next((n for n in range(length, 0, -1) if any(text[-n:] in lead for lead in self._leads[field])), 0)

    @cached_property
    def _call_ends(self) -> list[Constant]:
        """What closes one of several calls, before what closes all of them or opens the next one."""
        fields = filter(self._is_closed, self.grammar.last_fields)
        return [constant for field in fields if (constant := self._call_end(field)) is not None]

    def _call_end(self, field: Field) -> Constant | None:
        """Return the tags with which every constant begins that ends a call after a field; None if one has no more."""
        constants = [constant for constant in self.constants if constant.edge.source == field]
        ends = [constant for constant in constants if constant.target not in self.grammar.call[1:]]
        words = [_words(constant.core) for constant in ends]
        shared = [same[0] for same in takewhile(lambda same: len({*same}) == 1, zip(*words, strict=False))]
        while shared and not _TAG.fullmatch(shared[-1]):
            shared.pop()
        others = (_words(constant.core)[: len(shared)] for constant in constants if constant not in ends)
        is_whole = any(len(each) == len(shared) for each in words)
        if not shared or is_whole or shared in others or len({constant.lead for constant in ends}) > 1:
            return None
        core = "".join(shared)
        return Constant(Edge(field, "end", core, is_written=False), ends[0].lead, core, "")

    def closes_one(self, constant: Constant) -> bool:
        """Return whether a constant closes one call, but not all calls of a reply as the template does."""
        return constant in self._call_ends

    @cached_property
    def ends_of_calls(self) -> re.Pattern[str]:
        """Matches a character with which a call may end or become broken."""
        cores = [c.core for c in self.constants if c.edge.source in self.grammar.last_fields]
        cores += [constant.core for constant in self._call_ends]
        marks = {core[-1] for core in [*cores, *self._openers, *self.closers] if core}
        marks |= {*"}])"} if DELIMITED & {*self.grammar.call} else set[str]()
        return re.compile(f"[{''.join(map(re.escape, sorted(marks)))}\ud800-\udfff]")

    def _longest_lead(self, field: Field) -> int:
        return max(map(len, self._leads[field]), default=0)

    @cached_property
    def _leads(self) -> Mapping[Field, Sequence[str]]:
        """The whitespace that may belong to a constant after reasoning or a text."""
        closers = {constant.lead for constant in self._reasoning_closers}
        leads: dict[Field, set[str]] = {"reasoning": {*closers}, "text": {*closers, self.text_end}}
        for constant in self.constants:
            if constant.edge.source in leads:
                leads[constant.edge.source].add(constant.lead)
        return {field: [*filter(None, found)] for field, found in leads.items()}

    @cached_property
    def text_start(self) -> str:
        """The whitespace before a text that begins a reply."""
        return self._blank("start", "text")

    @cached_property
    def text_end(self) -> str:
        """The whitespace after a text that ends a reply."""
        return self._blank("text", "end")

    def _blank(self, source: Field, target: Field) -> str:
        constant = self.grammar.written.get((source, target), "")
        return "" if constant.strip() else constant

    @cached_property
    def finds_calls_in_text(self) -> bool:
        """Whether calls are found after a text, and not only at the start of a reply."""
        return any(c.edge.source == "text" and c.target in CALL_FIELDS and c.core.strip() for c in self.constants)

    @cached_property
    def writes_text_last(self) -> bool:
        """Whether the template writes text after calls."""
        return any(e.is_written and e.source in CALL_FIELDS and e.target == "text" for e in self.grammar.edges)

    @cached_property
    def in_text(self) -> Pattern:
        """Matches what may come in or after a text, whether it is in place or not; see `kind_in_text`."""
        return Pattern(alternative for alternative, _, _ in self._kinds_in_text)

    def kind_in_text(self, found: re.Match[str]) -> tuple[str, Constant | None]:
        """Return what `in_text` found, with its constant.

        It is the `end` of a reply, a `call`, something that opens `reasoning`, the `closer` of reasoning, the `opener`
        of a broken call, or a `stray` control token.
        """
        _, kind, constant = self._kinds_in_text[(found.lastindex or 1) - 1]
        return kind, constant

    @cached_property
    def _kinds_in_text(self) -> list[tuple[Alternative, str, Constant | None]]:
        constants = [c for c in self.constants if c.edge.source == "text" and self._is_usable(c) and c.core.strip()]
        constants.sort(key=lambda c: -len(c.core))
        kinds: list[tuple[Alternative, str, Constant | None]]
        kinds = [(self._alternative(c), "end" if c.target == "end" else "call", c) for c in constants]
        kinds += [(_of_core(c), "closer", c) for c in self._reasoning_closers]
        kinds += [(_of_core(c), "reasoning", c) for c in self._reasoning_openers]
        kinds += [(_verbatim(opener), "opener", None) for opener in _longest_first(self._openers)]
        return [*kinds, (_CONTROL, "stray", None)]

    @cached_property
    def before_values(self) -> tuple[Pattern, list[Constant], list[tuple[str, ...]]]:
        """A pattern of what may follow a key, with the JSON types of the value after each; or a control token."""
        types: dict[str, tuple[str, ...]] = {}
        for values in self.grammar.values:
            types[values.before] = (*types.get(values.before, ()), *values.types)
        found = [constant_of(Edge("key", "value", before), self.code) for before in types]
        found.sort(key=lambda constant: -len(constant.core))
        pattern = Pattern([*map(_of_core, found), _CONTROL])
        return pattern, found, [types[constant.edge.constant] for constant in found]

    @cached_property
    def ends_itself(self) -> bool:
        """Whether a reply may end right after the last field of a call."""
        return not all(map(self._is_closed, self.grammar.call[-1:]))

    def _is_closed(self, field: Field) -> bool:
        """Return whether something has to follow the last field of a call."""
        return all(c.core for c in self.constants if c.edge.source == field and c.target == "end")

    @cached_property
    def style(self) -> Style:
        """The style of arguments, with coded quotes."""
        code, style = self.code.constant, self.grammar.style
        quotes, keys = tuple(map(code, style.quotes)), tuple(map(code, style.key_quotes))
        return replace(style, quotes=quotes, key_quotes=keys)

    @cached_property
    def wrapper(self) -> tuple[str, str]:
        """What may be around a string value, coded."""
        opener, closer = map(self.code.constant, self.grammar.wrapper)
        return opener, closer

    @cached_property
    def has_quoted_values(self) -> bool:
        """Whether the strings among the values of a call are quoted as in JSON."""
        styles = [values.style for values in self.grammar.values if "string" in values.types]
        return "key" in self.grammar.call and bool(styles) and styles[0].is_json

    @cached_property
    def parse_exactly(self) -> Callable[[str], Any]:
        """A function that reads a value as JSON, and in Python's spelling only if the grammar writes that."""
        styles = [(values.types, values.style) for values in self.grammar.values]
        has_words = any("True" in style.words for types, style in styles if {"boolean", "null"} & {*types})
        has_brackets = any(style.escapes == "python" for types, style in styles if {"array", "object"} & {*types})
        return partial(parse_value, words=PYTHON_WORDS if has_words else {}, reads_python=has_brackets)

    def _is_usable(self, constant: Constant) -> bool:
        is_found = bool(constant.core) or constant.edge.source in DELIMITED or constant.target in DELIMITED
        return is_found or constant.edge.source == "start"

    def _alternative(self, constant: Constant) -> Alternative:
        is_blank = constant.edge.source in DELIMITED and not constant.core.strip()
        parts = [] if is_blank else parts_of(constant.core)  # whitespace after such a field is skipped
        match constant.target:
            case "end" if self.ends_a_field_only_last(constant):
                return Alternative(parts, is_last=True)
            case "end":
                return Alternative(parts, is_last=not (constant.edge.source in CALL_FIELDS and constant.core))
            case "arguments":
                return Alternative(parts, [SPACES, r"\{"])
            case "object":
                return Alternative(parts, [SPACES, *self._object_start])
            case "python":
                return Alternative(parts, [SPACES, r"[^\W\d]", WORD_REST, r"\("])
            case "name" | "id" if constant.edge.source in ("start", "text", "reasoning"):
                return Alternative(parts, [SPACES, r"\w"])
            case _:
                return Alternative(parts)

    def ends_a_field_only_last(self, constant: Constant) -> bool:
        """Return whether a constant ends a field only at the end of a reply, because the field may contain it."""
        is_text = constant.edge.source not in DELIMITED and not CONTROL.search(constant.core)
        return is_text and self.closes_one(constant)

    @cached_property
    def _object_start(self) -> list[Part]:
        """How a call that is an object begins: in a grammar without marks, with one of its own keys."""
        if self.grammar.calls_are_marked:
            return [r"\{"]
        names = {path[0] for path in (self.grammar.name_path, self.grammar.arguments_path) if path and path[0]}
        names |= {re.split('"', self.grammar.layout[0])[1]} if '"' in self.grammar.layout[0] else set[str]()
        choice = tuple(tuple(map(re.escape, name)) for name in sorted(names))
        return [r"\{", SPACES, '"', choice, '"', SPACES, ":"]

    @cached_property
    def closers(self) -> list[str]:
        """The tags that close calls at the end of a reply."""
        last = [c for c in self.constants if c.edge.source in self.grammar.last_fields and c.target == "end"]
        return [tag for constant in last for tag in tags(constant.core)[-1:]]

    @property
    def _openers(self) -> Iterator[str]:
        """The tags that open calls at the start of a reply or after a text."""
        for constant in self.constants:
            if constant.edge.source in ("start", "text") and constant.target in self.grammar.call[:1]:
                yield from filter(is_mark, tags(constant.core)[:1])

    def swallowed(self, text: str) -> str | None:
        """Return what a value must not contain: the next key, because this value was not closed, or the call's end."""
        pattern, marks = self._swallowed
        found = pattern.search(text) if any(mark in text for mark in marks) else None
        return found and found[0]

    @cached_property
    def _swallowed(self) -> tuple[re.Pattern[str], set[str]]:
        """A pattern of what a value must not contain, and texts of which each match contains one."""
        patterns: dict[str, str] = {}
        for constant in self.constants:
            if constant.edge.source != "value" or constant.target not in ("key", "end"):
                continue
            before_control = CONTROL.split(constant.core)[0]
            token = next(iter(tags(constant.core)[-1:]), "")
            if len(token) > 1:
                is_on_line = "\n" + token in constant.lead + constant.core
                patterns[(r"^[^\S\n]*+" if is_on_line else "") + re.escape(token)] = token
            elif len(tags(before_control)) > 1:
                patterns[pattern_of(before_control)] = _words(before_control)[0]
        return re.compile("|".join(patterns) or "(?!)", re.MULTILINE), {*patterns.values()}


def is_mark(core: str) -> bool:
    """Return whether a constant is unlikely to be in a text that does not mean it."""
    return bool(CONTROL.search(core)) or len(core) >= _SHORTEST_MARK


def _longest_first(texts: Iterable[str]) -> list[str]:
    return sorted({*texts}, key=lambda text: (-len(text), text))


def _verbatim(text: str) -> Alternative:
    return Alternative([*map(re.escape, text)])


def _of_core(constant: Constant) -> Alternative:
    return Alternative(parts_of(constant.core))


_CONTROL = Alternative([CONTROL.pattern])
