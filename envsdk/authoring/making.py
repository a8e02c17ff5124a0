"""Makes environments that are registered, and finds the classes of others."""

import functools
import importlib
from typing import Any

from ..errors import PluginError
from ..registry import make_registered
from .env import Env


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
    module, _, path = name.partition(":")
    try:
        found: Any = functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise PluginError(
            f"{name!r} cannot be imported: {error}. Expected an id, or a class as module:Class"
        ) from error
    if not isinstance(found, type) or not issubclass(found, Env):
        raise PluginError(f"{name!r} is {found!r:.80}; expected a subclass of envsdk.Env")
    return found
