"""The options that commands share, each declared once; and their values: `key=value` pairs, and environments."""

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from .._registry import get_renderer
from .._specifications import specification as specification
from .._specifications import value_of
from .._visible import brief
from ..authoring._env import Env
from ..authoring._making import find_class, imported, make
from ..diagnostics._estimates import Prices, Sizes
from ..errors import ConfigError, PluginError
from ..policies._find import policy_of
from ..policies._policy import PolicyLike
from ..rendering.renderer import Renderer

SPECIFICATION = "A name, optionally with options: name:key=value,key=value, or JSON."
TOKENIZER = "'embedded', a folder, a file, or a Hugging Face id."
ENVIRONMENT = "An environment's id, such as envsdk/GuessNumber-v1, or a class as module:Class."
PRICE = "Prices per million tokens, such as input=0.5,cached=0.05,output=2,training=1."
NAMED = ("renderer", "tokenizer", "history", "tasks")
"""Options of every environment that have their own option on the command line."""

# An option has the name of the argument in Python, with dashes.
EnvName: TypeAlias = Annotated[str, typer.Argument(help=ENVIRONMENT)]
RendererOption: TypeAlias = Annotated[
    str | None, typer.Option(help=SPECIFICATION + " By default, the environment's renderer: usually qwen3.")
]
TokenizerOption: TypeAlias = Annotated[str | None, typer.Option(help=TOKENIZER + " By default, the environment's.")]
HistoryOption: TypeAlias = Annotated[
    str | None, typer.Option(help=SPECIFICATION + " Example: compact:every=10. By default, the environment's: keep.")
]
EnvOptions: TypeAlias = Annotated[
    list[str] | None, typer.Option(help="An option of the environment, as key=value. You may repeat it.")
]
TasksOption: TypeAlias = Annotated[Path | None, typer.Option(help="A JSONL file with one task per line.")]
PolicyOption: TypeAlias = Annotated[
    str,
    typer.Option(
        help="reference, null or random; a model on servers: vllm:URL, sglang:URL or openai:URL; one on this machine: "
        "transformers:FOLDER; or your own function or class: module:function."
    ),
]
ModelOption: TypeAlias = Annotated[str | None, typer.Option(help="The name of the model on the server.")]
PolicyOptions: TypeAlias = Annotated[
    list[str] | None, typer.Option(help="An argument of the policy, such as temperature=0.7. You may repeat it.")
]
SeedsOption: TypeAlias = Annotated[
    str, typer.Option(metavar="N|FIRST:END", help="The seeds, one for each task: their number, or FIRST:END.")
]
GroupSize: TypeAlias = Annotated[int, typer.Option(min=1, help="The number of episodes of each task.")]
MaxConcurrency: TypeAlias = Annotated[int, typer.Option(min=1, help="The maximum number of episodes at the same time.")]
PolicyTimeout: TypeAlias = Annotated[float, typer.Option(help="The maximum time of a call of the policy, in seconds.")]
Extend: TypeAlias = Annotated[
    bool, typer.Option("--extend", help="Continue the run in the folder, with more seeds than it has.")
]
AllowChanged: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--allow-changed",
        help="Continue although the environment's code, options or tasks have changed, in a new segment of the run.",
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print all figures as one line of JSON.")]


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
    pairs: Sequence[str] | None,
    renderer: str | None = None,
    tokenizer: str | None = None,
    history: str | None = None,
    tasks: Path | None = None,
) -> dict[str, Any]:
    """Return the options of an environment that the command line specifies; the environment decides about others.

    Raises:
        ConfigError: If a string is not a pair, a key appears twice, or it has its own option.
    """
    named: dict[str, Any] = {
        "renderer": renderer and specification(renderer),
        "tokenizer": tokenizer,
        "history": history and specification(history),
        "tasks": tasks and str(tasks),
    }
    return options_of(pairs or (), NAMED) | {name: value for name, value in named.items() if value is not None}


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


def policy_from(text: str, model: str | None, pairs: Sequence[str] | None, **more: Any) -> PolicyLike:
    """Return the policy that the command line specifies. Modules in the current folder are found.

    Raises:
        UnknownName, PluginError: If there is no such policy, or it cannot be imported.
        ConfigError: If an option is missing or not valid.
    """
    import_from_here()
    return policy_of(text, **more, **policy_options(model, pairs))


def policy_options(model: str | None, pairs: Sequence[str] | None) -> dict[str, Any]:
    """Return the arguments of the policy that the command line specifies.

    Raises:
        ConfigError: If a string is not a pair, or a key appears twice.
    """
    options = options_of(pairs or ())
    if model is None:
        return options  # `envsdk onpolicy` has its own --model, so the server's model is one of these options
    if "model" in options:
        raise ConfigError(f"--model {model} and --policy-option model=... both name the model; give one of them")
    return options | {"model": model}


def function_from(path: str, argument: str = "a trajectory") -> Callable[[Any], Any]:
    """Return the function that is given as `module:function`.

    Raises:
        PluginError: If it cannot be imported.
    """
    found = imported(path, "a function as module:function")
    if not callable(found):
        raise PluginError(f"{path!r} is {brief(found)}; expected a function of {argument}")
    return found


def import_from_here() -> None:
    """Let modules in the current folder be imported."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
