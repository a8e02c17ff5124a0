"""Makes environments that are registered, and finds the classes of others."""

import functools
import importlib
from typing import Any, cast

from .._registry import make_registered
from ..errors import PluginError
from ._env import Env


def make(id: str, **kwargs: Any) -> Env:
    """Make an environment.

    Args:
        id: Its id; `list_envs()` returns all of them.
        **kwargs: What its class takes: `renderer`, `tokenizer`, `history`, `limits`, `tasks`, and its own options.

    Returns:
        The environment itself, without gymnasium's wrappers.

    Raises:
        UnknownName: If there is no environment of that id; similar ids are suggested.
        PluginError: If its module cannot be imported, or it is not an `envsdk.Env`.
    """
    env = make_registered(id, **kwargs)
    if not isinstance(env, Env):
        raise PluginError(f"the environment {id!r} is a {type(env).__name__}, not an envsdk.Env")
    return env


def find_class(name: str) -> type[Env]:
    """Return the class of an environment, given as `module:Class`.

    Raises:
        PluginError: If it cannot be imported, or is not a subclass of `Env`.
    """
    found = imported(name, "an id, or a class as module:Class")
    if not isinstance(found, type) or not issubclass(found, Env):
        raise PluginError(f"{name!r} is {found!r:.80}; expected a subclass of envsdk.Env")
    return found


def imported(path: str, expected: str) -> Any:
    """Return what a module contains, given as `module:name`.

    Args:
        path: The module and the name.
        expected: What a user may give, for the error.

    Raises:
        PluginError: If it cannot be imported.
    """
    module, _, name = path.partition(":")
    try:
        return functools.reduce(getattr, name.split("."), cast("Any", importlib.import_module(module)))
    except (ImportError, AttributeError, ValueError) as error:
        raise PluginError(f"{path!r} cannot be imported: {error}. Expected {expected}") from error
