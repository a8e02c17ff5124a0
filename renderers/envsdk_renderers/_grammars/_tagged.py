"""Makes the grammars of model families: reasoning and calls between tags, in the order reasoning, text, calls."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ._grammar import Edge, Field, Grammar, Values
from ._styles import JSON, VERBATIM, Style


@dataclass(frozen=True)
class Calls:
    """How a family writes calls.

    Attributes:
        fields: The fields of a call; see `Grammar.call`.
        opener: The constant before the first field.
        closers: The constant after a call, for each field that it may end with.
        inner: The constants between the fields of a call.
        after_text: What is written between a text and the first call.
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


def tagged(calls: Calls | None = None, think: tuple[str, str] | None = None, before_text: str = "") -> Grammar:
    """Return the grammar of a family.

    Args:
        calls: How it writes calls, if it does.
        think: The constants before and after reasoning, if it writes any.
        before_text: What is written before a text or a call, at the start of a reply and after reasoning.
    """
    edges = [Edge("start", "text", before_text), Edge("text", "end", "")]
    if think:
        edges += [Edge("start", "reasoning", think[0]), Edge("reasoning", "text", think[1] + before_text)]
    if before_text:  # which is not written before the end
        edges += [Edge("start", "end", ""), *([Edge("reasoning", "end", think[1])] if think else [])]
    if calls is None:
        return Grammar(tuple(edges))
    edges += [*_around(calls, think, before_text), *calls.inner]
    return Grammar(
        tuple(edges),
        call=calls.fields,
        layout=calls.layout,
        name_path=("name",) if calls.layout else (),
        arguments_path=("arguments",) if calls.layout else (),
        values=calls.values,
    )


def _around(calls: Calls, think: tuple[str, str] | None, before_text: str) -> Iterator[Edge]:
    first = calls.fields[0]
    yield Edge("start", first, before_text + calls.opener)
    yield Edge("text", first, calls.after_text + calls.opener)
    if think:
        yield Edge("reasoning", first, think[1] + before_text + calls.opener)
    for last, closer in calls.closers.items():
        yield Edge(last, first, closer + calls.between + calls.opener)
        yield Edge(last, "end", closer)


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
