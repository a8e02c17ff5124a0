"""A reply grammar: the fields of a reply, and the constant text between each pair of adjacent fields, as data.

A grammar is measured from a chat template; one writer and one reader work for all grammars. Knows nothing about
templates and tokens.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from envsdk.errors import TemplateUnsupported

from ._styles import CONTROL, JSON, VERBATIM, Style

Field: TypeAlias = Literal[
    "start", "reasoning", "text", "id", "name", "echo", "arguments", "object", "python", "key", "value", "end"
]
"""A part of a reply. `start` and `end` are its ends. A call is an `object` (one JSON object with its name, arguments
and id), or a `python` call, or has a `name`, perhaps an `id` and the name again (`echo`), with `arguments` or with
pairs of `key` and `value`."""
CALL_FIELDS: frozenset[Field] = frozenset({"id", "name", "echo", "arguments", "object", "python", "key", "value"})
Path: TypeAlias = tuple[str, ...]
_TOKEN = re.compile(r"</?[^<>\s]*>?|\[/?[^\[\]\s]*\]?|[\ud800-\udfff]|[^\s<\[\ud800-\udfff]+")


@dataclass(frozen=True)
class Edge:
    """The constant text between two adjacent fields."""

    source: Field
    target: Field
    constant: str
    is_written: bool = True
    """True if the template writes it; if not, it was derived, and is only read."""


@dataclass(frozen=True)
class Values:
    """The format of values of some JSON types."""

    types: tuple[str, ...]
    """Names of JSON types, as in a schema; an integer is a `number`."""
    before: str
    """The constant between the key and the value; empty in a `python` call."""
    style: Style


@dataclass(frozen=True)
class Grammar:
    """The format of replies.

    Attributes:
        edges: The constants between adjacent fields.
        call: The fields of a call, in order; empty if replies have no calls.
        controls: The control tokens in the constants. A constant that contains one is matched as that token.
        layout: How an `object` is written: constants and, at odd positions, the fields between them.
        name_path: Where in an `object` the name is, as keys; it ends with an empty key if the name is itself a key.
        arguments_path: Where the arguments are.
        id_path: Where the id is; None if it is not in the object.
        style: How `arguments`, or those of an `object`, are written.
        values: How a `value` is written, or an argument of a `python` call.
        name_in_id: The text before and after the name in an `id`, if the name is nowhere else; else None.
        first_id: The id of the first call if ids are counters; None if they are the calls' own ids.
        quotes_text: Whether arguments given as a string are written as a JSON string; otherwise they are verbatim.
        quoted: How a value of `arguments` is spelled inside the quotes of a string, if all values are written there, so
            that only the tools' schemas specify their types (FunctionGemma); else None.
        wrapper: What is written around the strings of a `value` that need it (`<![CDATA[` and `]]>`); else empty.
    """

    edges: tuple[Edge, ...]
    call: tuple[Field, ...] = ()
    controls: tuple[str, ...] = ()
    layout: tuple[str, ...] = ()
    name_path: Path = ()
    arguments_path: Path = ()
    id_path: Path | None = None
    style: Style = JSON
    values: tuple[Values, ...] = ()
    name_in_id: tuple[str, str] | None = None
    first_id: int | None = None
    quotes_text: bool = False
    quoted: Style | None = None
    wrapper: tuple[str, str] = ("", "")

    @cached_property
    def written(self) -> Mapping[tuple[Field, Field], str]:
        """The constants that the template writes, by the fields before and after."""
        return {(edge.source, edge.target): edge.constant for edge in reversed(self.edges) if edge.is_written}

    def values_for(self, value: Any) -> Values:
        """Return how a value of a call is written.

        Raises:
            TemplateUnsupported: If the template does not write values of its type.
        """
        match value:
            case str():
                kind = "string"
            case None | bool():
                kind = "null" if value is None else "boolean"
            case int() | float():
                kind = "number"
            case _:
                kind = "array" if isinstance(value, list) else "object"
        found = next((values for values in self.values if kind in values.types), None)
        if found is None:
            raise TemplateUnsupported(f"a value of the type {kind} is not rendered")
        return found

    @cached_property
    def last_fields(self) -> tuple[Field, ...]:
        """The fields that a call may end with: its last one, or the one before its pairs if it has no arguments."""
        if "key" not in self.call:
            return self.call[-1:]
        return self.call[-3], self.call[-1]

    @cached_property
    def call_tags(self) -> tuple[str, str] | None:
        """The tags that open and close every call; None if calls do not have a pair of tags each."""
        found: dict[str, list[list[str]]] = {"open": [], "between": [], "close": []}
        for edge in self.edges:
            if edge.source in ("start", "text") and edge.target in self.call[:1]:
                found["open"].append(tags(edge.constant)[:1])
            elif edge.source in self.last_fields and edge.target in self.call[:1]:
                found["between"].append(tags(edge.constant))
            elif edge.source in self.last_fields and edge.target == "end":
                found["close"].append(tags(edge.constant)[-1:])
        openers, closers = ({*map(tuple, found[name])} for name in ("open", "close"))
        if not (len(openers) == len(closers) == 1 and all((*openers, *closers))):
            return None
        opener, closer = *openers.pop(), *closers.pop()
        return (opener, closer) if all((closer, opener) in pairwise(t) for t in found["between"]) else None

    @property
    def unescaped_quote(self) -> str:
        """The quote around strings of a `python` call that the template does not escape; else empty."""
        styles = [values.style for values in self.values if "string" in values.types]
        is_raw = self.call == ("python",) and bool(styles) and styles[0].escapes == "none"
        return styles[0].quotes[0] if is_raw else ""

    @cached_property
    def calls_are_marked(self) -> bool:
        """True if the constants before calls distinguish them from text."""
        before = [e for e in self.edges if e.target in self.call[:1] and e.source in ("start", "text")]
        return bool(before) and all(edge.constant.strip() for edge in before)


def tags(constant: str) -> list[str]:
    """Return the tags and control tokens of a constant, in order; if it has none, the constant without space."""
    found = [token for token in _TOKEN.findall(constant) if token[0] in "<[" or CONTROL.match(token)]
    found = [token for token in found if len(token) > 1 or CONTROL.match(token)]
    core = constant.strip()
    return found or ([core] if core else [])


@dataclass(frozen=True)
class CallFormat:
    """The format in which a family writes calls.

    Attributes:
        fields: The fields of a call; see `Grammar.call`.
        opener: The constant before the first field.
        closers: The constant after a call, for each field that it may end with.
        inner: The constants between the fields of a call.
        after_text: The text between content and the first call.
        between: What is written between two calls.
        layout: See `Grammar.layout`; the keys of an `object` are `name` and `arguments`.
        values: See `Grammar.values`.
    """

    fields: tuple[Field, ...]
    opener: str
    closers: Mapping[Field, str]
    inner: tuple[Edge, ...] = ()
    after_text: str = "\n"
    between: str = "\n"
    layout: tuple[str, ...] = ()
    values: tuple[Values, ...] = ()


def tagged(calls: CallFormat | None = None, think: tuple[str, str] | None = None, before_text: str = "") -> Grammar:
    """Return the grammar of a family.

    Args:
        calls: How it writes calls, if it does.
        think: The constants before and after reasoning, if it writes any.
        before_text: The text before content or a call, at the start of a reply and after reasoning.
    """
    edges = [Edge("start", "text", before_text), Edge("text", "end", "")]
    if think:
        edges += [Edge("start", "reasoning", think[0]), Edge("reasoning", "text", think[1] + before_text)]
    if before_text:  # which is not written before the end
        edges += [Edge("start", "end", ""), *([Edge("reasoning", "end", think[1])] if think else [])]
    if calls is None:
        return Grammar(tuple(edges))
    first = calls.fields[0]
    edges += [
        Edge("start", first, before_text + calls.opener),
        Edge("text", first, calls.after_text + calls.opener),
        *([Edge("reasoning", first, think[1] + before_text + calls.opener)] if think else []),
    ]
    for last, closer in calls.closers.items():
        edges += [Edge(last, first, closer + calls.between + calls.opener), Edge(last, "end", closer)]
    edges += calls.inner
    return Grammar(
        tuple(edges),
        call=calls.fields,
        layout=calls.layout,
        name_path=("name",) if calls.layout else (),
        arguments_path=("arguments",) if calls.layout else (),
        values=calls.values,
    )


def values_of(before: str, words: Style = JSON) -> tuple[Values, ...]:
    """Return how values are written as text: strings verbatim, and everything else as JSON.

    Args:
        before: The constant between a key and its value.
        words: How booleans and null are spelled.
    """
    return (
        Values(("string",), before, VERBATIM),
        Values(("boolean", "null"), before, words),
        Values(("number", "array", "object"), before, JSON),
    )
