"""The patterns with which a grammar's constants are found in a reply, in time linear in its length.

A reply is read as a *coded* string, in which each control token is one unpaired surrogate. Text never contains one,
since replies are decoded from UTF-8. So text that spells a control token never matches it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise, takewhile
from typing import Any, TypeAlias, get_args

from envsdk.rendering.reading import Segment

from ._grammar import CALL_FIELDS, Edge, Field, Grammar, tags
from ._styles import CONTROL, PYTHON_WORDS, parse_value

SPACES, SPACE, WORD_REST = r"\s*+", r"\s++", r"[\w.\-]*+"
_LONGEST_NAME = 64
_CONTROLS = r"[\ud800-\udfff]|\[\ud800-\udfff\]"
"""Matches a regular expression of control tokens."""
Part: TypeAlias = "str | tuple[tuple[str, ...], ...]"
"""A part of a pattern: one character or a run of them as a regular expression, or a choice of sequences of these."""


@dataclass(frozen=True)
class Alternative:
    """One of the alternatives of a pattern."""

    parts: Sequence[Part]
    ahead: Sequence[Part] = ()
    """The text that has to follow, which is not part of the match."""
    is_last: bool = False
    """True if only whitespace may follow."""

    @property
    def first(self) -> str:
        """The regular expression of its first character; empty if it may begin in several ways."""
        first = self.parts[0] if self.parts else None
        return first if isinstance(first, str) and first not in (SPACES, SPACE, WORD_REST) else ""

    @property
    def pattern(self) -> str:
        """The regular expression of the whole text."""
        ahead = f"(?={_joined(self.ahead)})" if self.ahead else ""
        return _joined(self.parts) + ahead + (SPACES + r"\Z" if self.is_last else "")

    @property
    def length(self) -> int:
        """The number of characters, without whitespace, after which it is decided whether it matches."""
        lengths = {SPACES: 0, SPACE: 0, WORD_REST: _LONGEST_NAME}
        parts = [*self.parts, *self.ahead]
        return sum(lengths.get(part, 1) if isinstance(part, str) else max(map(len, part), default=0) for part in parts)

    def is_begun(self, text: str) -> bool:
        """Return whether the string ends before all of what is matched, so that more text may complete it."""
        for part in (*self.parts, *self.ahead):
            if not text:
                return True
            choices = [part] if isinstance(part, str) else ["".join(choice) for choice in part]
            found = next(filter(None, (re.match(choice, text) for choice in choices)), None)
            if found is None:
                begun = (re.escape(text) == choice[: len(re.escape(text))] for choice in choices)
                return not isinstance(part, str) and any(begun)
            text = text[found.end() :]
        return self.is_last and not text.strip()


class Pattern:
    """A pattern of alternatives, of which the first one that matches is chosen; each is a group.

    Args:
        alternatives: The alternatives.
    """

    def __init__(self, alternatives: Iterable[Alternative]) -> None:
        self.alternatives = items = list(alternatives)
        firsts = [*dict.fromkeys(item.first for item in items)]
        if all(firsts) and firsts:  # what follows is only tried at one of these characters, which `re` finds fast
            rests = (f"((?<={item.first}){item.pattern.removeprefix(item.first)})" for item in items)
            self.complete = re.compile(f"(?:{'|'.join(firsts)})(?:{'|'.join(rests)})")
        else:
            self.complete = re.compile("|".join(f"({item.pattern})" for item in items) or "(?!)")
        self.begins_with_control = all(re.fullmatch(_CONTROLS, first) for first in firsts)
        """True if each alternative begins with a control token."""
        self.first = re.compile("|".join(firsts) if all(firsts) else "", re.DOTALL)
        """Matches where an alternative may begin."""
        self.length = max((item.length for item in items), default=0)
        """The number of characters, without whitespace, after which it is decided whether one matches."""

    def __bool__(self) -> bool:
        return self.complete.groups > 0

    def begun(self, text: str) -> int:
        """Return the number of the first alternative that ends after the text, from 1; 0 if none does."""
        begun = (number for number, item in enumerate(self.alternatives, start=1) if item.is_begun(text))
        return next(begun, 0)


class CodedReply:
    """The coded text of a reply, all of it or what has come so far, in which patterns are searched.

    All searches of a pattern together take time linear in the text: a match that was found from an earlier position is
    still the next one, and one that was not found never will be, until more text comes.
    """

    def __init__(self) -> None:
        self.text = ""
        self.is_whole = False
        """True if no more text comes."""
        self.undecided: int | None = None
        """Set by a search whose answer more text may change: nothing that is searched for begins before this position.
        What was found must then not be used."""
        self.last: int = 0
        """The position after the last character that is not whitespace, if no more text comes."""
        self.length: int = 0
        """The length of all text so far, with what was dropped."""
        self._found: dict[Pattern, re.Match[str] | None] = {}
        """The next match of each pattern, None if there is none: by the pattern, since `re.Pattern` hashes its code."""

    def grow(self, text: str, *, is_whole: bool = False) -> None:
        """Add text."""
        self.text += text
        self.length += len(text)
        self.is_whole = is_whole
        self.last = len(self.text.rstrip()) if is_whole else len(self.text)
        self._found.clear()

    def drop(self, position: int) -> None:
        """Drop the text before a position, which was read."""
        self.text = self.text[position:]
        self._found.clear()

    def wait(self, position: int) -> None:
        """Note that what is at a position depends on text that has not come yet, unless the text is whole."""
        if not self.is_whole:
            self.undecided = position if self.undecided is None else min(position, self.undecided)

    def search(self, pattern: Pattern, position: int) -> re.Match[str] | None:
        """Return the first match from a position on; None if there is none in the whole reply; see `undecided`."""
        if self.is_whole and pattern.begins_with_control and self.text.isascii():
            return None  # there is no control token
        found = self._found.get(pattern)
        if pattern not in self._found or (found is not None and found.start() < position):
            found = self._found[pattern] = pattern.complete.search(self.text, position)
        if not self.is_whole:
            begun = self._begun(pattern, position)
            if found is None or begun <= (found.start(), found.lastindex or 0):
                self.wait(begun[0])
        return found

    def match(self, pattern: Pattern, position: int) -> re.Match[str] | None:
        """Return the match at a position, if there is one; see `undecided`."""
        found = pattern.complete.match(self.text, position)
        if not self.is_whole:
            begun = pattern.begun(self.text[position:])
            if position >= len(self.text) or (begun and (found is None or begun <= (found.lastindex or 0))):
                self.wait(position)
        return found

    def skip(self, space: str, position: int, start: int) -> int:
        """Return the position after the part of some whitespace that is at a position; `start` may be undecided."""
        found = shared_start(self.text[position : position + len(space)], space)
        if found < len(space) and position + found == len(self.text):
            self.wait(start)
        return position + found

    def _begun(self, pattern: Pattern, position: int) -> tuple[int, int]:
        """Return where and with which alternative a match may have begun that needs more text."""
        start, count = len(self.text), 0
        while start > position and count < pattern.length:
            start -= 1
            count += not self.text[start].isspace()
        for candidate in pattern.first.finditer(self.text, start):
            number = pattern.begun(self.text[candidate.start() :]) if candidate.start() < len(self.text) else 0
            if number:
                return candidate.start(), number
        return len(self.text), 0


def shared_start(first: str, second: str) -> int:
    """Return the length of the common start of two strings."""
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return length


def _joined(parts: Sequence[Part]) -> str:
    return "".join(part if isinstance(part, str) else f"(?:{'|'.join(map(_joined, part))})" for part in parts)


DELIMITED: frozenset[Field] = frozenset({"arguments", "object", "python"})
"""The fields that show themselves where they end; every other field ends where a constant is found."""
_TAG = re.compile(r"</?[^<>\s]+>|\[/?[^\[\]\s]+\]|[\ud800-\udfff]")
_SHORTEST_MARK = 3
_WORD_END, _WORD_START = re.compile(r"\w\Z"), re.compile(r"\w")


class Code:
    """Codes strings: control tokens become single characters."""

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
        """Cut a coded string at its control tokens."""
        first, *parts = re.split(f"({CONTROL.pattern})", coded)
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return [Segment("", first), *(Segment(self._names[control], text) for control, text in pairs)]

    def plain(self, coded: str) -> str:
        """Return a coded string with its control tokens by their names."""
        return coded if coded.isascii() else CONTROL.sub(lambda found: self._names.get(found[0], "\ufffd"), coded)


@dataclass(frozen=True)
class Constant:
    """A coded constant: whitespace around what is searched."""

    edge: Edge
    lead: str
    core: str
    tail: str
    target: Field
    """The field after it."""

    def strip_before(self, text: str) -> str:
        """Return the text before the constant without the whitespace that belongs to the constant."""
        return text[: len(text) - shared_start(text[::-1], self.lead[::-1])]


def constant_of(edge: Edge, code: Code) -> Constant:
    """Cut the whitespace off a constant; if it is nothing else, it is what is searched."""
    text = code.constant(edge.constant)
    core = text.strip() or text
    start = text.index(core)
    return Constant(edge, text[:start], core, text[start + len(core) :], edge.target)


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
    return [token for word in core.split() for token in re.split(f"({_TAG.pattern})", word) if token]


@lru_cache(256)
def pattern_of(core: str) -> str:
    """Return the regular expression of what is searched."""
    return Alternative(parts_of(core)).pattern


class Patterns:
    """The patterns of one grammar.

    Attributes:
        code: Codes strings.
        closer: Matches what closes a call, after which a broken call ends.
        opener: Matches what opens a call. Where text contains it and no call follows, a call is broken.
        broken_end: Matches what a broken call ends at: one of `opener_count` openers, or one of the closers.
        call_tags: The coded tags around each call, if every call has its own pair.
        closers: The tags that close calls at the end of a reply.
        call_end_mark: Matches a character with which a call may end.
        reasoning_closer: Matches what closes reasoning.
        opens_reasoning: Whether something opens reasoning, so that a blank text before it is dropped.
        in_text: Matches what may come in or after text, whether it is in place or not.
        kinds_in_text: For each group of `in_text`, its kind and its constant: the `end` of a reply, a `call`, what
            opens `reasoning`, the `closer` of reasoning, the `opener` of a broken call, or a `stray` control token.
        text_start, text_end: The whitespace before text that begins a reply, and after text that ends it.
        finds_calls_in_text: Whether calls are found after text, and not only at the start of a reply.
        writes_text_last: Whether the template writes text after calls.
        ends_itself: Whether a reply may end right after the last field of a call.
        wrapper: What may be around a string value, coded.
        style: The style of arguments, with coded quotes.
        before_values: A pattern of what may follow a key, or of a control token; these constants; and the JSON types of
            the value after each.
        has_quoted_values: Whether the strings among the values of a call are quoted as in JSON.
        parse_exactly: Reads a value as JSON, and in Python's spelling only if the grammar writes that.
        after: For each field, a pattern of what may follow it, with one group for each constant.
        after_or_control: The same, with one more group for a control token, which ends every field.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.code = Code(grammar.controls)
        self.constants = [constant_of(edge, self.code) for edge in grammar.edges]
        last = [c for c in self.constants if c.edge.source in grammar.last_fields and c.target == "end"]
        self.closers = [tag for constant in last for tag in tags(constant.core)[-1:]]
        openers, closers = _longest_first(self._openers), _longest_first(self.closers)
        self.opener = Pattern(map(_verbatim, openers))
        self.closer = Pattern(map(_verbatim, closers))
        self.broken_end = Pattern(map(_verbatim, [*openers, *closers]))
        self.has_control_closers = any(map(CONTROL.search, closers))
        self.opener_count = len(openers)
        opener, closer = map(self.code.constant, grammar.call_tags or ("", ""))
        self.call_tags = (opener, closer) if opener else None
        self._reasoning_closers = self._marked("reasoning", "text")
        self._reasoning_openers = self._marked("start", "reasoning")
        self.reasoning_closer = Pattern(map(_of_core, self._reasoning_closers))  # what closes reasoning
        self._reasoning_opener = Pattern(map(_of_core, self._reasoning_openers))
        self._text_openers = self._marked("start", "text")
        self._text_opener = Pattern(map(_of_core, self._text_openers))
        self.opens_reasoning = bool(self._reasoning_openers)
        self._call_ends = self._ends_of_one_call()
        self.after: dict[Field, tuple[Pattern, list[Constant]]] = {}
        self.after_or_control: dict[Field, tuple[Pattern, list[Constant]]] = {}
        for field in get_args(Field):
            following = [c for c in self.constants if c.edge.source == field and self._is_usable(c)]
            following += [end for end in self._call_ends if end.edge.source == field]
            following.sort(key=lambda c: (-len(c.core), c.target in ("text", "end")))
            alternatives = [*map(self._alternative, following)]
            self.after[field] = Pattern(alternatives), following
            self.after_or_control[field] = Pattern([*alternatives, _CONTROL]), following
        constants = [c for c in self.constants if c.edge.source == "text" and self._is_usable(c) and c.core.strip()]
        constants.sort(key=lambda c: -len(c.core))
        of_text: list[tuple[Alternative, str, Constant | None]]
        of_text = [(self._alternative(c), "end" if c.target == "end" else "call", c) for c in constants]
        of_text += [(_of_core(c), "closer", c) for c in self._reasoning_closers]
        of_text += [(_of_core(c), "reasoning", c) for c in self._reasoning_openers]
        of_text += [(_verbatim(opener), "opener", None) for opener in openers]
        of_text.append((_CONTROL, "stray", None))
        self.in_text = Pattern(alternative for alternative, _, _ in of_text)
        self.kinds_in_text = [(kind, constant) for _, kind, constant in of_text]
        self._set_facts(grammar)

    def _set_facts(self, grammar: Grammar) -> None:
        """Set what readers ask of the grammar, apart from patterns of what follows a field."""
        code, written, style = self.code.constant, grammar.written, grammar.style
        start, end = written.get(("start", "text"), ""), written.get(("text", "end"), "")
        self.text_start, self.text_end = ("" if text.strip() else text for text in (start, end))
        closers = {constant.lead for constant in self._reasoning_closers}
        leads: dict[Field, set[str]] = {"reasoning": {*closers}, "text": {*closers, self.text_end}}
        for constant in self.constants:
            if constant.edge.source in leads:
                leads[constant.edge.source].add(constant.lead)
        self._leads = {field: [*filter(None, found)] for field, found in leads.items()}
        calls = [c for c in self.constants if c.edge.source == "text" and c.target in CALL_FIELDS]
        self.finds_calls_in_text = any(constant.core.strip() for constant in calls)
        self.writes_text_last = any(
            e.is_written and e.source in CALL_FIELDS and e.target == "text" for e in grammar.edges
        )
        self.ends_itself = not all(map(self._is_closed, grammar.call[-1:]))
        ends = [
            *(c.core for c in self.constants if c.edge.source in grammar.last_fields),
            *self._openers,
            *self.closers,
        ]
        marks = {*(end[-1] for end in ends if end), *("}])" if self.ends_itself else "")}
        self.call_end_mark = re.compile(f"[{''.join(map(re.escape, sorted(marks)))}\ud800-\udfff]")
        opener, closer = map(code, grammar.wrapper)
        self.wrapper = opener, closer
        quotes, keys = tuple(map(code, style.quotes)), tuple(map(code, style.key_quotes))
        self.style = replace(style, quotes=quotes, key_quotes=keys)
        types: dict[str, tuple[str, ...]] = {}
        for values in grammar.values:
            types[values.before] = (*types.get(values.before, ()), *values.types)
        before = [constant_of(Edge("key", "value", text), self.code) for text in types]
        before.sort(key=lambda constant: -len(constant.core))
        kinds = [types[constant.edge.constant] for constant in before]
        self.before_values = Pattern([*map(_of_core, before), _CONTROL]), before, kinds
        strings = [values.style for values in grammar.values if "string" in values.types]
        self.has_quoted_values = "key" in grammar.call and bool(strings) and strings[0].is_json
        styles = [(values.types, values.style) for values in grammar.values]
        has_words = any("True" in style.words for types, style in styles if {"boolean", "null"} & {*types})
        has_brackets = any(style.escapes == "python" for types, style in styles if {"array", "object"} & {*types})
        words: Mapping[str, Any] = PYTHON_WORDS if has_words else {}
        self.parse_exactly: Callable[[str], Any] = partial(parse_value, words=words, reads_python=has_brackets)
        self._swallowed, self._swallowed_marks = self._swallowed_pattern()

    def _marked(self, source: Field, target: Field) -> list[Constant]:
        """Return the constants between two fields that are not blank, the longest first."""
        found = [c for c in self.constants if (c.edge.source, c.target) == (source, target) and c.core.strip()]
        return sorted(found, key=lambda constant: -len(constant.core))

    def at_start(self, source: CodedReply, position: int) -> tuple[Constant | None, int]:
        """Return the constant that begins a reply, with its end; None if it is text without one."""
        pattern, constants = self.after["start"]
        found = source.match(pattern, position)
        constant = constants[(found.lastindex or 1) - 1] if found else None
        if found is None or constant is None or constant.target == "end":
            return None, position
        is_marked = bool(constant.core.strip() or self.grammar.written.get(("start", "text"), "").strip())
        if constant.target in ("text", "reasoning") and not (is_marked or found[0]):
            return None, position  # what is not marked is text
        if constant.target != "reasoning" and found[0] != constant.core:
            opened = self._reasoning_opener.complete.match(found[0])
            if opened and self.reasoning_closer.complete.search(found[0], opened.end()):
                # Other whitespace made it a constant: reasoning that is empty.
                return self._reasoning_openers[(opened.lastindex or 1) - 1], found.start() + opened.end()
        return constant, found.end()

    def text_at_start(self, source: CodedReply, position: int) -> tuple[Constant | None, int]:
        """Return the constant between the start and text, if it is there and not blank, with its end."""
        found = source.match(self._text_opener, position)
        return (None, position) if found is None else (self._text_openers[(found.lastindex or 1) - 1], found.end())

    def closes_reasoning(self, coded: str, position: int) -> tuple[re.Match[str], Constant] | None:
        """Return what closes reasoning at a position, before text; None if nothing does."""
        found = self.reasoning_closer.complete.match(coded, position)
        return None if found is None else (found, self._reasoning_closers[(found.lastindex or 1) - 1])

    def held_back(self, field: Field, text: str) -> int:
        """Return the number of characters at the end of unfinished text that may belong to a constant after it."""
        length = min(max(map(len, self._leads[field]), default=0), len(text))
        return next((n for n in range(length, 0, -1) if any(text[-n:] in lead for lead in self._leads[field])), 0)

    def _ends_of_one_call(self) -> list[Constant]:
        """Return what closes one of several calls, before what closes all of them or opens the next one.

        That are the tags with which every constant begins that ends a call after a field.
        """
        found: list[Constant] = []
        for field in filter(self._is_closed, self.grammar.last_fields):
            constants = [constant for constant in self.constants if constant.edge.source == field]
            ends = [constant for constant in constants if constant.target not in self.grammar.call[1:]]
            words = [_words(constant.core) for constant in ends]
            shared = [same[0] for same in takewhile(lambda same: len({*same}) == 1, zip(*words, strict=False))]
            while shared and not _TAG.fullmatch(shared[-1]):
                shared.pop()
            others = (_words(constant.core)[: len(shared)] for constant in constants if constant not in ends)
            is_whole = any(len(each) == len(shared) for each in words)
            if shared and not is_whole and shared not in others and len({constant.lead for constant in ends}) == 1:
                core = "".join(shared)
                found.append(Constant(Edge(field, "end", core, is_written=False), ends[0].lead, core, "", "end"))
        return found

    def closes_one(self, constant: Constant) -> bool:
        """Return whether a constant closes one call, but not all calls of a reply as the template does."""
        return constant in self._call_ends

    def _is_closed(self, field: Field) -> bool:
        """Return whether something has to follow the last field of a call."""
        return all(c.core for c in self.constants if c.edge.source == field and c.target == "end")

    def _is_usable(self, constant: Constant) -> bool:
        is_found = bool(constant.core) or constant.edge.source in DELIMITED or constant.target in DELIMITED
        return is_found or constant.edge.source == "start"

    def _alternative(self, constant: Constant) -> Alternative:
        is_blank = constant.edge.source in DELIMITED and not constant.core.strip()
        parts = [] if is_blank else parts_of(constant.core)  # whitespace after such a field is skipped
        match constant.target:
            case "end":
                # A field may contain what closes one call, unless that has a control token.
                is_text = constant.edge.source not in DELIMITED and not CONTROL.search(constant.core)
                ends_a_call = constant.edge.source in CALL_FIELDS and constant.core
                return Alternative(parts, is_last=not ends_a_call or (is_text and self.closes_one(constant)))
            case "arguments":
                return Alternative(parts, [SPACES, r"\{"])
            case "object":
                begin: list[Part] = [r"\{"]
                if not self.grammar.calls_are_marked:  # a call begins with one of its own keys
                    paths, layout = (self.grammar.name_path, self.grammar.arguments_path), self.grammar.layout[0]
                    names = {path[0] for path in paths if path and path[0]}
                    names |= {layout.split('"')[1]} if '"' in layout else set[str]()
                    choice = tuple(tuple(map(re.escape, name)) for name in sorted(names))
                    begin += [SPACES, '"', choice, '"', SPACES, ":"]
                return Alternative(parts, [SPACES, *begin])
            case "python":
                return Alternative(parts, [SPACES, r"[^\W\d]", WORD_REST, r"\("])
            case "name" | "id" if constant.edge.source in ("start", "text", "reasoning"):
                return Alternative(parts, [SPACES, r"\w"])
            case _:
                return Alternative(parts)

    @property
    def _openers(self) -> Iterator[str]:
        """The tags that open calls at the start of a reply or after a text."""
        for constant in self.constants:
            if constant.edge.source in ("start", "text") and constant.target in self.grammar.call[:1]:
                yield from filter(is_mark, tags(constant.core)[:1])

    def swallowed(self, text: str) -> str | None:
        """Return what a value must not contain: the next key, because this value was not closed, or the call's end."""
        found = self._swallowed.search(text) if any(mark in text for mark in self._swallowed_marks) else None
        return found and found[0]

    def _swallowed_pattern(self) -> tuple[re.Pattern[str], set[str]]:
        """Return a pattern of what a value must not contain, and strings of which each match contains one."""
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
    """Return whether a constant is unlikely to be in text by chance."""
    return bool(CONTROL.search(core)) or len(core) >= _SHORTEST_MARK


def _longest_first(texts: Iterable[str]) -> list[str]:
    return sorted({*texts}, key=lambda text: (-len(text), text))


def _verbatim(text: str) -> Alternative:
    return Alternative([*map(re.escape, text)])


def _of_core(constant: Constant) -> Alternative:
    return Alternative(parts_of(constant.core))


_CONTROL = Alternative([CONTROL.pattern])
