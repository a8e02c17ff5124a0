"""A reply grammar: the fields of a reply, and the constant text between each pair of adjacent fields, as data.

A grammar is measured from a chat template; one writer and one reader work for all grammars. Knows nothing about
templates and tokens.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias, cast

from .styles import JSON, Style

Field: TypeAlias = Literal[
    "start", "reasoning", "text", "id", "name", "echo", "arguments", "object", "python", "key", "value", "end"
]
"""A part of a reply. `start` and `end` are its ends. A call is an `object` (one JSON object with its name, arguments
and id), or a `python` call, or has a `name`, perhaps an `id` and the name again (`echo`), with `arguments` or with
pairs of `key` and `value`."""
CALL_FIELDS: frozenset[Field] = frozenset({"id", "name", "echo", "arguments", "object", "python", "key", "value"})
Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class Edge:
    """The constant text between two adjacent fields."""

    source: Field
    target: Field
    constant: str
    is_written: bool = True
    """Whether the template writes it; if not, it was derived, and is only read."""


@dataclass(frozen=True)
class Values:
    """How values of some JSON types are written."""

    types: tuple[str, ...]
    """Names of JSON types, as in a schema; an integer is a `number`."""
    before: str
    """The constant between the key and the value; empty in a `python` call."""
    style: Style


@dataclass(frozen=True)
class Grammar:
    """How replies are written.

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

    @cached_property
    def written(self) -> Mapping[tuple[Field, Field], str]:
        """The constants that the template writes, by the fields before and after."""
        return {(edge.source, edge.target): edge.constant for edge in reversed(self.edges) if edge.is_written}

    @cached_property
    def last_fields(self) -> tuple[Field, ...]:
        """The fields that a call may end with: its last one, or the one before its pairs if it has no arguments."""
        if "key" not in self.call:
            return self.call[-1:]
        return self.call[-3], self.call[-1]

    @property
    def unescaped_quote(self) -> str:
        """The quote around strings of a `python` call that the template does not escape; else empty."""
        styles = [values.style for values in self.values if "string" in values.types]
        is_raw = self.call == ("python",) and bool(styles) and styles[0].escapes == "none"
        return styles[0].quotes[0] if is_raw else ""

    @property
    def calls_are_marked(self) -> bool:
        """Whether the constants around calls distinguish them from text."""
        return bool(self.call) and any(e.constant.strip() for e in self.edges if e.target == self.call[0])

    def to_json(self) -> dict[str, Any]:
        """Return the grammar as a JSON value."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Grammar":
        """Return the grammar that `to_json` returned as `data`, also after it was written as JSON text."""
        given = {name: _tuples(value) for name, value in data.items()}
        given["edges"] = tuple(Edge(**edge) for edge in data["edges"])
        given["style"] = _style(data["style"])
        given["values"] = tuple(
            Values(tuple(values["types"]), values["before"], _style(values["style"])) for values in data["values"]
        )
        return cls(**given)


def _style(data: Mapping[str, Any]) -> Style:
    return Style(**{name: _tuples(value) for name, value in data.items()})


def _tuples(value: Any) -> Any:
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value
