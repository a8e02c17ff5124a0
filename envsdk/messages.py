"""Chat messages: what environments and models say to each other.

Knows nothing about tokens. The shapes follow the OpenAI chat format, with `reasoning` beside the content.
"""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]
ToolSchema: TypeAlias = Mapping[str, Any]
"""A tool as a JSON schema in the OpenAI form, `{"type": "function", "function": {"name": ..., ...}}`."""


def check_text(text: str) -> str:
    """Return a text that can be encoded as UTF-8.

    Raises:
        ValueError: If it holds half of a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"half of a surrogate pair is no text: {error}") from error
    return text


Text: TypeAlias = Annotated[str, AfterValidator(check_text)]
"""A text that can be encoded as UTF-8."""


_MAX_DEPTH = 64
_MAX_LISTED = 32  # an error is reported for each call, of which a reply may have many
_MAX_INTEGER = 10**4000  # Python reads and writes no longer ones


def check_json(value: Any, depth: int = 0) -> None:
    """Refuse what JSON cannot hold, and what is too deep or too long to be written again.

    Raises:
        ValueError: It says what is wrong.
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels")
    match value:
        case None | bool():
            pass
        case str():
            check_text(value)
        case int() if abs(value) > _MAX_INTEGER:
            raise ValueError("an integer has more than 4,000 digits")
        case float() if not math.isfinite(value):
            raise ValueError(f"{value} is no number of JSON")
        case int() | float():
            pass
        case list():
            for item in cast("list[Any]", value):
                check_json(item, depth + 1)
        case dict():
            for key, item in cast("dict[Any, Any]", value).items():
                if not isinstance(key, str):
                    raise ValueError(f"the key {key!r} is no string")
                check_text(key)
                check_json(item, depth + 1)
        case _:
            raise ValueError(f"a {type(value).__name__} is no value of JSON")


def read_arguments(given: Any) -> Any:
    """Read arguments at the edge: the JSON text of an object becomes that object; anything else stays as it is.

    Text stays text if reading it would lose something: a key that comes twice, a number that JSON cannot hold.
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
    """Make an object of JSON of its pairs: an `object_pairs_hook`.

    Raises:
        ValueError: If a key comes twice, since the first value would be lost.
    """
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key comes twice")
    return value


def _is_json(value: dict[str, Any]) -> dict[str, Any]:
    check_json(value)
    return value


Arguments: TypeAlias = Annotated[dict[str, Any], AfterValidator(_is_json)]
"""The arguments of a call by name: values of JSON."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TextPart(_Frozen):
    """A part of a message's content that is text."""

    type: Literal["text"] = "text"
    text: Text


ContentPart: TypeAlias = TextPart
"""The kinds of content parts. A part of another kind is refused, never dropped."""


class ToolCall(_Frozen):
    """A call of a tool by the model.

    Attributes:
        name: The tool's name; empty if the call could not be read.
        arguments: The arguments by name, or the text that the model gave in their place, verbatim. JSON text in a
            message of the OpenAI form is read (see `from_openai`); a text given to `ToolCall` itself stays text.
        id: The call's id, for families that have ids.
        error: What is wrong with the call, or None: not JSON, unknown tool, missing argument, not closed.
        raw: The call's text as it was sampled, where that is not the text that the family itself would write.
    """

    name: Text
    arguments: Arguments | Text = Field(default_factory=dict[str, Any])
    id: Text | None = None
    error: str | None = None
    raw: Text | None = None

    @classmethod
    def from_openai(cls, data: Mapping[str, Any]) -> "ToolCall":
        """Read a call in the OpenAI form, or one given flat as name and arguments.

        Arguments that are the JSON text of an object, as OpenAI's form has them, become that object, as in inference
        servers: chat templates expect it. Any other text stays that text.

        Raises:
            pydantic.ValidationError: If it is not a call.
        """
        function = data.get("function", data)
        given = cast("Mapping[str, Any]", function) if isinstance(function, Mapping) else {"name": function}
        arguments = read_arguments(given.get("arguments", {}))
        return cls.model_validate({"name": given.get("name"), "arguments": arguments, "id": data.get("id")})

    def to_openai(self) -> dict[str, Any]:
        """Write the call in the OpenAI form, with the arguments as a dict, as chat templates expect them.

        Arguments that are a text stay that text.
        """
        call: dict[str, Any] = {"type": "function", "function": {"name": self.name, "arguments": self.arguments}}
        return call if self.id is None else {"id": self.id, **call}


_NEW_TEXT = "_new_text_of_reply"


def _read_call(call: Any) -> Any:
    if not isinstance(call, Mapping) or "function" not in call:
        return cast("Any", call)
    return ToolCall.from_openai(cast("Mapping[str, Any]", call))


def _with_arguments(call: Any) -> Any:
    """A call that was given flat, as name and arguments, with its arguments read."""
    if not isinstance(call, Mapping) or "arguments" not in call:
        return cast("Any", call)
    fields = cast("Mapping[str, Any]", call)
    return {**fields, "arguments": read_arguments(fields["arguments"])}


def _none_is_empty(value: Any) -> Any:
    return () if value is None else value


class Message(_Frozen):
    """One chat message.

    Attributes:
        role: Who speaks.
        content: The text. A list of typed parts is accepted as well; it is kept in `parts`, and its text is here.
        reasoning: The model's thinking. None is no think block at all, an empty string is an empty one.
        tool_calls: The calls that an assistant makes, in order.
        tool_call_id: On a tool message, the id of the call that it answers.
        name: On a tool message, the tool's name; elsewhere the speaker's.
        parts: The content's typed parts, where it was given as parts.
        errors: What was wrong with a sampled message: a block that was not closed, tokens after the end, ...
            The errors of single calls are in `ToolCall.error` too. An error that came up several times is here once.
        open_block: Inside what a sampled message ended: it was cut, stopped at a string, or did not close it.
    """

    role: Role
    content: Text = ""
    reasoning: Text | None = None
    tool_calls: Annotated[tuple[ToolCall, ...], BeforeValidator(_none_is_empty)] = ()
    tool_call_id: Text | None = None
    name: Text | None = None
    parts: tuple[ContentPart, ...] | None = None
    errors: tuple[str, ...] = ()
    open_block: Literal["reasoning", "tool_call"] | None = None

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
            parts = [TextPart.model_validate(part) for part in cast("Sequence[Any]", content)]
            return {**fields, "content": "".join(part.text for part in parts), "parts": parts}
        return fields

    @model_validator(mode="after")
    def _fits_its_role(self) -> Self:
        if self.role != "assistant" and (self.tool_calls or self.reasoning is not None):
            raise ValueError(f"a {self.role} message has no reasoning and no tool calls: only an assistant's has")
        if self.parts is not None and "".join(part.text for part in self.parts) != self.content:
            raise ValueError("content and parts differ: give one of them")
        return self

    @field_validator("tool_calls", mode="before")
    @classmethod
    def _calls_in_either_form(cls, calls: Any) -> Any:
        if not isinstance(calls, (list, tuple)):
            return calls
        return tuple(_read_call(call) for call in cast("Sequence[Any]", calls))

    @property
    def new_text(self) -> str:
        """What of a reply was sampled since the environment last spoke: as text, control tokens by their names.

        Where it is no sampled reply, it is the content. A stop token at the end is left out, what was sampled behind a
        stop string is not.
        """
        return str(self.__dict__.get(_NEW_TEXT, self.content))

    def with_reasoning(self, reasoning: str | None) -> Self:
        """Return the message with another reasoning (None: without any), or itself if it has that already."""
        return self if self.reasoning == reasoning else self.model_copy(update={"reasoning": reasoning})

    def as_reply(self, new_text: object) -> "Message":
        """A copy to hand over: with `str(new_text)` as `new_text`, and arguments of calls that may be changed."""
        calls = [call.model_copy(update={"arguments": copy.deepcopy(call.arguments)}) for call in self.tool_calls]
        reply = self.model_copy(update={"tool_calls": tuple(calls)} if calls else None)
        object.__setattr__(reply, _NEW_TEXT, new_text)  # beside the fields: it is neither compared nor stored
        return reply

    @classmethod
    def calling(
        cls, tool: str, arguments: Mapping[str, Any] | None = None, *, reasoning: str | None = None
    ) -> "Message":
        """An assistant's message that calls a tool, such as a reference policy gives."""
        call = ToolCall(name=tool, arguments=dict(arguments or {}))
        return cls(role="assistant", reasoning=reasoning, tool_calls=(call,))

    @classmethod
    def from_openai(cls, data: Mapping[str, Any]) -> "Message":
        """Read a message in the OpenAI chat format.

        Args:
            data: A mapping with `role`, `content` (text, parts or None) and, optionally, `reasoning_content` (or
                `reasoning`), `tool_calls`, `tool_call_id` and `name`.

        Raises:
            pydantic.ValidationError: For a role, a content part or a key that is not known.
        """
        fields = dict(data)
        if "reasoning_content" in fields:
            fields["reasoning"] = fields.pop("reasoning_content")
        if isinstance(fields.get("tool_calls"), (list, tuple)):
            fields["tool_calls"] = [_with_arguments(call) for call in fields["tool_calls"]]
        return cls.model_validate(fields)

    def to_openai(self) -> dict[str, Any]:
        """Write the message in the OpenAI chat format; what is not set is left out."""
        content: Any = self.content if self.parts is None else [part.model_dump() for part in self.parts]
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
    """Read what an author may give as messages: a text (a user message), one message, or a list of them."""
    if isinstance(value, str):
        return [Message(role="user", content=value)]
    if isinstance(value, Message):
        return [value]
    if isinstance(value, Mapping):
        return [Message.from_openai(value)]
    return [item if isinstance(item, Message) else Message.from_openai(_mapping(item)) for item in value]


def _mapping(item: object) -> Mapping[str, Any]:
    if not isinstance(item, Mapping):
        raise TypeError(f"expected a Message or a mapping in the list, got a {type(item).__name__}: {item!r:.80}")
    return cast("Mapping[str, Any]", item)


def check_calls(message: Message, tools: Sequence[ToolSchema]) -> Message:
    """Note on each call of `message` whether its tool is unknown or an argument that the schema requires is missing.

    Returns:
        The message itself if nothing was found, else a copy with `ToolCall.error` set and `errors` extended.
    """
    if not message.tool_calls:
        return message
    schemas = {tool.get("function", tool)["name"]: tool.get("function", tool) for tool in tools}
    errors = [call.error or _call_error(call, schemas) for call in message.tool_calls]
    if errors == [call.error for call in message.tool_calls]:
        return message
    calls = tuple(
        c if c.error == error else c.model_copy(update={"error": error})
        for c, error in zip(message.tool_calls, errors, strict=True)
    )
    found = tuple(error for c, error in zip(message.tool_calls, errors, strict=True) if error and not c.error)
    return message.model_copy(update={"tool_calls": calls, "errors": tuple(dict.fromkeys((*message.errors, *found)))})


def _call_error(call: ToolCall, schemas: Mapping[str, ToolSchema]) -> str | None:
    if call.name not in schemas:
        more = f" and {len(schemas) - _MAX_LISTED} more" if len(schemas) > _MAX_LISTED else ""
        return f"unknown tool {call.name!r:.80}; known: {', '.join([*schemas][:_MAX_LISTED]) or 'none'}{more}"
    parameters: Mapping[str, Any] = schemas[call.name].get("parameters") or {}
    required = parameters.get("required") or ()
    missing = [name for name in required if isinstance(call.arguments, dict) and name not in call.arguments]
    return f"{call.name}: missing argument {', '.join(missing)}" if missing else None
