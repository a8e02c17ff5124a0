"""Chat messages that environments and models exchange. This module knows nothing about tokens.

The fields follow the OpenAI chat format, with `reasoning` next to the content.
"""

import copy
import json
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    field_serializer,
    field_validator,
    model_validator,
)

from ._arguments import explain_arguments
from ._visible import brief, type_of
from .images import Image, ImageSource

__all__ = ["Arguments", "ContentPart", "ImagePart", "Message", "Role", "TextPart", "ToolCall", "ToolSchema", "text_of"]

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]
ToolSchema: TypeAlias = Mapping[str, Any]
"""The JSON schema of a tool in the OpenAI form: `{"type": "function", "function": {"name": ..., ...}}`."""


def check_text(text: str) -> str:
    """Return a string unchanged if UTF-8 can encode it.

    Raises:
        ValueError: If it contains an unpaired surrogate.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the text contains an unpaired surrogate: {error}") from error
    return text


Text: TypeAlias = Annotated[str, AfterValidator(check_text)]
"""A string that UTF-8 can encode."""


_MAX_DEPTH = 64
_MAX_LISTED = 32  # tools in an error message, since each call of a reply may have one
_MAX_INTEGER = 10**4000  # Python does not read or write longer integers as text by default


def check_json(value: Any, depth: int = 0) -> Any:
    """Return a value unchanged if JSON can represent it, and it is not too deeply nested or too long to be written.

    Args:
        value: The value.
        depth: How deeply the value is nested.

    Raises:
        ValueError: If it is not valid. The message may reach the model as the answer to a tool call, so changing the
            message changes prompts.
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels")
    match value:
        case str():
            check_text(value)
        case dict():
            for key, item in cast("dict[Any, Any]", value).items():
                if not isinstance(key, str):
                    raise ValueError(f"the key {key!r} is not a string")
                check_text(key)
                check_json(item, depth + 1)
        case list():
            for item in cast("list[Any]", value):
                check_json(item, depth + 1)
        case int():  # a boolean is one, too
            if abs(value) > _MAX_INTEGER:
                raise ValueError("an integer has more than 4,000 digits")
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{value} is not a JSON number")
        case None:
            pass
        case _:
            raise ValueError(f"{type_of(value)} is not a JSON value")
    return cast("Any", value)


def read_arguments(given: Any) -> Any:
    """Return the object that a JSON string contains, and anything else unchanged.

    A string stays a string if reading it would lose something: a duplicate key, or a number that JSON cannot represent.
    """
    if not isinstance(given, str):
        return given
    try:
        value: Any = json.loads(given, object_pairs_hook=with_unique_keys)
        check_json(value)
    except (ValueError, RecursionError):
        return given
    return cast("Any", value) if isinstance(value, dict) else given


def with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object made of its pairs, as an `object_pairs_hook` of `json.loads`.

    Raises:
        ValueError: If a key comes twice, because the first value would be lost.
    """
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key comes twice")
    return value


Arguments: TypeAlias = Annotated[dict[str, Any], AfterValidator(check_json)]
"""The arguments of a call by name; all values are JSON values."""


_FROZEN = ConfigDict(frozen=True, extra="forbid", defer_build=True)  # built at the first use, not at import


class TextPart(BaseModel):
    """A text part of a message's content.

    Attributes:
        type: Always `"text"`.
        text: The text.
    """

    model_config = _FROZEN

    type: Literal["text"] = "text"
    text: Text

    def to_openai(self) -> dict[str, Any]:
        """Return the part in the OpenAI form."""
        return {"type": "text", "text": self.text}


class ImagePart(BaseModel):
    """An image part of a message's content: `ImagePart(data="plot.png")`.

    Attributes:
        type: Always `"image"`.
        data: The image: its bytes as PNG or JPEG, hash and size. It is given as the bytes of a file in a format that
            Pillow reads, a path, an image of Pillow, or an array of uint8 with the shape (height, width, 3).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, defer_build=True)

    type: Literal["image"] = "image"
    data: Image

    def __init__(self, data: ImageSource, type: Literal["image"] = "image") -> None:
        is_reference = isinstance(data, Mapping)  # as in a record
        read = Image.from_reference(cast("Mapping[str, Any]", data)) if is_reference else Image.read(data)
        super().__init__(data=read, type=type)

    @field_serializer("data")
    def _refer(self, data: Image) -> dict[str, Any]:
        return data.reference()

    def to_openai(self) -> dict[str, Any]:
        """Return the part in the OpenAI form, with the image as a `data:` URL."""
        return {"type": "image_url", "image_url": {"url": self.data.url}}


ContentPart: TypeAlias = Annotated[TextPart | ImagePart, Field(discriminator="type")]
"""The kinds of content parts. A part of another kind is refused, never dropped."""


def read_part(part: Any) -> ContentPart:
    """Return a content part, which may be given in the OpenAI form.

    Raises:
        ImageError: If an image cannot be read, or is at a URL that is not a `data:` URL.
        ValueError: If it is a part of another kind; `Message` reports it as a pydantic.ValidationError.
    """
    if isinstance(part, (TextPart, ImagePart)):
        return part
    fields = cast("Mapping[str, Any]", part if isinstance(part, Mapping) else {})
    match fields:
        case {"type": "image_url", "image_url": str(url)} | {"type": "image_url", "image_url": {"url": str(url)}}:
            return ImagePart(Image.from_url(url))
        case {"type": "image", "data": data} if len(fields) == 2:
            _refuse_path(fields)
            return ImagePart(data)
        case {"text": _} if fields.get("type") in ("text", None):
            return TextPart.model_validate(part)
        case _:
            raise ValueError(
                f"the content contains {type_of(part)}, {brief(part)}; a message holds texts and images, and no "
                "audio, video or files: expected TextPart(text=...), ImagePart(data=...), or in the OpenAI form "
                "{'type': 'text', 'text': ...} or {'type': 'image_url', 'image_url': {'url': 'data:...'}}"
            )


def _refuse_path(part: Any) -> None:
    """Refuse a mapping that names a file: data that others wrote must not choose which file is opened."""
    match part:
        case {"data": (str() | Path()) as path}:
            raise ValueError(
                f"an image is given as the path {brief(str(path))} in a mapping; expected ImagePart(data=PATH)"
            )
        case _:
            pass


def text_of(parts: Sequence[ContentPart]) -> str:
    """Return the text parts, joined: the `content` of a message with these parts."""
    return "".join(part.text for part in parts if isinstance(part, TextPart))


class ToolCall(BaseModel):
    """A tool call by the model.

    Attributes:
        name: The tool's name; empty if the call could not be read.
        arguments: The arguments by name; or the text that the model sampled instead of an object, verbatim.
            `from_openai` reads JSON text; a string given to `ToolCall` directly stays a string.
        id: The call's id, in model families that have call ids; else None.
        error: What is wrong with the call (not JSON, unknown tool, missing argument, not closed), or None.
        raw: The sampled text of the call, if the model family would render the call differently; else None.
    """

    model_config = _FROZEN

    name: Text
    arguments: Arguments | Text = Field(default_factory=dict[str, Any])
    id: Text | None = None
    error: str | None = None
    raw: Text | None = None

    @classmethod
    def from_openai(cls, data: Mapping[str, Any]) -> "ToolCall":
        """Return a call that is given in the OpenAI form, or as a flat mapping with `name` and `arguments`.

        As in inference servers, arguments that are the JSON text of an object become that object, which chat templates
        expect. Any other string stays a string.

        Raises:
            pydantic.ValidationError: If `data` is not a call.
        """
        function: Any = data.get("function", data)
        given = cast("Mapping[str, Any]", function) if isinstance(function, Mapping) else {"name": function}
        arguments = read_arguments(given.get("arguments", {}))
        return cls.model_validate({"name": given.get("name"), "arguments": arguments, "id": data.get("id")})

    def to_openai(self) -> dict[str, Any]:
        """Return the call in the OpenAI form, with its arguments as a dict, which chat templates expect.

        Arguments that are a string stay a string.
        """
        call: dict[str, Any] = {"type": "function", "function": {"name": self.name, "arguments": self.arguments}}
        return call if self.id is None else {"id": self.id, **call}


class Message(BaseModel):
    """A chat message. It is immutable.

    Attributes:
        role: The author of the message: `system`, `developer`, `user`, `assistant` or `tool`.
        content: The text. It may be given as a list of typed parts, which `parts` then holds: texts and images.
        reasoning: The model's thinking. None means that there is no think block; an empty string is an empty block.
        tool_calls: The tool calls of an assistant message, in order.
        tool_call_id: In a tool message, the id of the call that it answers.
        name: In a tool message, the tool's name; in other messages, the author's name.
        parts: The typed parts of the content, if it was given as parts; else None.
        errors: What could not be read in a sampled message, such as a block that was not closed or tokens after the
            end. Errors of single calls are also in `ToolCall.error`. An error that occurs several times is listed once.
        open_block: The block (`reasoning` or `tool_call`) in which a sampled message ended, because it was cut, stopped
            at a stop string, or did not close the block; else None.
    """

    model_config = _FROZEN

    role: Role
    content: Text = ""
    reasoning: Text | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: Text | None = None
    name: Text | None = None
    parts: tuple[ContentPart, ...] | None = None
    errors: tuple[str, ...] = ()
    open_block: Literal["reasoning", "tool_call"] | None = None
    _new_text: object = PrivateAttr(default=None)  # neither compared nor stored

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.__dict__ == other.__dict__

    @model_validator(mode="before")
    @classmethod
    def _content_of_parts(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        fields = cast("dict[str, Any]", data)
        content = fields.get("content", "")
        if content is None:
            return {name: value for name, value in fields.items() if name != "content"}
        if isinstance(content, (list, tuple)) and fields.get("parts") is None:
            parts = [read_part(part) for part in cast("Sequence[Any]", content)]
            return {**fields, "content": text_of(parts), "parts": parts}
        for part in cast("Sequence[Any]", parts) if isinstance(parts := fields.get("parts"), (list, tuple)) else ():
            _refuse_path(part)
        return fields

    @model_validator(mode="after")
    def _fits_its_role(self) -> Self:
        if self.role != "assistant" and (self.tool_calls or self.reasoning is not None):
            raise ValueError(
                f"a {self.role} message has reasoning or tool calls, which only an assistant message may have"
            )
        if self.parts is not None and text_of(self.parts) != self.content:
            raise ValueError("content and parts have different texts: give only one of them")
        if self.role == "assistant" and self.images:
            raise ValueError("an assistant message has an image; the model samples only text")
        return self

    @field_validator("tool_calls", mode="before")
    @classmethod
    def _calls_in_either_form(cls, calls: Any) -> Any:
        if not isinstance(calls, (list, tuple)):
            return () if calls is None else calls
        read: list[Any] = []
        for call in cast("Sequence[Any]", calls):
            is_openai = isinstance(call, Mapping) and "function" in call
            read.append(ToolCall.from_openai(cast("Mapping[str, Any]", call)) if is_openai else call)
        return tuple(read)

    @property
    def images(self) -> tuple[Image, ...]:
        """The images of the content, in order."""
        return () if self.parts is None else tuple(part.data for part in self.parts if isinstance(part, ImagePart))

    @property
    def new_text(self) -> str:
        """The text that the model sampled since the environment's last turn, with control tokens by their names.

        It omits a stop token at the end, but contains what was sampled after a stop string. For a message that was not
        sampled, it is the content.
        """
        return self.content if self._new_text is None else str(self._new_text)

    def with_reasoning(self, reasoning: str | None) -> Self:
        """Return the message with another reasoning (None: without any), or itself if it has that already."""
        return self if self.reasoning == reasoning else self.model_copy(update={"reasoning": reasoning})

    def as_reply(self, new_text: object) -> "Message":
        """Return a copy for the author: `new_text` is `str(new_text)`, and its calls' arguments may be modified."""
        calls = [call.model_copy(update={"arguments": copy.deepcopy(call.arguments)}) for call in self.tool_calls]
        reply = self.model_copy(update={"tool_calls": tuple(calls)})
        reply._new_text = new_text
        return reply

    @classmethod
    def calling(
        cls, tool: str, arguments: Mapping[str, Any] | None = None, *, reasoning: str | None = None
    ) -> "Message":
        """Return an assistant message that calls a tool, such as for `Env.reference_reply`.

        Args:
            tool: The tool's name.
            arguments: The arguments by name.
            reasoning: The message's reasoning, if any.
        """
        call = ToolCall(name=tool, arguments=dict(arguments or {}))
        return cls(role="assistant", reasoning=reasoning, tool_calls=(call,))

    @classmethod
    def from_openai(cls, data: Mapping[str, Any]) -> "Message":
        """Return a message that is given in the OpenAI chat format.

        Args:
            data: A mapping with `role`, `content` (text, parts or None) and, optionally, `reasoning_content` (or
                `reasoning`), `tool_calls`, `tool_call_id` and `name`.

        Raises:
            pydantic.ValidationError: If a role, a content part or a key is unknown.
        """
        fields = dict(data)
        if "reasoning_content" in fields:
            fields["reasoning"] = fields.pop("reasoning_content")
        if isinstance(fields.get("tool_calls"), (list, tuple)):
            fields["tool_calls"] = [
                {**call, "arguments": read_arguments(call["arguments"])}
                if isinstance(call, Mapping) and "arguments" in call
                else call
                for call in fields["tool_calls"]
            ]
        return cls.model_validate(fields)

    def to_openai(self) -> dict[str, Any]:
        """Return the message in the OpenAI chat format, without the fields that are not set."""
        content: Any = self.content if self.parts is None else [part.to_openai() for part in self.parts]
        message: dict[str, Any] = {"role": self.role, "content": content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.to_openai() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            message["name"] = self.name
        return message


def to_messages(value: "str | Message | Mapping[str, Any] | Sequence[Message | Mapping[str, Any]]") -> list[Message]:
    """Return a list of messages, given as a string (a user message), one message, or a list of messages.

    Raises:
        TypeError: If an item of the list is neither a `Message` nor a mapping.
        pydantic.ValidationError: If a mapping is not a message in the OpenAI chat format.
    """
    if isinstance(value, str):
        return [Message.model_validate({"role": "user", "content": value})]
    if isinstance(value, (TextPart, ImagePart, Image)):
        value = [cast("Any", value)]  # which is refused
    if isinstance(value, Message):
        return [value]
    if isinstance(value, Mapping):
        return [Message.from_openai(value)]
    if isinstance(value, (bytes, Set)) or not isinstance(value, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"got {brief(value)}, of the type {type(value).__name__}; expected a string, a Message, a mapping, or a "
            "list of them"
        )
    messages: list[Message] = []
    for item in value:
        if not isinstance(item, (Message, Mapping)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"the list contains {type_of(item)}, {brief(item)}; expected a Message or a mapping. Texts and "
                "images are the content of a message: Message(role='user', content=[...])"
            )
        messages.append(item if isinstance(item, Message) else Message.from_openai(cast("Mapping[str, Any]", item)))
    return messages


def check_calls(message: Message, tools: Sequence[ToolSchema]) -> Message:
    """Check that each call of a message names a known tool and has the arguments that the tool's schema requires.

    Returns:
        The message itself if all calls pass, else a copy with `ToolCall.error` set and `errors` extended.
    """
    if not message.tool_calls:
        return message
    schemas = {tool.get("function", tool)["name"]: tool.get("function", tool) for tool in tools}
    calls, found = list(message.tool_calls), list[str]()
    for index, call in enumerate(calls):
        error = None
        if call.error:
            continue
        if call.name not in schemas:
            more = f" and {len(schemas) - _MAX_LISTED} more" if len(schemas) > _MAX_LISTED else ""
            error = f"unknown tool {brief(call.name)}; known: {', '.join([*schemas][:_MAX_LISTED]) or 'none'}{more}"
        elif isinstance(call.arguments, dict):
            parameters: Mapping[str, Any] = schemas[call.name].get("parameters") or {}
            missing = [name for name in parameters.get("required") or () if name not in call.arguments]
            error = f"{call.name}: missing argument {', '.join(missing)}" if missing else None
        if error is not None:
            calls[index] = call.model_copy(update={"error": error})
            found.append(error)
    if not found:
        return message
    return message.model_copy(
        update={"tool_calls": tuple(calls), "errors": tuple(dict.fromkeys([*message.errors, *found]))}
    )


explain_arguments(globals())
