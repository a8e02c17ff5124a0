"""Reads the values of a call that a model family writes as bare text, using the schema of the tool's parameters.

XML (Qwen3.5 and later, Nemotron) and GLM write a string without quotes, so the text `12` may be a number or a string,
and only the schema decides. Knows nothing about tokens or tags.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from envsdk._visible import brief
from envsdk.messages import ToolSchema

_ALL = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_STRING = frozenset({"string"})
_KINDS = {"NoneType": "null", "bool": "boolean", "int": "integer", "float": "number", "str": "string", "list": "array"}
"""The JSON types of Python's types; every other one is an object."""


class Admitted(NamedTuple):
    """The values that a schema admits, by its types and enumerated values."""

    types: frozenset[str]
    """The JSON types of which every value is admitted."""
    values: frozenset[tuple[str, str]] = frozenset()
    """Further single values that are admitted, as (type, JSON text)."""

    def __and__(self, other: "Admitted") -> "Admitted":
        shared = {v for v in self.values if other.has(v)} | {v for v in other.values if self.has(v)}
        return Admitted(self.types & other.types, frozenset(shared))

    def has(self, value: tuple[str, str]) -> bool:
        """Return whether a value, given as (type, JSON text), is admitted."""
        return value[0] in self.types or value in self.values

    @property
    def kinds(self) -> frozenset[str]:
        """The JSON types of which at least one value is admitted."""
        return self.types | {kind for kind, _ in self.values}


_ANYTHING = Admitted(_ALL)
_NOTHING = Admitted(frozenset())


class ArgumentTypes:
    """The types of the arguments of an episode's tools.

    How the text of a value is read depends on what the parameter's schema admits. `$ref`, `anyOf`, `oneOf`, `allOf`,
    `enum`, `const` and lists of types are followed. The items of arrays and objects, and bounds, are not checked.

    - Only strings: the text, verbatim.
    - No strings: the text parsed. If it is not a value, the text and an error.
    - Strings and other values (`string | null`, a parameter without a type): the text parsed if the result is
      an admitted value other than a string and has no whitespace around it, else the text, verbatim. So for
      `string | null`, `null` is null and `12` is a string. The string `null` cannot be expressed there: the family
      writes it as it writes null.
    - No schema (an unknown tool or parameter), or a type that JSON Schema does not have: the text, verbatim.

    The parsers of vLLM and SGLang differ: they read only the key `type` (they take a union for a string), take `null`
    for None even in a string, and silently pass on a value that cannot be converted as a string, or as False.

    Args:
        tools: JSON schemas of the tools.
        parse: Reads the text of a value that cannot be a string; it raises a ValueError if it cannot.
        parse_exactly: Reads the text of a value that may also be a string, which is a value only in the family's own
            spelling.
    """

    def __init__(
        self, tools: Sequence[ToolSchema], parse: Callable[[str], Any], parse_exactly: Callable[[str], Any]
    ) -> None:
        functions = [cast("Mapping[str, Any]", tool.get("function", tool)) for tool in tools]
        self._parameters = {function["name"]: function.get("parameters") for function in functions}
        self._parse = parse
        self._parse_exactly = parse_exactly
        self._admitted: dict[tuple[str, str], Admitted | None] = {}

    def value(self, tool: str, key: str, text: str) -> tuple[Any, str | None]:
        """Read a value; return an error as well if the schema admits no reading of it."""
        if (tool, key) not in self._admitted:
            parameters = self._parameters.get(tool)
            schema = _fields(_fields(parameters).get("properties")).get(key)
            found = _NOTHING if schema is None else _admitted(schema, parameters, {})
            self._admitted[tool, key] = found if found.kinds else None
        admitted = self._admitted[tool, key]
        if admitted is None or (kinds := admitted.kinds) == _STRING:
            return text, None
        may_be_text = "string" in kinds
        try:
            value = self._parse_exactly(text) if may_be_text else self._parse(text)
        except (ValueError, RecursionError) as error:
            if may_be_text:
                return text, None
            expected = " or ".join(sorted(kinds))
            return (
                text,
                f"{tool}: the argument {key!r} is {brief(text, 40)}, which is not JSON ({error}); expected {expected}",
            )
        if not may_be_text:
            return value, None
        is_value = not isinstance(value, str) and text == text.strip() and admitted.has(_literal(value))
        return (value if is_value else text), None


def _admitted(schema: Any, root: Any, references: dict[str, Admitted]) -> Admitted:
    """Return what a schema admits.

    Args:
        schema: The schema.
        root: The schema that its references point into.
        references: What known references admit; a reference that is being followed adds nothing by itself.
    """
    if schema is False:
        return _NOTHING
    fields = _fields(schema)
    declared = fields.get("type")
    names = {name for name in ([declared] if isinstance(declared, str) else _items(declared)) if isinstance(name, str)}
    known = names & _ALL or _STRING
    found = Admitted(frozenset({*known, "integer"}) if "number" in known else frozenset(known)) if names else _ANYTHING
    if "enum" in fields:
        found &= Admitted(frozenset(), frozenset(map(_literal, _items(fields["enum"]))))
    if "const" in fields:
        found &= Admitted(frozenset(), frozenset({_literal(fields["const"])}))
    reference = fields.get("$ref")
    if isinstance(reference, str):
        if reference not in references:
            references[reference] = _NOTHING
            references[reference] = _admitted(_target(reference, root), root, references)
        found &= references[reference]
    for part in _items(fields.get("allOf")):
        found &= _admitted(part, root, references)
    for key in ("anyOf", "oneOf"):
        if options := _items(fields.get(key)):
            admitted = [_admitted(option, root, references) for option in options]
            types = frozenset(kind for each in admitted for kind in each.types)
            found &= Admitted(types, frozenset(value for each in admitted for value in each.values))
    return found


def _target(reference: str, root: Any) -> Any:
    """Return what a reference such as `#/$defs/City` points to; a target that is not found admits anything."""
    if not reference.startswith("#"):
        return {}
    target = root
    for step in reference[1:].split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, Mapping) or key not in target:
            return {}
        target = cast("Mapping[str, Any]", target)[key]
    return target


def _fields(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _items(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _literal(value: object) -> tuple[str, str]:
    """Return a value as its JSON type and its JSON text."""
    name = type(value).__name__
    return _KINDS.get(name, "object"), json.dumps(value, sort_keys=True, default=repr)
