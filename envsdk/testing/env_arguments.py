"""Arguments for tools that are known by their JSON schema alone: right ones, as far as a schema tells, and odd ones."""

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from ..messages import ToolSchema

Schema: TypeAlias = Mapping[str, Any]

ODD_VALUES: tuple[Any, ...] = (None, True, 0, -1, 10**30, 1.5, "", "text", [], [None], {}, {"a": {"b": []}})
"""Values of every type; whatever the type of a parameter is, most of them are of another."""


def name_of(tool: ToolSchema) -> str:
    """The name of a tool."""
    return tool.get("function", tool)["name"]


def parameters_of(tool: ToolSchema) -> Schema:
    """The schema of its arguments, an object."""
    return tool.get("function", tool).get("parameters") or {}


def right_arguments(tool: ToolSchema, text: str = "x") -> dict[str, Any]:
    """Arguments that the schema allows: those that it requires, with a text in place of every string."""
    schema = parameters_of(tool)
    properties = properties_of(schema)
    return {name: _example(properties.get(name, {}), schema, text) for name in schema.get("required") or ()}


def texts_in(tool: ToolSchema, text: str) -> dict[str, Any]:
    """Arguments with a text in every place that may hold one, whether it is required or not."""
    schema = parameters_of(tool)
    return {name: _example(value, schema, text) for name, value in properties_of(schema).items()}


def properties_of(schema: Schema) -> Mapping[str, Schema]:
    """The schemas of an object's properties, by name."""
    return cast("Mapping[str, Schema]", schema.get("properties") or {})


def _example(schema: Schema, root: Schema, text: str, depth: int = 0) -> Any:
    """A value that a schema allows, as far as its type, choices and bounds tell."""
    if depth > 8:
        return None
    if "$ref" in schema:
        definitions: Schema = root.get("$defs") or {}
        return _example(definitions.get(str(schema["$ref"]).rpartition("/")[2], {}), root, text, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            options = [option for option in schema[key] if option.get("type") != "null"]
            return _example((options or schema[key])[0], root, text, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    match schema.get("type", "string"):
        case "integer":
            return int(_number(schema))
        case "number":
            return _number(schema)
        case "boolean":
            return True
        case "null":
            return None
        case "array":
            count = max(1, int(schema.get("minItems", 1)))
            return [_example(schema.get("items") or {}, root, text, depth + 1)] * count
        case "object":
            properties = properties_of(schema)
            required = schema.get("required") or ()
            return {name: _example(properties.get(name, {}), root, text, depth + 1) for name in required}
        case _:
            return text.ljust(int(schema.get("minLength", 0)), "x")[: schema.get("maxLength")]


def _number(schema: Schema) -> float:
    """A number within the bounds: 1, or the one that is next to it."""
    most = schema.get("maximum", schema.get("exclusiveMaximum", 2) - 1)
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
    has_least = "minimum" in schema or "exclusiveMinimum" in schema
    return max(least, min(1, most)) if has_least else min(1, most)
