"""Arguments for tool calls, generated from the JSON schema of a tool: valid ones and unusual ones."""

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from ..messages import ToolSchema

Schema: TypeAlias = Mapping[str, Any]

ODD_VALUES: tuple[Any, ...] = (None, True, 0, -1, 10**30, 1.5, "", "text", [], [None], {}, {"a": {"b": []}})
"""Values of all types. Most of them have the wrong type for any given parameter."""


def name_of(tool: ToolSchema) -> str:
    """Return the name of a tool."""
    return tool.get("function", tool)["name"]


def parameters_of(tool: ToolSchema) -> Schema:
    """Return the schema of a tool's arguments, which is an object."""
    return tool.get("function", tool).get("parameters") or {}


def right_arguments(tool: ToolSchema, text: str = "x") -> dict[str, Any]:
    """Return valid arguments: the required ones, with `text` for every string."""
    schema = parameters_of(tool)
    properties = properties_of(schema)
    return {name: _example(properties.get(name, {}), schema, text) for name in schema.get("required") or ()}


def texts_in(tool: ToolSchema, text: str) -> dict[str, Any]:
    """Return arguments with `text` for every string, including optional ones."""
    schema = parameters_of(tool)
    return {name: _example(value, schema, text) for name, value in properties_of(schema).items()}


def properties_of(schema: Schema) -> Mapping[str, Schema]:
    """Return the schemas of an object's properties by name."""
    return cast("Mapping[str, Schema]", schema.get("properties") or {})


def _example(schema: Schema, root: Schema, text: str, depth: int = 0) -> Any:
    """Return a value that is valid by the type, choices and bounds of a schema."""
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
    """Return 1, or the nearest number within the bounds."""
    most = schema.get("maximum", schema.get("exclusiveMaximum", 2) - 1)
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
    has_least = "minimum" in schema or "exclusiveMinimum" in schema
    return max(least, min(1, most)) if has_least else min(1, most)
