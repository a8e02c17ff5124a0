"""Option values of the command line: names with options, `key=value` pairs, and environments."""

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from .._registry import get_renderer
from .._specifications import specification as specification
from .._specifications import value_of
from ..authoring._env import Env
from ..authoring._making import find_class, imported, make
from ..diagnostics._estimates import Prices, Sizes
from ..errors import ConfigError, PluginError
from ..rendering.renderer import Renderer

SPECIFICATION = "A name, optionally with options: name:key=value,key=value, or JSON."
RENDERER = SPECIFICATION + " By default, the environment's renderer: usually qwen3."
TOKENIZER = "'embedded', a folder, a file, or a Hugging Face id."
ENVIRONMENT = "An environment's id, such as envsdk/GuessNumber-v1, or a class as module:Class."
ALLOW_CHANGED = "Continue although the environment's code, options or tasks have changed; the folder records it."
PRICE = "Prices per million tokens, such as input=0.5,cached=0.05,output=2,training=1."
NAMED = ("renderer", "tokenizer", "history", "tasks")
"""Options of every environment that have their own option on the command line."""
POLICY = (
    "reference, null or random; a model on servers: vllm:URL, sglang:URL or openai:URL; or one on this machine: "
    "transformers:FOLDER."
)
POLICY_OPTION = "An argument of the policy, such as temperature=0.7. You may repeat it."
OPTION = "An option of the environment, as key=value. You may repeat it."


def options_of(pairs: Sequence[str], reserved: Sequence[str] = ()) -> dict[str, Any]:
    """Parse `key=value` pairs.

    Args:
        pairs: The pairs.
        reserved: Keys that have their own option on the command line.

    Raises:
        ConfigError: If a string is not a pair, a key appears twice, or a key is reserved.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip()
        if not equals or not key.isidentifier():
            raise ConfigError(f"--option is {pair!r}; expected key=value")
        if key in reserved:
            raise ConfigError(f"--option is {pair!r}; expected --{key} {value} instead")
        if key in options:
            raise ConfigError(f"--option {key}=... appears twice; expected it once")
        options[key] = value_of(value)
    return options


def numbers_of(name: str, text: str, kind: type[Prices] | type[Sizes]) -> dict[str, Any]:
    """Return the numbers of an option such as `input=0.5,output=2`, which are fields of a class.

    Raises:
        ConfigError: If a number is not one of the fields.
    """
    known = [field.name for field in fields(kind)]
    given = options_of([pair for pair in text.split(",") if pair])
    if not given or not given.keys() <= set(known):
        raise ConfigError(f"{name} is {text!r}; expected some of {', '.join(known)}, as name=number,name=number")
    return given


def env_options(
    pairs: Sequence[str] | None, renderer: str | None, tokenizer: str, history: str, tasks: Path | None
) -> dict[str, Any]:
    """Return the options of an environment that the command line specifies.

    Raises:
        ConfigError: If a string is not a pair, a key appears twice, or it has its own option.
    """
    options = options_of(pairs or (), NAMED) | ({} if tasks is None else {"tasks": str(tasks)})
    family = {"renderer": renderer and specification(renderer), "tokenizer": tokenizer}
    return {**options, **family, "history": specification(history)}


def maker(env: str, options: dict[str, Any]) -> Callable[[], Env]:
    """Return a function that creates an environment from an id or from `module:Class`.

    Modules in the current folder are found.

    Raises:
        PluginError: If the module or the class cannot be imported.
    """
    found = environment(env)
    if isinstance(found, str):
        return functools.partial(make, found, **options)
    return functools.partial(found, **options) if options else found


def environment(env: str) -> str | type[Env]:
    """Return the id of an environment, or the class that is given as `module:Class`.

    Raises:
        PluginError: If the module or the class cannot be imported.
    """
    if ":" not in env:
        return env
    import_from_here()
    return find_class(env)


def renderer_from(text: str, tokenizer: str) -> Renderer:
    """Return the renderer that the command line specifies.

    Raises:
        UnknownName: If there is no such renderer.
        ConfigError: If an option is not valid.
    """
    given = specification(text)
    options = {"name": given} if isinstance(given, str) else dict(given)
    return get_renderer(options.pop("name", ""), tokenizer, **options)


def policy_options(model: str | None, pairs: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of the policy that the command line specifies.

    Raises:
        ConfigError: If a string is not a pair, or a key appears twice.
    """
    return options_of(pairs, ("model",)) | ({} if model is None else {"model": model})


def function_from(path: str, argument: str = "a trajectory") -> Callable[[Any], Any]:
    """Return the function that is given as `module:function`.

    Raises:
        PluginError: If it cannot be imported.
    """
    found = imported(path, "a function as module:function")
    if not callable(found):
        raise PluginError(f"{path!r} is {found!r:.80}; expected a function of {argument}")
    return found


def import_from_here() -> None:
    """Let modules in the current folder be imported."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
