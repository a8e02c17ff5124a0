"""Make and describe environments that are registered, and find the classes of others."""

import copy
import functools
import inspect
import math
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import gymnasium

from .._registry import ENVIRONMENTS, find_creator, load_plugins, make_registered, package_of
from .._visible import brief, type_of
from ..errors import ConfigError, EnvsdkError, PluginError
from ._env import Env

_EXERCISES = re.compile(r"Exercises:\s+(.*?)\.(?:\s|$)", re.DOTALL)


def make(id: str, **kwargs: Any) -> Env:
    """Make an environment.

    Args:
        id: Its id; `list_envs()` returns all of them.
        **kwargs: Arguments of its class: `renderer`, `tokenizer`, `history`, `limits`, `tasks`, and its own options.

    Returns:
        The environment itself, without gymnasium's wrappers.

    Raises:
        UnknownName: If no environment has that id; similar ids are suggested.
        PluginError: If its module cannot be imported, or it is not an `envsdk.Env`.
        ConfigError: If it is given as a class.
    """
    if isinstance(id, type):  # pyright: ignore[reportUnnecessaryIsInstance]
        name = id.__name__
        raise ConfigError(f"make() takes the id of an environment, and got the class {name}: call it, as in {name}()")
    env = make_registered(id, **kwargs)
    if not isinstance(env, Env):
        raise PluginError(f"the environment {id!r} is {type_of(env)}, not an envsdk.Env")
    return env


def maker_of(env: Env | str | Callable[[], Env]) -> Callable[[], Env]:
    """Return a function that makes an environment: of an id, the copy of one, or the given function.

    Raises:
        ConfigError: If it is something else.
    """
    if isinstance(env, Env):
        return functools.partial(copy.deepcopy, env)
    if not (isinstance(env, str) or callable(env)):
        raise ConfigError(f"{brief(env)} is not an environment, its id, or a function that makes one")
    return functools.partial(make, env) if isinstance(env, str) else env


def find_class(name: str) -> type[Env]:
    """Return the class of an environment, given as `module:Class`.

    Raises:
        PluginError: If it cannot be imported, or is not a subclass of `Env`.
    """
    found = imported(name, "an id, or a class as module:Class")
    if not isinstance(found, type) or not issubclass(found, Env):
        raise PluginError(f"{name!r} is {brief(found)}; expected a subclass of envsdk.Env")
    return found


def imported(path: str, expected: str) -> Any:
    """Import an object of a module, given as `module:name`, and return it.

    Args:
        path: The module and the name.
        expected: The valid forms, for the error message.

    Raises:
        PluginError: If it cannot be imported.
    """
    try:
        return pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise PluginError(f"{path!r} cannot be imported: {error}. Expected {expected}") from error


def splits_of(cls: type[Env]) -> list[str]:
    """Return the values of an environment's option `split`, without None; an empty list without the option."""
    option = cls.Config.model_fields.get("split")
    kinds: list[Any] = [] if option is None else [option.annotation, *get_args(option.annotation)]
    return [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind) if value]


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """The catalog's description of an environment.

    Attributes:
        id: The environment's id.
        summary: The first paragraph of the class's docstring.
        exercises: The text after `Exercises:` in the docstring, up to the end of the sentence.
        tools: The names of the tools.
        reward_range: The lowest and the highest reward of an episode; None where it is unknown.
        n_tasks: The number of different tasks, or None if each seed has its own.
        nondeterministic: Whether the same seed may give different episodes.
        problem: Why the environment cannot be made on this machine, or None.
        package: The name of the installed package that its class comes from; empty if it is of no plug-in.
        version: The package's version.
    """

    id: str
    summary: str = ""
    exercises: str = ""
    tools: tuple[str, ...] = ()
    reward_range: tuple[float | None, float | None] = (None, None)
    n_tasks: int | None = None
    nondeterministic: bool = False
    problem: str | None = None
    package: str = ""
    version: str = ""


def describe(id: str, **options: Any) -> CatalogEntry:
    """Return the description of an environment, which is made for this purpose.

    Args:
        id: Its id, or its class as `module:Class`.
        **options: Arguments of its class.
    """
    is_class = ":" in id
    load_plugins()
    spec = gymnasium.registry.get(id)
    is_random = spec is not None and spec.nondeterministic
    try:
        package, version = package_of(ENVIRONMENTS, id if is_class else find_creator(id))
        env = find_class(id)(**options) if is_class else make(id, **options)
    except (EnvsdkError, ImportError) as error:
        return CatalogEntry(id, nondeterministic=is_random, problem=" ".join(str(error).split()))
    text = inspect.getdoc(type(env)) or ""
    found = _EXERCISES.search(text)
    least, most = (bound if math.isfinite(bound) else None for bound in env.reward_range)
    tools = tuple(str(tool.get("function", tool)["name"]) for tool in env.default_tools())
    env.close()
    return CatalogEntry(
        id,
        " ".join(text.partition("\n\n")[0].split()),
        " ".join(found[1].split()) if found else "",
        tools,
        (least, most),
        env.n_tasks if env.tasks is None else len(env.tasks),
        is_random,
        package=package,
        version=version,
    )
