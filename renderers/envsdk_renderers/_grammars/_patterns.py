"""The patterns with which a grammar's constants are found in a reply, in time linear in its length.

A reply is read as a *coded* string, in which each control token is one unpaired surrogate. Text never contains one,
since replies are decoded from UTF-8. So text that spells a control token never matches it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise, takewhile
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from envsdk.rendering.reading import Segment

from ._grammar import CALL_FIELDS, Field, Grammar, tags
from ._styles import CONTROL, PYTHON_WORDS, parse_value

SPACES, SPACE, WORD_REST = r"\s*+", r"\s++", r"[\w.\-]*+"
DELIMITED: frozenset[Field] = frozenset({"arguments", "object", "python"})
"""The fields that show themselves where they end; every other field ends where a constant is found."""
Kind: TypeAlias = Literal["constant", "reasoning", "closer", "opener", "control"]
_TAG = re.compile(r"</?[^<>\s]+>|\[/?[^\[\]\s]+\]|[\ud800-\udfff]")
_SHORTEST_MARK = 3
_LONGEST_BEGIN = 64
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
    """A coded constant between two fields: whitespace around what is searched."""

    source: Field
    target: Field
    lead: str
    core: str
    tail: str
    types: tuple[str, ...] = ()
    """Before a value: the JSON types of the values that it may precede."""
    closes_one: bool = False
    """True if it closes one call, but not all calls of a reply as the template does."""


@dataclass(frozen=True, eq=False)
class Alternative:
    """One of the alternatives of a pattern.

    A part of it is a regular expression that matches one character, or one of `SPACES`, `SPACE` and `WORD_REST`.
    """

    parts: Sequence[str]
    ahead: Sequence[str] = ()
    """The parts that have to follow; they are not part of the match."""
    is_last: bool = False
    """True if only whitespace may follow."""
    kind: Kind = "constant"
    constant: Constant | None = None

    def whole(self, skipped: int = 0) -> str:
        """Return the regular expression of all of it, without its first parts."""
        ahead = f"(?={''.join(self.ahead)})" if self.ahead else ""
        return "".join(self.parts[skipped:]) + ahead + (SPACES + r"\Z" if self.is_last else "")

    def begun(self, skipped: int = 0) -> str:
        """Return the regular expression of a beginning of it with which a text ends, without its first parts."""
        parts = [*self.parts, *self.ahead][skipped:]
        end = SPACES + r"\Z" if self.is_last else "(?!)"
        pattern = end if len(parts) <= _LONGEST_BEGIN else r"[\s\S]*\Z"
        for part in reversed(parts[:_LONGEST_BEGIN]):
            pattern = rf"(?:\Z|{part}{pattern})"
        return pattern


class Found(NamedTuple):
    """A match of a pattern."""

    start: int
    end: int
    text: str
    alternative: Alternative
    constant: Constant | None


@dataclass(frozen=True, eq=False)
class Pattern:
    """A pattern of alternatives, of which the first one that matches is chosen."""

    alternatives: Sequence[Alternative]

    @cached_property
    def whole(self) -> re.Pattern[str]:
        """Matches in a whole text: a group for each alternative."""
        return self._compiled([(each, each.whole) for each in self.alternatives])

    @cached_property
    def unfinished(self) -> re.Pattern[str]:
        """Matches in a text that goes on: two groups for each alternative, of which the second is its beginning."""
        return self._compiled([(each, way) for each in self.alternatives for way in (each.whole, each.begun)])

    def _compiled(self, ways: Sequence[tuple[Alternative, Callable[[int], str]]]) -> re.Pattern[str]:
        firsts = [each.parts[0] if each.parts else "" for each, _ in ways]
        if not all(firsts):
            return re.compile("|".join(f"({write(0)})" for _, write in ways) or "(?!)")
        # What follows is only tried at one of the first characters, which `re` finds fast.
        rests = (f"((?<={first}){write(1)})" for first, (_, write) in zip(firsts, ways, strict=True))
        return re.compile(f"(?:{'|'.join(dict.fromkeys(firsts))})(?:{'|'.join(rests)})" if firsts else "(?!)")

    def match(self, text: str, position: int) -> Found | None:
        """Return the match at a position of a whole text."""
        return self.found(self.whole.match(text, position))

    def found(self, match: re.Match[str] | None, groups: int = 1) -> Found | None:
        """Return a match of `whole`, or with two groups for each alternative of `unfinished`."""
        if match is None:
            return None
        alternative = self.alternatives[((match.lastindex or 1) - 1) // groups]
        return Found(match.start(), match.end(), match[0], alternative, alternative.constant)


@dataclass(eq=False, repr=False)
class CodedReply:
    """The coded text of a reply, all of it or what has come so far, in which patterns are searched.

    All searches of a pattern together take time linear in the text: a match that was found from an earlier position is
    still the next one, and one that was not found never will be, until more text comes.
    """

    text: str = ""
    is_whole: bool = False
    """True if no more text comes."""
    undecided: int | None = None
    """Set by a search whose answer more text may change: nothing that is searched for begins before this position.
    What was found must then not be used."""
    length: int = 0
    """The length of all text so far, with what was dropped."""
    _next: dict[Pattern, re.Match[str] | None] = field(default_factory=dict[Pattern, re.Match[str] | None])
    """The next match of each pattern, None if there is none."""

    def grow(self, text: str, *, is_whole: bool = False) -> None:
        """Add text."""
        self.text += text
        self.length += len(text)
        self.is_whole = is_whole
        self._next.clear()

    def drop(self, position: int) -> None:
        """Drop the text before a position, which was read."""
        self.text = self.text[position:]
        self._next.clear()

    def wait(self, position: int) -> None:
        """Note that what is at a position depends on text that has not come yet, unless the text is whole."""
        if not self.is_whole:
            self.undecided = position if self.undecided is None else min(position, self.undecided)

    def search(self, pattern: Pattern, position: int) -> Found | None:
        """Return the first match from a position on; None if there is none in the whole reply; see `undecided`."""
        found = self._next.get(pattern)
        if pattern not in self._next or (found is not None and found.start() < position):
            compiled = pattern.whole if self.is_whole else pattern.unfinished
            found = self._next[pattern] = compiled.search(self.text, position)
        if found is None:
            self.wait(len(self.text))
        return self._found(pattern, found)

    def match(self, pattern: Pattern, position: int) -> Found | None:
        """Return the match at a position, if there is one; see `undecided`."""
        if position >= len(self.text):
            self.wait(position)
        return self._found(pattern, (pattern.whole if self.is_whole else pattern.unfinished).match(self.text, position))

    def _found(self, pattern: Pattern, found: re.Match[str] | None) -> Found | None:
        if self.is_whole:
            return pattern.found(found)
        if found is not None and not (found.lastindex or 1) % 2:  # an alternative begins there
            self.wait(found.start())
            return pattern.match(self.text, found.start())
        return pattern.found(found, 2)

    def skip(self, space: str, position: int, start: int) -> int:
        """Return the position after the part of some whitespace that is at a position; `start` may be undecided."""
        found = shared_start(self.text[position : position + len(space)], space)
        if found < len(space) and position + found == len(self.text):
            self.wait(start)
        return position + found


def shared_start(first: str, second: str) -> int:
    """Return the length of the common start of two strings."""
    different = (at for at, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)
    return next(different, min(len(first), len(second)))


def strip_end(text: str, space: str) -> str:
    """Return a text without the end that it shares with some whitespace."""
    return text[: len(text) - shared_start(text[::-1], space[::-1])]


def parts_of(core: str) -> list[str]:
    """Return the parts of the pattern of what is searched, in which whitespace may differ."""
    if not core.strip():
        return [*map(re.escape, core)]
    words = _words(core)
    parts = [*map(re.escape, words[0])]
    for before, after in pairwise(words):
        needs_space = _WORD_END.search(before) and _WORD_START.match(after)
        parts += [SPACE if needs_space else SPACES, *map(re.escape, after)]
    return parts


def _words(core: str) -> list[str]:
    """Cut a constant at its whitespace and around its tags."""
    return [token for word in core.split() for token in re.split(f"({_TAG.pattern})", word) if token]


def is_mark(core: str) -> bool:
    """Return whether a constant is unlikely to be in text by chance."""
    return bool(CONTROL.search(core)) or len(core) >= _SHORTEST_MARK


class Patterns:
    """The patterns of one grammar.

    Attributes:
        code: Codes strings.
        opener: Matches what opens a call. Where text contains it and no call follows, a call is broken.
        broken_end: Matches what a broken call ends at: an `opener` of a call, or a `closer` after which it ends.
        call_tags: The coded tags around each call, if every call has its own pair.
        closers: The tags that close calls at the end of a reply.
        call_end_mark: Matches a character with which a call may end.
        reasoning_opener, reasoning_closer: Match what opens and closes reasoning.
        text_opener: Matches what is between the start of a reply and text.
        in_text: Matches what may come in or after text, whether it is in place or not: a `constant`, what opens
            `reasoning`, the `closer` of reasoning, the `opener` of a broken call, or a stray `control` token.
        text_start, text_end: The whitespace before text that begins a reply, and after text that ends it.
        finds_calls_in_text: Whether calls are found after text, and not only at the start of a reply.
        writes_text_last: Whether the template writes text after calls.
        ends_itself: Whether a reply may end right after the last field of a call.
        wrapper: What may be around a string value, coded.
        style: The style of arguments, with coded quotes.
        has_quoted_values: Whether the strings among the values of a call are quoted as in JSON.
        parse_exactly: Reads a value as JSON, and in Python's spelling only if the grammar writes that.
        swallowed: Matches what a value must not contain: the next key, because this value was not closed, or the
            call's end.
        after: For each field, a pattern of what may follow it. After a field of a call that does not show itself where
            it ends, that may also be a control token, which ends every field.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar, self.code = grammar, Code(grammar.controls)
        self.constants = constants = [self._constant(e.source, e.target, e.constant) for e in grammar.edges]
        last = [c for c in constants if c.source in grammar.last_fields]
        self._open_fields = {c.source for c in last if c.target == "end" and not c.core}
        self.ends_itself = not self._open_fields.isdisjoint(grammar.call[-1:])
        before_calls = self._between(("start", "text"), grammar.call[:1])
        openers = [tag for c in before_calls for tag in tags(c.core)[:1] if is_mark(tag)]
        self.closers = [tag for c in last if c.target == "end" for tag in tags(c.core)[-1:]]
        self.opener = Pattern(_verbatim(openers, "opener"))
        self.broken_end = Pattern([*self.opener.alternatives, *_verbatim(self.closers, "closer")])
        ends = {text[-1] for text in (*(c.core for c in last), *openers, *self.closers) if text}
        ends.update("}])" if self.ends_itself else "")
        self.call_end_mark = re.compile(f"[{''.join(map(re.escape, sorted(ends)))}\ud800-\udfff]")
        self.call_tags = self._coded(grammar.call_tags) if grammar.call_tags else None
        self.reasoning_closer = self._marks("reasoning", "text", "closer")
        self.reasoning_opener = self._marks("start", "reasoning", "reasoning")
        self.text_opener = self._marks("start", "text", "constant")
        self.after: dict[Field, Pattern] = {name: self._following(name) for name in get_args(Field)}
        of_text = [c for c in constants if c.source == "text" and c.core.strip()]
        of_text.sort(key=lambda c: -len(c.core))
        self.in_text = Pattern(
            [
                *(alternative for c in of_text for alternative in self._alternatives(c)),
                *self.reasoning_closer.alternatives,
                *self.reasoning_opener.alternatives,
                *self.opener.alternatives,
                Alternative([CONTROL.pattern], kind="control"),
            ]
        )
        start, end = grammar.written.get(("start", "text"), ""), grammar.written.get(("text", "end"), "")
        self.text_start, self.text_end = ("" if text.strip() else text for text in (start, end))
        self.finds_calls_in_text = any(c.target in CALL_FIELDS for c in of_text)
        self.writes_text_last = any(
            e.is_written and e.source in CALL_FIELDS and e.target == "text" for e in grammar.edges
        )
        self._set_values(grammar)

    def _set_values(self, grammar: Grammar) -> None:
        """Set what is known of the values of calls."""
        self.wrapper = self._coded(grammar.wrapper)
        style = grammar.style
        self.style = replace(style, quotes=self._coded(style.quotes), key_quotes=self._coded(style.key_quotes))
        strings = [values.style for values in grammar.values if "string" in values.types]
        self.has_quoted_values = "key" in grammar.call and bool(strings) and strings[0].is_json
        styles = [(values.types, values.style) for values in grammar.values]
        has_words = any("True" in style.words for types, style in styles if {"boolean", "null"} & {*types})
        has_brackets = any(style.escapes == "python" for types, style in styles if {"array", "object"} & {*types})
        words: Mapping[str, Any] = PYTHON_WORDS if has_words else {}
        self.parse_exactly = partial(parse_value, words=words, reads_python=has_brackets)
        swallowed: list[str] = []
        for constant in self._between(("value",), ("key", "end")):
            before_control = CONTROL.split(constant.core)[0]
            token = next(iter(tags(constant.core)[-1:]), "")
            if len(token) > 1:
                is_on_line = "\n" + token in constant.lead + constant.core
                swallowed.append((r"^[^\S\n]*+" if is_on_line else "") + re.escape(token))
            elif len(tags(before_control)) > 1:
                swallowed.append("".join(parts_of(before_control)))
        self.swallowed = re.compile("|".join(dict.fromkeys(swallowed)) or "(?!)", re.MULTILINE)

    def _coded(self, around: tuple[str, str]) -> tuple[str, str]:
        return self.code.constant(around[0]), self.code.constant(around[1])

    def _constant(self, source: Field, target: Field, constant: str, types: tuple[str, ...] = ()) -> Constant:
        """Code a constant and cut the whitespace off it; if it is nothing else, it is what is searched."""
        text = self.code.constant(constant)
        core = text.strip() or text
        start = text.index(core)
        return Constant(source, target, text[:start], core, text[start + len(core) :], types)

    def _between(self, sources: Iterable[Field], targets: Iterable[Field]) -> list[Constant]:
        return [c for c in self.constants if c.source in sources and c.target in targets]

    def _marks(self, source: Field, target: Field, kind: Kind) -> Pattern:
        """Return a pattern of the constants between two fields that are not blank, the longest first."""
        found = [c for c in self._between((source,), (target,)) if c.core.strip()]
        found.sort(key=lambda c: -len(c.core))
        return Pattern([Alternative(parts_of(c.core), kind=kind, constant=c) for c in found])

    def _following(self, source: Field) -> Pattern:
        """Return a pattern of what may follow a field."""
        control = [Alternative([CONTROL.pattern], kind="control")] if source in CALL_FIELDS - DELIMITED else []
        if source == "key":
            befores = dict.fromkeys(values.before for values in self.grammar.values)
            found = [
                self._constant(
                    "key", "value", text, tuple(t for v in self.grammar.values if v.before == text for t in v.types)
                )
                for text in befores
            ]
            found.sort(key=lambda c: -len(c.core))
            return Pattern([*(Alternative(parts_of(c.core), constant=c) for c in found), *control])
        found = [
            c
            for c in self.constants
            if c.source == source and (c.core or source in DELIMITED or c.target in DELIMITED or source == "start")
        ]
        found += self._ends_of_one_call(source)
        found.sort(key=lambda c: (-len(c.core), c.target in ("text", "end")))
        return Pattern([*(alternative for c in found for alternative in self._alternatives(c)), *control])

    def _ends_of_one_call(self, source: Field) -> list[Constant]:
        """Return what closes one of several calls, before what closes all of them or opens the next one.

        That are the tags with which every constant begins that ends a call after a field.
        """
        if source not in self.grammar.last_fields or source in self._open_fields:
            return []
        constants = [constant for constant in self.constants if constant.source == source]
        ends = [constant for constant in constants if constant.target not in self.grammar.call[1:]]
        words = [_words(constant.core) for constant in ends]
        shared = [same[0] for same in takewhile(lambda same: len({*same}) == 1, zip(*words, strict=False))]
        while shared and not _TAG.fullmatch(shared[-1]):
            shared.pop()
        others = (_words(constant.core)[: len(shared)] for constant in constants if constant not in ends)
        is_whole = any(len(each) == len(shared) for each in words)
        if not shared or is_whole or shared in others or len({constant.lead for constant in ends}) > 1:
            return []
        return [Constant(source, "end", ends[0].lead, "".join(shared), "", closes_one=True)]

    def _alternatives(self, constant: Constant) -> list[Alternative]:
        """Return the alternatives for a constant, with what has to follow it."""
        is_blank = constant.source in DELIMITED and not constant.core.strip()
        parts = [] if is_blank else parts_of(constant.core)  # whitespace after such a field is skipped
        ahead: list[str] = []
        match constant.target:
            case "end":
                # A field may contain what closes one call, unless that has a control token.
                is_text = constant.source not in DELIMITED and not CONTROL.search(constant.core)
                ends_a_call = constant.source in CALL_FIELDS and constant.core
                is_last = not ends_a_call or (is_text and constant.closes_one)
                return [Alternative(parts, is_last=is_last, constant=constant)]
            case "object" if not self.grammar.calls_are_marked:  # a call begins with one of its own keys
                paths, layout = (self.grammar.name_path, self.grammar.arguments_path), self.grammar.layout[0]
                names = {path[0] for path in paths if path and path[0]}
                names |= {layout.split('"')[1]} if '"' in layout else set[str]()
                keys = [[SPACES, '"', *map(re.escape, name), '"', SPACES, ":"] for name in sorted(names)]
                return [Alternative(parts, [SPACES, r"\{", *key], constant=constant) for key in keys]
            case "arguments" | "object":
                ahead = [SPACES, r"\{"]
            case "python":
                ahead = [SPACES, r"[^\W\d]", WORD_REST, r"\("]
            case "name" | "id" if constant.source in ("start", "text", "reasoning"):
                ahead = [SPACES, r"\w"]
            case _:
                pass
        return [Alternative(parts, ahead, constant=constant)]


def _verbatim(texts: Iterable[str], kind: Kind) -> list[Alternative]:
    """Return alternatives for texts in which whitespace may not differ, the longest first."""
    longest_first = sorted({*texts}, key=lambda text: (-len(text), text))
    return [Alternative([*map(re.escape, text)], kind=kind) for text in longest_first]
