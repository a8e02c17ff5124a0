"""Tools: functions that a model may call.

A tool's JSON schema comes from the function's type hints and docstring, and a call's arguments are validated against
the same hints. This module knows nothing about environments.
"""

import contextlib
import functools
import inspect
import json
import pkgutil
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MethodType
from typing import Annotated, Any, NotRequired, cast, get_args, get_origin, get_type_hints, overload

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict

from .._describing import likely
from .._visible import brief
from ..episodes._functions import copied_function, is_async, plain_function
from ..errors import ConfigError, MistakeWarning
from ..messages import ToolSchema

Function = Callable[..., Any]

_NAME = r"[a-zA-Z0-9_-]{1,64}"  # what OpenAI's function calling accepts


def _unchanged(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call. `envsdk.tool` makes a tool from a Python function.

    Attributes:
        name: The name by which the model calls the tool: 1 to 64 letters, digits, `_` and `-`.
        description: What the tool does, for the model.
        parameters: The JSON schema of the arguments, an object.
        function: The function, plain or `async def`. It is called with the arguments by name. It may return a string,
            an image (an `Image`, an `ImagePart` or an image of Pillow), or a list of strings and images; the model
            receives any other result as JSON.
        timeout_s: The time limit of a call in seconds; None uses the environment's `tool_timeout_s`. A plain function
            with a time limit runs in a thread, which cannot be stopped: after the limit, the call fails, but the
            function continues and may still change the environment.
        read: Validates and converts the arguments. It raises a `ValueError` (such as pydantic's) if they are wrong. By
            default, arguments are passed on unchanged.
        is_method: Whether the function's first parameter is the environment.

    Raises:
        ConfigError: If the name or the time limit is not valid.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Function
    timeout_s: float | None = None
    read: Callable[[dict[str, Any]], dict[str, Any]] = _unchanged
    is_method: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(_NAME, self.name):
            raise ConfigError(f"a tool is named {brief(self.name)}; expected 1 to 64 letters, digits, '_' and '-'")
        if not callable(self.function) or not isinstance(self.parameters, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            given = f"the function {brief(self.function, 60)} and the parameters {brief(self.parameters, 60)}"
            raise ConfigError(f"the tool {self.name!r} has {given}; expected a function and a JSON schema of an object")
        if self.timeout_s is not None and not (isinstance(self.timeout_s, (int, float)) and self.timeout_s > 0):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"the tool {self.name!r} has timeout_s {brief(self.timeout_s)}; expected None or seconds above 0"
            )

    @property
    def schema(self) -> ToolSchema:
        """The tool's JSON schema in the OpenAI form."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    @property
    def is_async(self) -> bool:
        """True if the function is `async def`."""
        return is_async(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function directly, without validating the arguments."""
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> "Tool":
        if instance is None or not self.is_method:
            return self
        return replace(self, function=MethodType(self.function, instance), is_method=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tool":
        function = copied_function(self.function, memo)
        return self if function is self.function else replace(self, function=function)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.read is _unchanged:
            return Tool, (self.name, self.description, self.parameters, self.function, self.timeout_s)
        owner = getattr(self.function, "__self__", None)
        function: Any = inspect.unwrap(self.function)
        if owner is not None:
            return getattr, (owner, function.__name__)
        return pkgutil.resolve_name, (f"{function.__module__}:{function.__qualname__}",)


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
    """Make a tool from a function or a method: `@tool`, or `@tool(timeout_s=5)`.

    Every parameter needs a type hint. The hints define the JSON schema, and pydantic validates and converts the model's
    arguments by them. The parameters are described in the docstring (in Google, NumPy or Sphinx form) or with
    `Annotated[..., Field(description=...)]`. The model may omit a parameter that has a default.

    Args:
        function: The function, plain or `async def`. The first parameter of a method must be named `self`.
        name: The tool's name; by default the function's name.
        description: What the tool does, for the model; by default the docstring without its sections.
        timeout_s: The time limit of a call in seconds; see `Tool`.

    Returns:
        The tool; or, if only options are given, a decorator that makes one.

    Raises:
        ConfigError: If a parameter has no type hint, a hint without a JSON schema, or cannot be passed by name; or if
            the docstring describes a parameter that the function does not have.
    """
    if function is None:
        return cast("Any", functools.partial(tool, name=name, description=description, timeout_s=timeout_s))
    if is_static := isinstance(function, staticmethod):
        function = cast("staticmethod[Any, Any]", function).__func__
    plain: Any = plain_function(function)
    if not callable(function) or isinstance(function, (Tool, type)) or not inspect.isroutine(plain):
        raise ConfigError(f"a tool is made from a function or a method, got {brief(function)}")
    name = str(name or getattr(function, "__name__", getattr(plain, "__name__", "")))
    documentation, described = _documentation(function if function.__doc__ and plain is function else plain)
    parameters = list(inspect.signature(function).parameters.values())
    is_method = bool(parameters) and parameters[0].name == "self"
    if (name.startswith("__") and name.endswith("__")) or (is_static and is_method):
        raise ConfigError(
            f"{name!r} cannot be a tool: a tool is a function, or a method with `self` as its first parameter"
        )
    own = parameters[is_method:]
    names = [parameter.name for parameter in own]
    for unknown in described.keys() - set(names):
        near = likely(unknown, names)
        advice = f"did you mean {near[0]!r}?" if near else f"its parameters: {', '.join(names) or 'none'}"
        raise ConfigError(
            f"the docstring of the tool {name!r} describes {unknown!r}, which is not one of its parameters; {advice}"
        )
    arguments = _arguments_type(name, plain, own, described)
    try:
        adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(arguments)
        schema = adapter.json_schema(schema_generator=_WithoutTitles)
    except PydanticUserError as error:
        raise ConfigError(f"the tool {name!r} has a parameter whose type has no JSON schema: {error}") from error
    # Models have seen this form most: type and properties first, no `additionalProperties`.
    left_out = ("additionalProperties", "title", "description")
    first: dict[str, Any] = {"type": "object", "properties": {}}
    schema = first | {key: value for key, value in schema.items() if key not in left_out}
    text = documentation if description is None else description
    if not text.strip():
        code = getattr(plain, "__code__", None)
        place = ("<unknown>", 1) if code is None else (code.co_filename, code.co_firstlineno)
        why = (
            f"the tool {name!r} has no docstring, from which the model learns what it does: write one, or description="
        )
        warnings.warn_explicit(why, MistakeWarning, *place)
    return Tool(name, text, schema, function, timeout_s, adapter.validate_python, is_method)


tool_of: Callable[[Any], Tool] = functools.lru_cache(maxsize=1024)(tool)
"""Makes a tool from a function, once for each function."""


def _documentation(function: Any) -> tuple[str, Mapping[str, str]]:
    """Return a docstring without its sections, and the descriptions of parameters by name."""
    from docstring_parser import ParseError  # here, since an Env without tools does not need it
    from docstring_parser import parse as parse_docstring

    text = inspect.getdoc(function) or ""
    try:
        documentation = parse_docstring(text)
    except (ParseError, IndexError):  # an unknown form
        return text, {}
    parameters = [p for p in documentation.params if p.args and p.args[0] == "param" and p.description]
    descriptions = {name.strip(): str(p.description) for p in parameters for name in p.arg_name.split(",")}
    gap = "\n\n" if documentation.blank_after_short_description else "\n"
    texts = (documentation.short_description, documentation.long_description)
    return gap.join(text for text in texts if text), descriptions


class _WithoutTitles(GenerateJsonSchema):
    """Makes schemas without titles, which would repeat the parameters' names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _arguments_type(
    name: str, function: Any, parameters: Sequence[inspect.Parameter], descriptions: Mapping[str, str]
) -> Any:
    """Return the type of the arguments for pydantic, a typed dict."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise ConfigError(f"the type hints of the tool {name!r} cannot be read: {error}") from error
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"the tool {name!r} has the parameter {parameter}; expected parameters that can each be passed by name"
            )
        if parameter.name not in hints:
            raise ConfigError(f"the parameter {parameter.name!r} of the tool {name!r} has no type hint; add one")
        if isinstance(parameter.default, FieldInfo):
            raise ConfigError(
                f"the parameter {parameter.name!r} of the tool {name!r} has a Field as its default; write "
                "Annotated[type, Field(...)] = default"
            )
        extra: dict[str, Any] = {}
        is_optional = parameter.default is not parameter.empty
        if is_optional:
            with contextlib.suppress(
                PydanticSerializationError, ValueError
            ):  # a default without a JSON form is left out
                default = to_jsonable_python(parameter.default)
                json.dumps(default, allow_nan=False, ensure_ascii=False).encode()
                extra["default"] = default
        hint = hints[parameter.name]
        plain, *own = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        info = Field(description=descriptions.get(parameter.name), json_schema_extra=extra)
        field = Annotated[plain, info, *own]  # the hint's own metadata takes precedence
        fields[parameter.name] = NotRequired[field] if is_optional else field
    arguments: Any = TypedDict(name, fields)  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]
    arguments.__pydantic_config__ = ConfigDict(extra="forbid")
    return arguments
