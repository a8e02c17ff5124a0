"""Tools: functions that a model may call.

The JSON schema comes from the function's type hints and docstring; arguments are checked against the same hints. Knows
nothing about environments.
"""

import contextlib
import difflib
import functools
import importlib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MethodType
from typing import Annotated, Any, NamedTuple, NotRequired, cast, get_args, get_origin, get_type_hints, overload

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict

from ..episodes.functions import copied_function, is_async, plain_function
from ..errors import ConfigError
from ..messages import ToolSchema

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
    in a thread of its own, which cannot be stopped: after the limit nobody waits for it, but it goes on, and what it
    does to the environment then it does."""
    read: Callable[[dict[str, Any]], dict[str, Any]] = _as_they_are
    """Checks arguments and converts them; raises a `ValueError` (such as pydantic's) for wrong ones."""
    is_method: bool = False
    """Whether the function's first parameter is the environment."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"a tool is named {self.name!r}; a name has 1 to 64 letters, digits, '_' and '-'")
        if self.timeout_s is not None and not (isinstance(self.timeout_s, (int, float)) and self.timeout_s > 0):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"the tool {self.name!r} has timeout_s {self.timeout_s!r}; expected more than 0, or None")

    @property
    def schema(self) -> ToolSchema:
        """The tool as a JSON schema in the OpenAI form."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    @property
    def is_async(self) -> bool:
        """Whether the function is `async def`."""
        return is_async(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, unchecked, as if it were no tool."""
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> "Tool":
        if instance is None or not self.is_method:
            return self
        return replace(self, function=MethodType(self.function, instance), is_method=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tool":
        function = copied_function(self.function, memo)
        return self if function is self.function else replace(self, function=function)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.read is _as_they_are:
            return Tool, (self.name, self.description, self.parameters, self.function, self.timeout_s)
        owner = getattr(self.function, "__self__", None)
        function: Any = inspect.unwrap(self.function)
        if owner is not None:
            return getattr, (owner, function.__name__)
        return _imported, (function.__module__, function.__qualname__)


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
    return value if isinstance(value, Tool) else _made_once(value)


@functools.lru_cache(maxsize=1024)
def _made_once(function: Any) -> Tool:
    return tool(function)


def _make(function: Any, name: str | None, description: str | None, timeout_s: float | None) -> Tool:
    if isinstance(function, staticmethod):
        function = cast("staticmethod[Any, Any]", function).__func__
    plain = plain_function(function)
    if not callable(function) or isinstance(function, (Tool, type)) or not inspect.isroutine(plain):
        raise ConfigError(f"a tool is made of a function or a method, got {function!r:.80}")
    name = str(name or getattr(function, "__name__", getattr(plain, "__name__", "")))
    documentation = _documentation(function if function.__doc__ and plain is function else plain)
    parameters = list(inspect.signature(function).parameters.values())
    is_method = bool(parameters) and parameters[0].name == "self"
    own = parameters[is_method:]
    _check_meanings(name, documentation.meanings, [parameter.name for parameter in own])
    arguments = _arguments(name, plain, own, documentation.meanings)
    try:
        adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(arguments)
        schema = adapter.json_schema(schema_generator=_WithoutTitles)
    except PydanticUserError as error:
        raise ConfigError(f"the tool {name!r} has a parameter whose type has no JSON schema: {error}") from error
    text = documentation.text if description is None else description
    return Tool(name, text, _in_usual_order(schema), function, timeout_s, adapter.validate_python, is_method)


def _check_meanings(tool: str, meanings: Mapping[str, str], parameters: Sequence[str]) -> None:
    for name in meanings.keys() - set(parameters):
        near = difflib.get_close_matches(name, parameters, n=1, cutoff=0.5)
        advice = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(parameters) or 'none'}"
        raise ConfigError(
            f"the docstring of the tool {tool!r} describes {name!r}, which is no parameter of it; {advice}"
        )


def _imported(module: str, name: str) -> Any:
    """The tool that stands in a module in the place of its function."""
    return functools.reduce(getattr, name.split("."), cast("Any", importlib.import_module(module)))


class _Documentation(NamedTuple):
    text: str
    meanings: Mapping[str, str]
    """What the parameters mean."""


def _documentation(function: Any) -> _Documentation:
    from docstring_parser import ParseError  # here, since an Env without tools does not need it
    from docstring_parser import parse as parse_docstring

    text = inspect.getdoc(function) or ""
    try:
        documentation = parse_docstring(text)
    except (ParseError, IndexError):  # it is in no known form
        return _Documentation(text, {})
    parameters = [p for p in documentation.params if p.args and p.args[0] == "param" and p.description]
    meanings = {name.strip(): str(p.description) for p in parameters for name in p.arg_name.split(",")}
    gap = "\n\n" if documentation.blank_after_short_description else "\n"
    said = (documentation.short_description, documentation.long_description)
    return _Documentation(gap.join(part for part in said if part), meanings)


def _in_usual_order(schema: Mapping[str, Any]) -> dict[str, Any]:
    """As models have seen it most: what the object is comes first, and nothing is said of other properties."""
    first: dict[str, Any] = {"type": "object", "properties": {}}
    left_out = ("additionalProperties", "title", "description")
    return {**first, **{key: value for key, value in schema.items() if key not in left_out}}


class _WithoutTitles(GenerateJsonSchema):
    """Names stand in the schema once."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _arguments(name: str, function: Any, parameters: Sequence[inspect.Parameter], meanings: Mapping[str, str]) -> Any:
    """The arguments as a typed dict, the type that pydantic reads."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise ConfigError(f"the type hints of the tool {name!r} cannot be read: {error}") from error
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"the tool {name!r} takes {parameter}; a model gives arguments by name, one by one")
        if parameter.name not in hints:
            raise ConfigError(f"the parameter {parameter.name!r} of the tool {name!r} has no type hint")
        if isinstance(parameter.default, FieldInfo):
            raise ConfigError(
                f"the parameter {parameter.name!r} of the tool {name!r} has a Field as its default; write "
                "Annotated[type, Field(...)] = default"
            )
        fields[parameter.name] = _field(parameter, hints[parameter.name], meanings.get(parameter.name))
    arguments: Any = TypedDict(name, fields)  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]
    arguments.__pydantic_config__ = ConfigDict(extra="forbid")
    return arguments


def _field(parameter: inspect.Parameter, hint: Any, meaning: str | None) -> Any:
    extra: dict[str, Any] = {}
    is_optional = parameter.default is not parameter.empty
    if is_optional:
        with contextlib.suppress(PydanticSerializationError, ValueError):  # one without a JSON form is not shown
            default = to_jsonable_python(parameter.default)
            json.dumps(default, allow_nan=False, ensure_ascii=False).encode()
            extra["default"] = default
    told = Field(description=meaning, json_schema_extra=extra)
    plain, *own = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    field = Annotated[plain, told, *own]  # what the hint itself says wins
    return cast("Any", NotRequired[field]) if is_optional else field
