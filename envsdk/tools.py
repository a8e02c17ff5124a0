"""Tools: functions that a model may call.

The JSON schema comes from the function's type hints and docstring; arguments are checked against the same hints. Knows
nothing about environments.
"""

import contextlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MethodType
from typing import Annotated, Any, NotRequired, cast, get_args, get_origin, get_type_hints, overload

from docstring_parser import parse as parse_docstring
from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict

from .errors import ConfigError
from .messages import ToolSchema

Function = Callable[..., Any]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what OpenAI's function calling accepts


def _as_they_are(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call. `tool` makes one of a Python function; others can be made by hand."""

    name: str
    """At most 64 letters, digits, `_` and `-`."""
    description: str
    parameters: Mapping[str, Any]
    """The JSON schema of the arguments, an object."""
    function: Function
    """Called with the arguments by name; plain or `async def`. What it returns is told to the model: a text as it is,
    anything else as JSON."""
    timeout_s: float | None = None
    """How long a call may take, in seconds; None leaves it to the environment. A plain function with a time limit runs
    in a thread of its own, which cannot be stopped: after the limit nobody waits for it any more."""
    read: Callable[[dict[str, Any]], dict[str, Any]] = _as_they_are
    """Checks arguments and converts them; raises a `ValueError` (such as pydantic's) for wrong ones."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"a tool is named {self.name!r}; a name has 1 to 64 letters, digits, '_' and '-'")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ConfigError(f"the tool {self.name!r} has timeout_s {self.timeout_s!r}; expected more than 0, or None")

    @property
    def schema(self) -> ToolSchema:
        """The tool as a JSON schema in the OpenAI form."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    @property
    def is_async(self) -> bool:
        """Whether the function is `async def`."""
        return inspect.iscoroutinefunction(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, unchecked, as if it were no tool."""
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> "Tool":
        return self if instance is None else replace(self, function=MethodType(self.function, instance))


@overload
def tool(function: Function, /) -> Tool: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, timeout_s: float | None = None
) -> Callable[[Function], Tool]: ...
def tool(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
) -> Tool | Callable[[Function], Tool]:
    """Make a tool of a function or a method: `@tool`, or `@tool(timeout_s=5)`.

    Every parameter needs a type hint, of which the schema is made, and by which pydantic checks and converts what the
    model gives. What the parameters mean is taken from the docstring (Google's, NumPy's or Sphinx's form), or from
    `Annotated[..., Field(description=...)]`. A parameter with a default may be left out.

    Args:
        function: The function, plain or `async def`. As a method its first parameter is called `self`.
        name: The tool's name; by default the function's.
        description: What it does; by default the docstring without its sections.
        timeout_s: See `Tool.timeout_s`.

    Raises:
        ConfigError: If a parameter has no hint, one that has no JSON schema, or no name to call it by.
    """

    def decorate(function: Function) -> Tool:
        return _make(function, name, description, timeout_s)

    return decorate if function is None else decorate(function)


def as_tool(value: object) -> Tool:
    """A tool as it is, or one made of a function.

    Raises:
        ConfigError: If it is neither.
    """
    if isinstance(value, Tool):
        return value
    if not callable(value):
        raise ConfigError(f"a tool is a function, or what `envsdk.tool` makes of one; got {value!r:.80}")
    return tool(value)


def _make(function: Function, name: str | None, description: str | None, timeout_s: float | None) -> Tool:
    name = str(name or getattr(function, "__name__", type(function).__name__))
    documentation = parse_docstring(inspect.getdoc(function) or "")
    meanings = {p.arg_name: p.description for p in documentation.params if p.description}
    arguments = _arguments(name, function, meanings)
    try:
        adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(arguments)
        parameters = adapter.json_schema(schema_generator=_WithoutTitles)
    except PydanticUserError as error:
        raise ConfigError(f"the tool {name!r} has a parameter whose type has no JSON schema: {error}") from error
    said = (documentation.short_description, documentation.long_description)
    text = "\n\n".join(part for part in said if part) if description is None else description
    return Tool(name, text, _in_usual_order(parameters), function, timeout_s, adapter.validate_python)


def _in_usual_order(schema: Mapping[str, Any]) -> dict[str, Any]:
    """As models have seen it most: what the object is comes first, and nothing is said of other properties."""
    first: dict[str, Any] = {"type": "object", "properties": {}}
    left_out = ("additionalProperties", "title", "description")
    return {**first, **{key: value for key, value in schema.items() if key not in left_out}}


class _WithoutTitles(GenerateJsonSchema):
    """Names stand in the schema once."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _arguments(name: str, function: Function, meanings: Mapping[str, str]) -> Any:
    """The arguments as a typed dict, the type that pydantic reads."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(f"the type hints of the tool {name!r} cannot be read: {error}") from error
    fields: dict[str, Any] = {}
    for index, parameter in enumerate(inspect.signature(function).parameters.values()):
        if index == 0 and parameter.name == "self":
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"the tool {name!r} takes {parameter}; a model gives arguments by name, one by one")
        if parameter.name not in hints:
            raise ConfigError(f"the parameter {parameter.name!r} of the tool {name!r} has no type hint")
        fields[parameter.name] = _field(parameter, hints[parameter.name], meanings.get(parameter.name))
    arguments: Any = TypedDict(name, fields)  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]
    arguments.__pydantic_config__ = ConfigDict(extra="forbid")
    return arguments


def _field(parameter: inspect.Parameter, hint: Any, meaning: str | None) -> Any:
    extra: dict[str, Any] = {}
    is_optional = parameter.default is not parameter.empty
    if is_optional:
        with contextlib.suppress(PydanticSerializationError):  # one without a JSON form is not shown
            extra["default"] = to_jsonable_python(parameter.default)
    told = Field(description=meaning, json_schema_extra=extra)
    plain, *own = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    field = Annotated[plain, told, *own]  # what the hint itself says wins
    return cast("Any", NotRequired[field]) if is_optional else field
