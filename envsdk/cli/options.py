"""What a user types as options: names with options, `key=value`, and which environment is meant."""

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..authoring.env import Env
from ..authoring.making import make
from ..errors import ConfigError, PluginError
from ..specifications import specification as specification
from ..specifications import value_of

SPECIFICATION = "A name, with options as name:key=value,key=value or as JSON."
TOKENIZER = "'embedded', a folder or file, or a Hugging Face id."
ENVIRONMENT = "An environment's id, such as envsdk/GuessNumber-v0, or a class as module:Class."
NAMED = ("renderer", "tokenizer", "history", "tasks")
"""Options of every environment that have a place of their own on the command line."""
OPTION = "An option of the environment, as key=value; may be given again."


def options_of(pairs: Sequence[str], reserved: Sequence[str] = ()) -> dict[str, Any]:
    """Read options, each given as `key=value`.

    Args:
        pairs: What was typed.
        reserved: Options that have a place of their own on the command line.

    Raises:
        ConfigError: If one is no such pair, is given twice, or is reserved.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip()
        if not equals or not key.isidentifier():
            raise ConfigError(f"the option {pair!r} is no key=value")
        if key in reserved:
            raise ConfigError(f"{key!r} is no option of an environment: give it as --{key}")
        if key in options:
            raise ConfigError(f"the option {key!r} is given twice")
        options[key] = value_of(value)
    return options


def maker(env: str, options: dict[str, Any]) -> Callable[[], Env]:
    """What makes the environment of an id, or of a class given as `module:Class`; modules may be in this folder.

    Raises:
        PluginError: If there is no such module or no such class in it.
    """
    module, colon, name = env.partition(":")
    if not colon:
        return functools.partial(make, env, **options)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise PluginError(f"{env!r} cannot be imported: {error}. Give an id, or a class as module:Class") from error
    if not isinstance(found, type) or not issubclass(found, Env):
        raise PluginError(f"{env!r} is {found!r:.80}, and no subclass of envsdk.Env")
    return functools.partial(found, **options) if options else found
