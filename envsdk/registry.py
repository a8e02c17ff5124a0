"""Renderers and environments by name, the built-in ones and those of others alike.

Both come through entry points of installed packages. In the group `envsdk.renderers` an entry point's name is the
renderer's, and it points to its class; in `envsdk.environments` it points to a module that calls `register_env` when it
is imported. A plug-in that cannot be imported is reported by its name and stops no other.
"""

import inspect
import warnings
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from .errors import ConfigError, PluginError, unknown_name
from .tokenizers import load_tokenizer

if TYPE_CHECKING:
    from .env import Env
    from .renderer import Renderer

RENDERERS = "envsdk.renderers"
ENVIRONMENTS = "envsdk.environments"

_renderers: "dict[str, Callable[..., Renderer]]" = {}
_envs: dict[str, object] = {}
_loaded_plugins: set[str] = set()
_broken_plugins: dict[str, str] = {}


class PluginWarning(UserWarning):
    """A plug-in could not be imported."""


def register_renderer(name: str, factory: "Callable[..., Renderer]") -> None:
    """Register a renderer: `get_renderer(name, tokenizer, **options)` calls `factory(tokenizer, **options)`.

    A package registers its renderers with entry points in the group `envsdk.renderers` instead.
    """
    _renderers[name] = factory


def list_renderers() -> list[str]:
    """The names of all renderers."""
    return sorted({*_renderers, *(point.name for point in entry_points(group=RENDERERS))})


def get_renderer(name: str, tokenizer: Any = "embedded", **options: Any) -> "Renderer":
    """Make a renderer.

    Args:
        name: Its name; `list_renderers()` has them.
        tokenizer: What `load_tokenizer` takes.
        **options: The renderer's own options.

    Raises:
        UnknownName: If there is none of that name; near names are suggested.
        PluginError: If its package cannot be imported.
        ConfigError: If it does not take the options.
        TokenizerError: If the tokenizer does not load, or lacks control tokens that the family needs.
    """
    factory = _renderers.get(name)
    if factory is None:
        points = [point for point in entry_points(group=RENDERERS) if point.name == name]
        if not points:
            raise unknown_name("renderer", name, list_renderers())
        factory = _renderers[name] = _load(points[0])
    try:
        inspect.signature(factory).bind(None, **options)
    except TypeError as error:
        raise ConfigError(f"renderer {name!r} with {options}: {error}; it is {inspect.signature(factory)}") from error
    return factory(load_tokenizer(tokenizer), **options)


def register_env(id: str, entry_point: "str | Callable[..., Env]", **kwargs: Any) -> None:
    """Register an environment, with gymnasium too.

    Args:
        id: `namespace/Name-v0`.
        entry_point: The class, better as a string, `"module:Class"`: then its module is imported only when it is used.
        **kwargs: What `gymnasium.register` takes: `kwargs` (default arguments), `nondeterministic`, ...

    Raises:
        PluginError: If another environment has that id.
    """
    import gymnasium

    known = _envs.get(id)
    if known is not None:
        if known != entry_point:
            raise PluginError(f"the environment id {id!r} is taken by {known!r}; it cannot be {entry_point!r} as well")
        return
    gymnasium.register(id, entry_point=entry_point, **kwargs)  # pyright: ignore[reportUnknownMemberType]
    _envs[id] = entry_point


def list_envs() -> list[str]:
    """The ids of all environments, those of installed plug-ins included."""
    load_plugins()
    return sorted(_envs)


def make(id: str, **kwargs: Any) -> "Env":
    """Make an environment.

    Args:
        id: Its id; `list_envs()` has them.
        **kwargs: What its class takes: `renderer`, `tokenizer`, `history`, `limits`, `tasks`, and its own options.

    Returns:
        The environment itself, without gymnasium's wrappers.

    Raises:
        UnknownName: If there is none of that id; near ids are suggested.
        PluginError: If its module cannot be imported, or is no `envsdk.Env`.
    """
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    from .env import Env

    load_plugins()
    if id not in _envs:
        broken = "".join(f" The plug-in {name!r} failed to import: {why}." for name, why in _broken_plugins.items())
        raise unknown_name("environment", id, _envs, broken.strip())
    entry_point = _envs[id]
    try:
        if isinstance(entry_point, str):
            load_env_creator(entry_point)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"the environment {id!r} ({entry_point}) cannot be imported: {error}") from error
    env = gymnasium.make(id, disable_env_checker=True, **kwargs).unwrapped
    if not isinstance(env, Env):
        raise PluginError(f"the environment {id!r} is a {type(env).__name__}, and no envsdk.Env")
    return env


def load_plugins() -> None:
    """Import the environments' plug-ins, each once; one that fails is a `PluginWarning` with its name."""
    for point in entry_points(group=ENVIRONMENTS):
        key = f"{point.name}={point.value}"
        if key in _loaded_plugins:
            continue
        _loaded_plugins.add(key)
        try:
            _load(point)
        except PluginError as error:
            _broken_plugins[point.name] = str(error.__cause__)
            warnings.warn(f"{error}; its environments are not there", PluginWarning, stacklevel=3)


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:  # a plug-in is somebody else's code: whatever it raises is reported by its name
        raise PluginError(
            f"the plug-in {point.name!r} ({point.value}) cannot be imported: {type(error).__name__}: {error}"
        ) from error
