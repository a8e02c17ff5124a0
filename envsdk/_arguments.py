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
from typing import Annotated, Any, Literal, NoReturn, Union, cast, get_args, get_origin

import lazy_loader

from ._describing import likely, what_is_invalid
from ._visible import brief, type_of
from .errors import ConfigError, EnvsdkError


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return what `lazy_loader.attach_stub` does, for a package whose names explain wrong arguments."""
    load, names, public = cast("tuple[Any, Any, list[str]]", lazy_loader.attach_stub(package, file))

    def explaining(name: str) -> Any:
        if name not in public:
            _refuse(package, public, name)
        found = vars(sys.modules[package])[name] = _explaining(load(name), methods=True)
        return found

    return explaining, names, public


def _refuse(module: str, public: Collection[str], name: str) -> NoReturn:
    """Raise the error for a name that a module does not have. Other modules look for names with underscores."""
    near = [] if name.startswith("_") else likely(name, public)
    meant = f". Did you mean {' or '.join(near)}?" if near else ""
    raise AttributeError(f"{module} has no name {name!r}{meant}")


def explain_arguments(module: dict[str, Any]) -> None:
    """Let the public classes and functions of a module explain wrong arguments, at the end of the module.

    The methods of its classes do not: some are called several times in each step.

    Args:
        module: The module's `globals()`.
    """
    names = module.get("__all__") or [name for name in module if not name.startswith("_")]
    for name in names:
        module[name] = _explaining(module[name], methods=False)
    module.setdefault("__getattr__", functools.partial(_refuse, module["__name__"], names))


def _explaining(public: Any, *, methods: bool) -> Any:
    """Return a function that explains wrong arguments, or the same class, whose constructor and methods then do."""
    if not str(getattr(public, "__module__", "")).startswith("envsdk") or hasattr(public, "__explains__"):
        return public
    if inspect.isfunction(public):
        explaining = _wrapped(public, None)
        setattr(inspect.getmodule(public), public.__name__, explaining)  # where pickle looks for it
        return explaining
    bases: tuple[Any, ...] = getattr(public, "__mro__", ())  # of a class
    if not bases or BaseException in bases or Enum in bases or _is_protocol(public):
        return public
    maker = "__new__" if tuple in bases else "__init__"
    own = vars(cast("type", public))
    called = [name for name in own if name == "__call__" or (methods and not name.startswith(("_", "model_")))]
    immutable = ["__setattr__"] if "model_fields" in dir(public) else []
    for name in (maker, *immutable, *called):
        function: Any = getattr(public, name) if name == "__new__" else inspect.getattr_static(public, name)
        if inspect.isfunction(function) and not hasattr(function, "__explains__"):
            owner = next(base for base in bases if name in vars(base))
            explaining = _wrapped(function, public)
            place = owner if owner.__module__.startswith("envsdk") else public  # pydantic's constructor stays as it is
            setattr(place, name, staticmethod(explaining) if name == "__new__" else explaining)
    return public


def _wrapped(function: Any, cls: Any) -> Any:
    """Return a public function, or the constructor or a method of a public class, that explains wrong arguments."""

    def explain(error: Exception, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if isinstance(error, EnvsdkError):
            return
        made: Any = cls
        if cls is not None and function.__name__ != "__new__":
            derived: Any = args[0].__class__
            if derived.__module__.startswith("envsdk") or hasattr(derived, "model_fields"):
                made = derived  # and not an author's class, whose own constructor calls this one
        if why := _what_is_wrong(function, made, args[cls is not None :], kwargs, error):
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


def _what_is_wrong(function: Any, cls: Any, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception) -> str:
    """Return what is wrong with the arguments of a call that failed, and what to do; empty if nothing is.

    Args:
        function: The function, or the constructor or the method.
        cls: Its class, or None.
        args: The arguments by position, without `self`.
        kwargs: The arguments by name.
        error: The error of the call.
    """
    from pydantic import BaseModel, ValidationError

    is_constructor = cls is not None and function.__name__ in ("__init__", "__new__")
    signed: Any = function
    if is_model := is_constructor and BaseModel in getattr(cls, "__mro__", ()):
        signed = cls
        signed.model_rebuild()  # which makes its signature
    parameters = list(inspect.signature(signed).parameters.values())
    parameters = parameters[cls is not None and not is_model :]
    kinds = {p.kind for p in parameters}
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    name = ".".join([*([] if cls is None else [cls.__name__]), *([] if is_constructor else [function.__name__])])
    listed = f"Its arguments: {', '.join(by_name) or 'none'}"
    unknown = [given for given in kwargs if given not in by_name]
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        near = likely(unknown[0], by_name)
        meant = f"Did you mean {' or '.join(near)}? " if near else ""
        return f"{name}() has no argument {unknown[0]!r}. {meant}{listed}"
    if isinstance(error, ValidationError) and error.errors()[0]["type"] == "frozen_instance":
        changed = f"model_copy(update={{{args[0]!r}: {brief(args[1], 40)}}})"
        return f"a {name.partition('.')[0]} is immutable: make a changed copy, {changed}"
    hints = {p.name: _hint_of(p, function) for p in parameters}
    if len(args) > len(by_place) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        written = [_written(value) for value in args[: len(by_place)]]
        free = [one for one, p in by_name.items() if p not in by_place and one not in kwargs]
        for value in args[len(by_place) :]:
            fitting = next((one for one in free if _fits(hints[one], value)), None)
            if fitting is not None:
                free.remove(fitting)
                written.append(f"{fitting}={_written(value)}")
        takes = f"{len(by_place)} argument{'s'[len(by_place) == 1 :]} by position, but got {len(args)}"
        write = f"Write {name}({', '.join(written)}). " if len(written) == len(args) else ""
        return f"{name}() takes {takes}. {write}{listed}"
    given = dict(zip([p.name for p in by_place], args, strict=False)) | dict(kwargs)
    if missing := [p.name for p in (*by_place, *by_name.values()) if p.default is p.empty and p.name not in given]:
        described = _descriptions(cls if is_constructor else function)
        needs = [f"{one} ({described[one].rstrip('.')})" if one in described else one for one in missing]
        return f"{name}() needs {', '.join(dict.fromkeys(needs))}. {listed}"
    if is_model and isinstance(error, ValidationError):
        return f"{name}(): {what_is_invalid(error, by_name)}"
    for place, (one, value) in enumerate(given.items(), start=1):
        if one in hints and not _fits(hints[one], value):
            nth = f" (argument {place})" if place <= len(args) else ""
            expected = re.sub(r"\b[a-z_]\w*\.", "", inspect.formatannotation(hints[one]))
            is_class = isinstance(value, type)
            what = type_of(value) if is_class else f"{brief(value)}, of the type {type(value).__name__}"
            return f"{name}(): {one}{nth} is {what}; expected {expected}"
    return ""


def _written(value: Any) -> str:
    """Return how a value is written in code: a class by its name, and … for what is long or has no such form."""
    text = value.__name__ if isinstance(value, type) else brief(value, 60)
    return "…" if text.startswith("<") else text


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
    kind: Any = get_origin(hint) or hint
    of = get_args(hint)
    if kind is Annotated:
        return _fits(of[0], value)
    if kind in (Union, UnionType):
        return any(_fits(one, value) for one in of)
    if kind is Literal:
        return value in of
    if kind is None:
        return value is None
    if kind in (float, int) and type(value) is not bool and isinstance(value, Real):
        return kind is float or isinstance(value, Integral)
    if kind in (Sequence, Iterable, Collection) and isinstance(value, (str, bytes)):
        return False  # a string is not meant as a sequence of strings
    if _is_protocol(kind):
        return type(value).__module__ != "builtins" or callable(value)
    if kind is Any or not isinstance(kind, type):
        return True
    items = cast("Sequence[Any]", value) if type(value) in (list, tuple) and len(of) == 1 else ()
    return isinstance(value, kind) and all(_fits(of[0], item) for item in items[:1])


def _is_protocol(cls: Any) -> bool:
    return getattr(cls, "_is_protocol", False)


def _descriptions(public: Any) -> dict[str, str]:
    """Return what the docstring of a class or function says about its arguments."""
    from docstring_parser import parse

    documented = parse(inspect.getdoc(public) or "").params
    return {p.arg_name: " ".join(str(p.description or "").split()) for p in documented}
