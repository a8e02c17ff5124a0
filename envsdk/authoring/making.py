"""Makes registered environments."""

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
