"""The environment that is checked: its name, and functions that create new ones, here and in another process."""

import ast
import copy
import inspect
import json
import pickle
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec

from .._registry import is_of_plugin, list_envs
from .._visible import brief, type_of
from ..authoring._env import Env
from ..errors import ConfigError, PluginError, UnknownName
from ._reports import NotPossible

EnvLike: TypeAlias = str | type[Env] | Callable[[], Env] | Env
"""The argument of `check_env`: an id, a class, a function that creates an environment, or an environment."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The environment that is checked."""

    name: str
    """Its id, or the name of its class or function."""
    make: Callable[[], Env]
    """Creates a new environment."""
    maker: Callable[..., Env] | None
    """Creates a new environment with further options; None for an object."""
    source: Callable[[], Env] | None
    """Creates an environment in another process, to which it is pickled. None for an object without an id."""
    expression: str = ""
    """The Python expression of the environment; empty if only this process knows it."""
    module: str = ""
    """The module that the expression needs."""
    is_id: bool = False
    """True if `name` is an id, which the command line accepts."""
    command_line: str = ""
    """The command that checks it, if it was given on a command line."""

    @classmethod
    def of(cls, given: EnvLike) -> "Subject":
        """Return the subject for an argument of `check_env`.

        Raises:
            UnknownName: If no environment has that id.
            ConfigError: If the argument has another type.
        """
        if isinstance(given, gymnasium.Env):
            given = cast("Env", cast("Any", given).unwrapped)  # gymnasium's wrappers are not checked
        if isinstance(given, str):
            if given not in list_envs():
                raise UnknownName.of("environment", given, list_envs())
            return _of_spec(gymnasium.registry[given])
        if isinstance(given, Env):
            another = partial(copy.deepcopy, given)
            if given.spec is None:
                return cls(given.name, another, None, None)
            return replace(_of_spec(given.spec), make=another)
        make: Any = given
        is_class = inspect.isclass(make)
        if not (issubclass(make, Env) if is_class else callable(make)):
            raise ConfigError(
                f"env is {brief(make)}; expected an environment, its id, its class, or a function that creates one"
            )
        module, path = getattr(make, "__module__", "__main__"), getattr(make, "__qualname__", "")
        is_importable = path and "<" not in path and module != "__main__"
        names = (f"{module}.{path}", module) if is_importable else ("", "")
        name, maker = str(getattr(getattr(make, "func", make), "__name__", make)), cast("Callable[..., Env]", make)
        return cls(name, maker, maker, maker, *names)

    def make_with(self, **options: Any) -> Env:
        """Create a new environment with further options.

        Raises:
            NotPossible: If they cannot be set.
        """
        names = ", ".join(options)
        if self.maker is None:
            raise NotPossible(f"{names} cannot be set, because an object was passed; pass its id or its class")
        if not inspect.isclass(self.maker):
            try:
                inspect.signature(self.maker).bind(**options)
            except TypeError:
                raise NotPossible(f"the function does not accept {names}; pass the id or the class") from None
        return self.maker(**options)

    def pickled(self) -> bytes:
        """Return the pickled function that creates the environment in another process.

        Raises:
            NotPossible: If it cannot be pickled, or another process cannot import it.
        """
        if self.source is None:
            raise NotPossible("an object without an id exists only in this process; pass its id or its class")
        if getattr(self.source, "__module__", None) == "__main__":
            raise NotPossible(f"{self.name} is defined in __main__, which cannot be imported; move it to a module")
        try:
            return pickle.dumps(self.source)
        except Exception as error:  # pickle calls user code, which may raise anything
            raise NotPossible(
                f"{self.name} cannot be pickled, so another process cannot create it ({error}); define it at the top "
                "level of a module"
            ) from error

    def command(self, check: str, seeds: range) -> str:
        """Return a command for the shell that repeats a check; empty if only this process knows the environment."""
        if self.is_id or self.command_line:
            command = self.command_line or f"envsdk check {self.name}"
            return f'{command} --seeds {seeds.start}:{seeds.stop} --only "{check}"'
        if not self.expression:
            return ""
        arguments = f"{self.expression}, seeds={seeds}, only={json.dumps(check)}"
        imports = f"import {self.module}; from envsdk.testing import check_env"
        command = f"python -c {shlex.quote(f'{imports}; check_env({arguments}).raise_if_failed()')}"
        file = Path(getattr(sys.modules.get(self.module), "__file__", None) or "")
        root = file.parents[self.module.count(".") + (file.stem == "__init__")] if file.is_absolute() else Path.cwd()
        is_found = root == Path.cwd() or "site-packages" in root.parts
        return command if is_found else f"PYTHONPATH={shlex.quote(str(root))} {command}"


def _of_spec(spec: EnvSpec) -> Subject:
    make = partial(_make, spec)
    is_known = is_of_plugin(spec)
    if is_known and (not spec.kwargs or spec == gymnasium.registry.get(spec.id)):
        return Subject(spec.id, make, make, make, is_id=True)
    options = "".join(f", {name}={value!r}" for name, value in spec.kwargs.items())
    try:
        ast.literal_eval(repr(spec.kwargs))
    except (ValueError, SyntaxError):  # such as a renderer that is an object
        return Subject(spec.id, make, make, make)
    if is_known:
        return Subject(spec.id, make, make, make, f"envsdk.make({spec.id!r}{options})", "envsdk")
    module, _, name = str(spec.entry_point).partition(":")
    expression = f"{module}.{name}" if not options else f"{module}.{name}({options[2:]})"
    return Subject(spec.id, make, make, make, *((expression, module) if name else ("", "")))


def _make(spec: EnvSpec, **options: Any) -> Env:
    env = spec.make(disable_env_checker=True, **options).unwrapped
    if not isinstance(env, Env):
        raise PluginError(f"the environment {spec.id!r} is {type_of(env)}; expected an envsdk.Env")
    return env
