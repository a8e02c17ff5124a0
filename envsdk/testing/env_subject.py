"""The environment that is checked: how others of it are made, here and in another process, and what it is called."""

import copy
import inspect
import json
import pickle
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec

from ..authoring.env import Env
from ..errors import ConfigError, PluginError, unknown_name
from ..registry import list_envs
from .reports import NotPossible

EnvLike: TypeAlias = str | type[Env] | Callable[[], Env] | Env
"""What `check_env` takes: an id, a class, a function that makes one, or an environment."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked."""

    name: str
    make: Callable[[], Env]
    """Makes another one, as new."""
    make_with: Callable[..., Env]
    """Makes another one with other options; raises `NotPossible` where those cannot be set."""
    source: Callable[[], Env] | None
    """What makes one in another process, if it can be pickled."""
    expression: str
    """How Python code has it."""
    module: str = ""
    """Where that is imported from."""
    is_id: bool = False
    """Whether the command line can name it."""

    @classmethod
    def of(cls, given: EnvLike) -> "Subject":
        """What was given to check.

        Raises:
            UnknownName: If it is an id, and there is no environment of it.
            ConfigError: If it is nothing that an environment can be made of.
        """
        if isinstance(given, gymnasium.Env):
            given = cast("Env", cast("Any", given).unwrapped)  # gymnasium's wrappers are not checked
        if isinstance(given, str):
            if given not in list_envs():
                raise unknown_name("environment", given, list_envs())
            return _of_spec(gymnasium.registry[given])
        if isinstance(given, Env):
            return _of_object(given)
        return _of_maker(given)

    def pickled(self) -> bytes:
        """What makes one in another process, as bytes.

        Raises:
            NotPossible: If it is known in this process only.
        """
        if self.source is None:
            raise NotPossible("an object without an id is in this process only; give its id or its class")
        if getattr(self.source, "__module__", None) == "__main__":
            raise NotPossible(f"{self.name} stands in the program that is run; put it into a module")
        try:
            return pickle.dumps(self.source)
        except Exception as error:  # pickle calls anybody's code
            raise NotPossible(
                f"{self.name} cannot be pickled, so that no other process can make it ({error}); define it at the top "
                "of a module"
            ) from error

    def command(self, check: str, first_seed: int, seeds: int) -> str:
        """What repeats a check: a line for the shell, or for Python where the shell cannot name the environment."""
        if self.is_id:
            return f'envsdk check {self.name} --seed {first_seed} --seeds {seeds} --only "{check}"'
        arguments = f"{self.expression}, first_seed={first_seed}, seeds={seeds}, only={json.dumps(check)}"
        call = f"check_env({arguments}).raise_if_failed()"
        if not self.module:
            return call
        imports = f"import {self.module}; from envsdk.testing import check_env"
        return f"python -c {shlex.quote(f'{imports}; {call}')}"


def _of_spec(spec: EnvSpec) -> Subject:
    make = partial(_make, spec)
    if not spec.kwargs or spec == gymnasium.registry.get(spec.id):
        return Subject(spec.id, make, make, make, repr(spec.id), is_id=True)
    written = ", ".join([repr(spec.id), *(f"{name}={value!r}" for name, value in spec.kwargs.items())])
    return Subject(spec.id, make, make, make, f"envsdk.make({written})", "envsdk")


def _of_maker(make: Any) -> Subject:
    is_class = inspect.isclass(make)
    if not (issubclass(make, Env) if is_class else callable(make)):
        raise ConfigError(
            f"check_env takes an environment, its id, its class, or a function that makes one; got {make!r:.80}"
        )
    name, maker = str(getattr(make, "__name__", make)), cast("Callable[..., Env]", make)
    return Subject(name, maker, maker if is_class else partial(_call_with, maker), maker, *_named(make))


def _of_object(env: Env) -> Subject:
    another = partial(copy.deepcopy, env)
    if env.spec is None:
        return Subject(env.name, another, _refuse_options, None, "env")
    made = _of_spec(env.spec)
    return Subject(made.name, another, made.make_with, made.source, made.expression, made.module, made.is_id)


def _make(spec: EnvSpec, **options: Any) -> Env:
    env = spec.make(disable_env_checker=True, **options).unwrapped
    if not isinstance(env, Env):
        raise PluginError(f"the environment {spec.id!r} is a {type(env).__name__}, and no envsdk.Env")
    return env


def _refuse_options(**options: Any) -> Env:
    raise NotPossible(f"{', '.join(options)} of an object cannot be set; give its id or its class")


def _call_with(function: Callable[..., Env], **options: Any) -> Env:
    try:
        inspect.signature(function).bind(**options)
    except TypeError:
        raise NotPossible(f"the function does not take {', '.join(options)}; give the id or the class") from None
    return function(**options)


def _named(value: Any) -> tuple[str, str]:
    """How Python code has a class or a function, and its module; without one if it cannot be imported."""
    module, name = getattr(value, "__module__", "__main__"), getattr(value, "__qualname__", "")
    if not name or "<" in name or module == "__main__":
        return name.rpartition(".")[2] if name and "<lambda>" not in name else "make_env", ""
    return f"{module}.{name}", module
