"""Read the fields of a request, which may hold anything: a field of a wrong type is an error that names it."""

import json
import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, TypeVar, cast

import orjson
from pydantic import BaseModel, ValidationError

from ...errors import RequestError, encodable, what_is_invalid
from ...messages import ToolSchema, check_json

Model = TypeVar("Model", bound=BaseModel)

_MAX_STOPS = 64
_MAX_NAME = 256
_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
}


def refused(field: str, reason: str) -> RequestError:
    """Return the error that refuses a request because of one field."""
    return RequestError(f"{field}: {reason}", field=field)


def not_of_kind(field: str, expected: str, given: Any) -> RequestError:
    """Return the error that a field has a value of another kind than expected, without the value itself."""
    return refused(field, f"expected {expected}, got {_kind(given)}")


def _kind(value: Any) -> str:
    return next((name for kind, name in _KINDS.items() if type(value) is kind), "an object")


def check_body(body: Any, unchecked: Container[str]) -> "dict[str, Any]":
    """Check that a request is an object, and that its fields can be written as JSON and compared.

    Args:
        body: The request.
        unchecked: The fields that are checked later.

    Raises:
        RequestError: If it is not an object, contains half of a surrogate pair, or is nested too deeply. The error
            names the field.
    """
    if not isinstance(body, dict):
        raise RequestError(f"the request has to be a JSON object, but it is {_kind(body)}")
    fields = cast("dict[str, Any]", body)
    for key, value in fields.items():
        if key not in unchecked:
            json_bytes({key: value}, key)
    return fields


def json_bytes(value: Any, field: str) -> bytes:
    """Return a value as JSON, in one form for equal objects with the same order of keys.

    Raises:
        RequestError: If it contains half of a surrogate pair, or is nested too deeply.
    """
    try:
        return orjson.dumps(value)  # fast, but it refuses long integers, too
    except (TypeError, RecursionError):
        try:
            check_json(value)
        except ValueError as error:
            raise refused(encodable(field), f"it is not valid JSON: {error}") from None
        return json.dumps(value).encode()


class Fields:
    """An object in a request, read field by field.

    A method returns None for a field that is missing or null, and raises `RequestError` for a value of a wrong type.

    Attributes:
        value: The object.
        path: Its place in the request, such as `messages[3]`; empty for the request itself.
    """

    __slots__ = ("path", "value")

    def __init__(self, value: Any, path: str = "") -> None:
        if not isinstance(value, dict):
            raise not_of_kind(path, "an object", value)
        self.value = cast("dict[str, Any]", value)
        self.path = path

    def name(self, key: str) -> str:
        """Return a field's place in the request."""
        return f"{self.path}.{key}" if self.path else key

    def get(self, key: str) -> Any:
        """Return a field's value unchecked."""
        return self.value.get(key)

    def text(self, key: str) -> str | None:
        """Return a text."""
        value = self.value.get(key)
        if value is not None and not isinstance(value, str):
            raise not_of_kind(self.name(key), "a text", value)
        return value

    def required_text(self, key: str) -> str:
        """Return a text that has to be there and must not be empty."""
        value = self.text(key)
        if not value:
            raise refused(self.name(key), "it is required: give a text that is not empty")
        return value

    def boolean(self, key: str) -> bool | None:
        """Return a boolean."""
        value = self.value.get(key)
        if value is not None and not isinstance(value, bool):
            raise not_of_kind(self.name(key), "a boolean", value)
        return value

    def integer(self, key: str, low: int, high: int) -> int | None:
        """Return an integer from `low` to `high`."""
        value = self.value.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise not_of_kind(self.name(key), "an integer", value)
        if not low <= value <= high:
            raise refused(self.name(key), f"expected an integer from {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float, above_low: bool = False) -> float | None:
        """Return a number from `low` (or above it, with `above_low`) to `high`."""
        value = self.value.get(key)
        if value is None:
            return None
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise not_of_kind(self.name(key), "a number", value)
        if not low <= value <= high or (above_low and value == low):
            raise refused(self.name(key), f"expected a number {'above' if above_low else 'from'} {low} to {high}")
        return value

    def items(self, key: str) -> "list[Any]":
        """Return a list, empty if it is missing."""
        value = self.value.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise not_of_kind(self.name(key), "a list", value)
        return cast("list[Any]", value)

    def object(self, key: str) -> "Fields | None":
        """Return an object."""
        value = self.value.get(key)
        return None if value is None else Fields(value, self.name(key))

    def one_of(self, key: str, known: Sequence[str]) -> str | None:
        """Return a text that is one of a few."""
        value = self.text(key)
        if value is not None and value not in known:
            raise refused(self.name(key), f"got {value!r:.40}; expected {' or '.join(known)}")
        return value

    def stops(self, key: str) -> tuple[str, ...]:
        """Return strings at which sampling stops, given as one text or as a list."""
        given = self.value.get(key)
        stops: list[Any] = [given] if isinstance(given, str) else self.items(key)
        if len(stops) > _MAX_STOPS:
            raise refused(self.name(key), f"expected at most {_MAX_STOPS} strings, got {len(stops)}")
        for i, stop in enumerate(stops):
            if not isinstance(stop, str) or not stop:
                raise refused(f"{self.name(key)}[{i}]", "expected a text that is not empty")
        return tuple(stops)


def valid(kind: type[Model], path: str, **fields: Any) -> Model:
    """Return a message or a call with the given fields.

    Raises:
        RequestError: If the fields are invalid.
    """
    try:
        return kind(**fields)
    except ValidationError as error:
        raise refused(path, what_is_invalid(error)) from None


def tool_schema(function: Fields, parameters: str) -> ToolSchema:
    """Return a tool in the OpenAI form, with its name, description and parameters only.

    Args:
        function: The object that describes the tool.
        parameters: The name of the field that has the JSON schema of the arguments.

    Raises:
        RequestError: If a field is invalid.
    """
    schema: dict[str, Any] = {"name": function.required_text("name")}
    if (description := function.text("description")) is not None:
        schema["description"] = description
    if (given := function.object(parameters)) is not None:
        try:
            check_json(given.value)
        except ValueError as error:
            raise refused(given.path, str(error)) from None
        schema["parameters"] = given.value
    return {"type": "function", "function": schema}


def check_names(tools: Sequence[ToolSchema], field: str) -> None:
    """Check that each tool has a name of its own.

    Raises:
        RequestError: If two tools have the same name.
    """
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        name = tool["function"]["name"]
        if name in seen:
            raise refused(f"{field}[{i}]", f"another tool has the name {name!r:.80}, too")
        seen.add(name)


def check_choice(choice: str | Mapping[str, str], tools: Sequence[ToolSchema]) -> None:
    """Check that a tool that has to be called is among the tools.

    Raises:
        RequestError: If there are no tools, or none of this name.
    """
    if isinstance(choice, str):
        if choice == "required" and not tools:
            raise refused("tool_choice", "a call is required, but the request has no tools")
    elif choice["name"] not in {tool["function"]["name"] for tool in tools}:
        raise refused("tool_choice", f"{choice['name']!r:.80} is not among the tools of the request")


def check_unique(ids: Sequence[str | None], field: str) -> None:
    """Check that the calls or the results of one message have different ids.

    Raises:
        RequestError: If an id comes twice.
    """
    if len(set(ids)) < len(ids):
        raise refused(field, "an id comes twice in one message: give each call an id of its own")


def header(headers: Mapping[str, str], name: str) -> str | None:
    """Return a header's value without space around it; None if it is missing or empty.

    Raises:
        RequestError: If it is too long, or contains characters that cannot be printed.
    """
    value = (headers.get(name) or "").strip()
    if len(value) > _MAX_NAME or not value.isprintable():
        raise refused(name, f"expected at most {_MAX_NAME} printable characters")
    return value or None


def finite(value: float) -> float:
    """Return a log-probability as JSON and OpenAI's clients can read it: -9999 for minus infinity."""
    return value if math.isfinite(value) else -9999.0
