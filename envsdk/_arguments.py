"""Wrong arguments of public classes and functions are explained, by one rule for all of them.

Nothing is checked in advance. When a call fails with an error of Python or pydantic, its arguments are compared with
the signature: their names, their number, and their types. This module knows nothing about any class or function.
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import lazy_loader

from ._describing import likely, what_is_invalid
from .errors import ConfigError, EnvsdkError


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return what `lazy_loader.attach_stub` does, for a package whose names explain wrong arguments."""
    load, names, public = lazy_loader.attach_stub(package, file)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]

    def explaining(name: str) -> Any:
        found = vars(sys.modules[package])[name] = _explaining(load(name))
        return found

    return explaining, cast("Any", names), cast("Any", public)


def explain_arguments(module: dict[str, Any]) -> None:
    """Let the public classes and functions of a module explain wrong arguments, at the end of the module.

    Args:
        module: The module's `globals()`.
    """
    for name in module.get("__all__") or [name for name in module if not name.startswith("_")]:
        module[name] = _explaining(module[name])


def _explaining(public: Any) -> Any:
    """Return a function that explains wrong arguments, or the class itself, whose constructor then does."""
    if not str(getattr(public, "__module__", "")).startswith("envsdk") or hasattr(public, "__explains__"):
        return public
    if inspect.isfunction(public):
        explaining = _wrapped(public)
        setattr(inspect.getmodule(public), public.__name__, explaining)  # where pickle looks for it
        return explaining
    if isinstance(public, type) and not issubclass(public, (BaseException, Enum)):
        maker = "__new__" if issubclass(public, tuple) else "__init__"
        for name in (maker, *(name for name in vars(public) if not name.startswith("_"))):
            function = inspect.getattr_static(public, name)
            function = getattr(public, name) if name == "__new__" else function
            if inspect.isfunction(function) and not hasattr(function, "__explains__"):
                owner = next(base for base in public.__mro__ if name in vars(base))
                explaining = _wrapped(function, public)
                is_ours = owner.__module__.startswith("envsdk")
                setattr(
                    owner if is_ours else public, name, staticmethod(explaining) if name == "__new__" else explaining
                )
    return public


def _wrapped(function: Any, cls: type | None = None) -> Any:
    """Return a function that explains wrong arguments: a public function, or the constructor of a public class."""

    def explain(error: Exception, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if isinstance(error, EnvsdkError):
            return
        public = function
        if cls is not None:
            made, args = args[0] if isinstance(args[0], type) else type(args[0]), args[1:]
            public = made if made.__module__.startswith("envsdk") or getattr(made, "model_fields", None) else cls
        if why := _what_is_wrong(public, function, args, kwargs, error):
            raise ConfigError(why) from error

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (TypeError, AttributeError, ValueError) as error:
            explain(error, args, kwargs)
            raise

    @functools.wraps(function)
    async def acall(*args: Any, **kwargs: Any) -> Any:
        try:
            return await function(*args, **kwargs)
        except (TypeError, AttributeError, ValueError) as error:
            explain(error, args, kwargs)
            raise

    explaining: Any = acall if inspect.iscoroutinefunction(function) else call
    explaining.__explains__ = True
    return explaining


def _what_is_wrong(
    public: Any, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception
) -> str:
    """Return what is wrong with the arguments of a call that failed, and what to do; empty if nothing is.

    Args:
        public: The function, or the class of which an object was made.
        function: The function, or the constructor.
        args: The arguments by position, without `self`.
        kwargs: The arguments by name.
        error: The error of the call.
    """
    from pydantic import BaseModel, ValidationError

    is_model = function.__name__ == "__init__" and issubclass(public, BaseModel)
    if is_model:
        public.model_rebuild()  # which makes its signature
    signature = inspect.signature(public if is_model else function)
    parameters = list(signature.parameters.values())[public is not function and not is_model :]
    kinds = {p.kind for p in parameters}
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    is_method = public is not function and function.__name__ not in ("__init__", "__new__")
    name = f"{public.__name__}.{function.__name__}" if is_method else public.__name__
    call, listed = f"{name}()", f"Its arguments: {', '.join(by_name) or 'none'}"
    unknown = [name for name in kwargs if name not in by_name]
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        near = likely(unknown[0], by_name)
        meant = f"Did you mean {' or '.join(near)}? " if near else ""
        return f"{call} has no argument {unknown[0]!r}. {meant}{listed}"
    hints = {p.name: _hint_of(p, function) for p in parameters}
    if len(args) > len(by_place) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        written = [repr(value) for value in args[: len(by_place)]]
        free = [name for name, p in by_name.items() if p not in by_place and name not in kwargs]
        for value in args[len(by_place) :]:
            fitting = [name for name in free if _fits(hints[name], value)]
            written += [f"{name}={value!r}" for name in fitting[:1]]
            free = [name for name in free if name not in fitting[:1]]
        takes = f"{len(by_place)} argument{'s'[len(by_place) == 1 :]} by position, but got {len(args)}"
        write = f"Write {name}({', '.join(written)}). " if len(written) == len(args) else ""
        return f"{call} takes {takes}. {write}{listed}"
    given = dict(zip([p.name for p in by_place], args, strict=False)) | dict(kwargs)
    if missing := [p.name for p in (*by_place, *by_name.values()) if p.default is p.empty and p.name not in given]:
        described = _descriptions(function if is_method else public)
        needs = [f"{name} ({described[name].rstrip('.')})" if name in described else name for name in missing]
        return f"{call} needs {', '.join(dict.fromkeys(needs))}. {listed}"
    if is_model and isinstance(error, ValidationError):
        return f"{call}: {what_is_invalid(error, by_name)}"
    for place, (name, value) in enumerate(given.items(), start=1):
        if name in hints and not _fits(hints[name], value):
            nth = f" (argument {place})" if place <= len(args) else ""
            expected = re.sub(r"\b[a-z_]\w*\.", "", inspect.formatannotation(hints[name]))
            return f"{call}: {name}{nth} is {value!r:.80}, of the type {type(value).__name__}; expected {expected}"
    return ""


def _hint_of(parameter: inspect.Parameter, function: Any) -> Any:
    """Return the type of a parameter; Any if it is not known at run time."""
    hint: Any = parameter.annotation
    if isinstance(hint, str):
        try:
            hint = eval(hint, inspect.unwrap(function).__globals__)
        except (NameError, AttributeError):
            return Any
    return Any if hint is parameter.empty else hint


def _fits(hint: Any, value: Any) -> bool:
    """Return whether a value may be of a type: False only if it is certainly not."""
    kind = get_origin(hint) or hint
    if kind is Any:
        return True
    if kind is Annotated:
        return _fits(get_args(hint)[0], value)
    if kind in (Union, UnionType):
        return any(_fits(one, value) for one in get_args(hint))
    if kind is Literal:
        return value in get_args(hint)
    if kind in (float, int) and isinstance(value, Real) and not isinstance(value, bool):
        return kind is float or isinstance(value, Integral)
    if kind is None or (isinstance(kind, type) and not getattr(kind, "_is_protocol", False)):
        if isinstance(value, (str, bytes)) and kind in (Sequence, Iterable, Collection):  # it is not meant as one
            return False
        items = value[:1] if isinstance(value, (list, tuple)) and len(get_args(hint)) == 1 else ()
        return isinstance(value, kind or type(None)) and all(_fits(get_args(hint)[0], item) for item in items)
    return True


def _descriptions(public: Any) -> dict[str, str]:
    """Return what the docstring of a class or function says about its arguments."""
    from docstring_parser import parse

    documented = parse(inspect.getdoc(public) or "").params
    return {p.arg_name: " ".join(str(p.description or "").split()) for p in documented}
