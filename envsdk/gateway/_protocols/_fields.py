"""Read the fields of a request, which may have any value: a field of a wrong type raises an error that names it."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, cast

import orjson
from pydantic import BaseModel, ValidationError

from ..._describing import encodable, what_is_invalid
from ..._visible import brief
from ...errors import ConfigError, ImageError, MissingPackage, RenderError, RequestError
from ...images import Image, PixelBudget
from ...messages import ImagePart, ToolSchema, check_json

Model = TypeVar("Model", bound=BaseModel)
Content: TypeAlias = "str | list[dict[str, str] | ImagePart]"
"""The content of a message, as `Message` takes it."""

LARGEST = 2**31 - 1  # of a number of tokens
_MAX_STOPS = 64
_KINDS: dict[Any, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def refused(field: str, reason: str) -> RequestError:
    """Return the error that refuses a request because of one field."""
    return RequestError(f"{field}: {reason}", field=field)


def not_of_kind(field: str, expected: str, given: Any) -> RequestError:
    """Return the error for a field whose value is not of the expected kind, without the value itself."""
    return refused(field, f"expected {expected}, got {_KINDS.get(type(given), 'an object')}")


def json_bytes(value: Any, field: str) -> bytes:
    """Return a value as JSON, in one form for equal objects with the same order of keys.

    Raises:
        RequestError: If it contains an unpaired surrogate, or is nested too deeply.
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

    def get(self, key: str, *kinds: type) -> Any:
        """Return a value of one of these types, or of any type if none is given."""
        value = self.value.get(key)
        if value is not None and kinds and type(value) not in kinds:
            raise not_of_kind(self.name(key), _KINDS[kinds[-1]], value)
        return value

    def text(self, key: str) -> str | None:
        """Return a string."""
        return self.get(key, str)

    def required_text(self, key: str) -> str:
        """Return a string that is required and must not be empty."""
        value = self.text(key)
        if not value:
            raise refused(self.name(key), "it is required: give a string that is not empty")
        return value

    def integer(self, key: str, low: int, high: int) -> int | None:
        """Return an integer from `low` to `high`."""
        value = self.get(key, int)
        if value is not None and not low <= value <= high:
            raise refused(self.name(key), f"expected an integer from {low} to {high}")
        return value

    def limit(self, key: str) -> int | None:
        """Return a number of tokens above 0; None if it is missing, or -1, which some clients send for any number."""
        value = self.integer(key, -1, LARGEST)
        if value == 0:
            raise refused(self.name(key), "expected a number above 0")
        return None if value == -1 else value

    def number(self, key: str, low: float, high: float, above_low: bool = False) -> float | None:
        """Return a number from `low` (or above it, with `above_low`) to `high`."""
        value = self.get(key, int, float)
        if value is not None and (not low <= value <= high or (above_low and value == low)):
            raise refused(self.name(key), f"expected a number {'above' if above_low else 'from'} {low} to {high}")
        return value

    def items(self, key: str) -> "list[Any]":
        """Return a list, empty if it is missing."""
        return self.get(key, list) or []

    def object(self, key: str) -> "Fields | None":
        """Return an object."""
        value = self.value.get(key)
        return None if value is None else Fields(value, self.name(key))

    def one_of(self, key: str, known: Sequence[str]) -> str | None:
        """Return a string that is one of a few."""
        value = self.text(key)
        if value is not None and value not in known:
            raise refused(self.name(key), f"got {brief(value, 40)}; expected {' or '.join(known)}")
        return value

    def stops(self, key: str) -> tuple[str, ...]:
        """Return strings at which sampling stops, given as one string or as a list."""
        given = self.value.get(key)
        stops: list[Any] = ([given] if given else []) if isinstance(given, str) else self.items(key)
        if len(stops) > _MAX_STOPS:
            raise refused(self.name(key), f"expected at most {_MAX_STOPS} strings, got {len(stops)}")
        for i, stop in enumerate(stops):
            if not isinstance(stop, str) or not stop:
                raise refused(f"{self.name(key)}[{i}]", "expected a string that is not empty")
        return tuple(stops)

    def content(self, key: str, texts: Mapping[str, str], image: str | None = None) -> Content:
        """Return the content of a message in OpenAI's form, given as a string or as a list of parts.

        Args:
            key: The field.
            texts: The types of parts that are text, each with the field that has the text.
            image: The type of parts that are images; None where images are not supported.

        Raises:
            RequestError: If a part is of another type, or an image cannot be read. The error names its index.
        """
        given = self.value.get(key)
        if isinstance(given, str):
            return given
        if not isinstance(given, list):
            raise not_of_kind(self.name(key), "a string or a list of parts", given)
        parts: list[str | ImagePart] = []
        for i, item in enumerate(cast("list[Any]", given)):
            part = Fields(item, f"{self.name(key)}[{i}]")
            kind = part.text("type")
            if kind is not None and kind == image:
                if part.get("file_id") is not None:
                    reason = "files are not stored here: give the image as a data: URL in `image_url`"
                    raise refused(part.name("file_id"), reason)
                # The field is an object with a `url` in Chat Completions, and a URL in Responses.
                is_object = isinstance(part.get("image_url"), dict)
                holder = Fields(part.get("image_url"), part.name("image_url")) if is_object else part
                holder.text("detail")
                parts.append(read_image(holder, "url" if is_object else "image_url", Image.from_url))
                continue
            if kind is None or kind not in texts:
                expected = "only text is" if image is None else f"only text and {image!r} are"
                raise refused(part.path, f"a part of type {brief(kind, 40)} is not supported: {expected}")
            if (text := part.text(texts[kind])) is None:
                raise refused(part.name(texts[kind]), "it is required")
            parts.append(text)
        return content_of(parts)


def valid(kind: type[Model], path: str, **fields: Any) -> Model:
    """Return a message or a call with the given fields.

    Raises:
        RequestError: If the fields are invalid.
    """
    try:
        return kind.model_validate(fields)
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


def check_unique(ids: Sequence[str | None], field: str) -> None:
    """Check that the calls or the results of one message have different ids.

    Raises:
        RequestError: If an id occurs twice.
    """
    if len(set(ids)) < len(ids):
        raise refused(field, "two in one message have the same id: give each call a different one")


class CallIds:
    """Gives ids to calls and results of clients that send none: a result answers the first open call of its name."""

    def __init__(self) -> None:
        self._open: list[tuple[Any, Any]] = []
        self._given = 0

    def of_call(self, name: Any, given: Any) -> Any:
        """Return the id of a call, in the order of the conversation.

        Args:
            name: The name of the function, as it was sent.
            given: The id that was sent, or None.
        """
        if given is None:
            self._given += 1
            given = f"unnamed_{self._given}"
        self._open.append((name, given))
        return given

    def of_result(self, name: Any, given: Any) -> Any:
        """Return the id of the call that a result answers, or the id that was sent; see `of_call`."""
        for call in self._open:
            if call[1] == given if given is not None else name in (None, call[0]):
                self._open.remove(call)
                return call[1]
        return given


# Images.


@dataclass(frozen=True, slots=True)
class RequestImages:
    """The settings for reading the images of one request.

    Attributes:
        check: Called with None before an image is decoded, and with the image then. It raises `RenderError` or
            `ConfigError` if the model does not take it.
        budget: The pixels that the images may have together.
    """

    check: Callable[[Image | None], object] = lambda image: None
    budget: PixelBudget = field(default_factory=PixelBudget)


request_images: ContextVar[RequestImages] = ContextVar("request_images")
"""The settings of the request that is read in this task, or in a thread that it started."""


def content_of(parts: "Sequence[str | ImagePart]") -> Content:
    """Return the content of a message with these parts: a single text becomes a string; several parts stay parts."""
    if all(isinstance(part, str) for part in parts) and len(parts) < 2:
        return "".join(str(part) for part in parts)
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]


def read_image(fields: Fields, key: str, read: Callable[[str, PixelBudget], Image]) -> ImagePart:
    """Return the image in a field; see `RequestImages`.

    Raises:
        RequestError: If it cannot be read, or the model does not take it.
    """
    images, text = request_images.get(RequestImages()), fields.required_text(key)
    try:
        images.check(None)
        image = read(text, images.budget)
        images.check(image)
    except (ConfigError, ImageError, MissingPackage, RenderError) as error:
        raise refused(fields.name(key), str(error)) from error
    return ImagePart(image)
