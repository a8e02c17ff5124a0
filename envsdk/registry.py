"""Renderers and environments by name, the built-in ones and those of others alike.

Both come through entry points of installed packages. In the group `envsdk.renderers` an entry point's name is the
renderer's, and it points to its class; in `envsdk.environments` it points to a module that calls `register_env` when it
is imported. A plug-in that cannot be imported is reported by its name and stops no other.
"""

import inspect
import re
import warnings
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from .contexts.history_policy import HistoryPolicy
from .errors import ConfigError, PluginError, unknown_name
from .history import is_named
from .limits import Limits
from .rendering.renderer import Renderer
from .rendering.tokenizers import load_tokenizer
from .specifications import specification

RENDERERS = "envsdk.renderers"
ENVIRONMENTS = "envsdk.environments"

_ID = re.compile(r"[\w:-]+/[\w:.-]+-v\d+")
_renderers: dict[str, Callable[..., Renderer]] = {}
_envs: dict[str, object] = {}
_loaded_plugins: set[str] = set()
_broken_plugins: dict[str, str] = {}


class PluginWarning(UserWarning):
    """A plug-in could not be imported."""


def register_renderer(name: str, factory: Callable[..., Renderer]) -> None:
    """Register a renderer: `get_renderer(name, tokenizer, **options)` calls `factory(tokenizer, **options)`.

    A package registers its renderers with entry points in the group `envsdk.renderers` instead.

    Raises:
        PluginError: If another renderer has that name.
    """
    points = {point.value for point in entry_points(group=RENDERERS) if point.name == name}
    known = {_path(_renderers[name])} if name in _renderers else points
    if known - {_path(factory)}:
        raise PluginError(f"the renderer name {name!r} is taken by {known.pop()}")
    _renderers[name] = factory


def list_renderers() -> list[str]:
    """The names of all renderers."""
    return sorted({*_renderers, *(point.name for point in entry_points(group=RENDERERS))})


def get_renderer(name: str, tokenizer: Any = None, **options: Any) -> Renderer:
    """Make a renderer.

    Args:
        name: Its name; `list_renderers()` has them. It may have options, as in `"qwen3:enable_thinking=false"`.
        tokenizer: What `load_tokenizer` takes; None is the embedded vocabulary by default.
        **options: The renderer's own options.

    Raises:
        UnknownName: If there is none of that name; near names are suggested.
        PluginError: If its package cannot be imported.
        ConfigError: If it does not take the options.
        TokenizerError: If the tokenizer does not load, or lacks control tokens that the family needs.
    """
    given = specification(name) if isinstance(name, str) else name  # pyright: ignore[reportUnnecessaryIsInstance]
    if isinstance(given, dict):
        options = {**given, **options}
        name = options.pop("name", "")
    factory = _renderers.get(name)
    if factory is None:
        points = [point for point in entry_points(group=RENDERERS) if point.name == name]
        if not points:
            raise unknown_name("renderer", name, list_renderers())
        if len({point.value for point in points}) > 1:
            raise PluginError(f"two packages have a renderer {name!r}: {', '.join(point.value for point in points)}")
        factory = _renderers[name] = _load(points[0])
    try:
        inspect.signature(factory).bind(None, **options)
    except TypeError as error:
        raise ConfigError(f"renderer {name!r} with {options}: {error}; it is {inspect.signature(factory)}") from error
    renderer: object = factory(load_tokenizer(tokenizer), **options)
    if not isinstance(renderer, Renderer):
        raise PluginError(f"the renderer {name!r} is a {type(renderer).__name__}, and no envsdk.Renderer")
    return renderer


def register_env(id: str, entry_point: str | Callable[..., Any], **kwargs: Any) -> None:
    """Register an environment, with gymnasium too.

    Args:
        id: `namespace/Name-v0`.
        entry_point: The class, better as a string, `"module:Class"`: then its module is imported only when it is used.
        **kwargs: What `gymnasium.register` takes: `kwargs` (default arguments), `nondeterministic`, ...

    Raises:
        ConfigError: If the id has another form.
        PluginError: If another environment has that id.
    """
    if not isinstance(id, str) or not _ID.fullmatch(id):  # pyright: ignore[reportUnnecessaryIsInstance]
        name = re.sub(r"[^\w-]", "", str(id).rpartition("/")[2]) or "Name"
        like = name if re.search(r"-v\d+$", name) else f"{name}-v0"
        raise ConfigError(f"the environment id is {id!r:.80}; expected namespace/Name-v0, such as 'you/{like}'")
    _refuse_gymnasium_limit(kwargs)
    known = _envs.get(id)
    if known is not None and _path(known) != _path(entry_point):
        raise PluginError(f"the environment id {id!r} is taken by {_path(known)}; {_path(entry_point)} needs another")
    gymnasium.registry.pop(id, None)  # a class that is defined again, as in a notebook, takes its own place
    gymnasium.register(id, entry_point=entry_point, **kwargs)  # pyright: ignore[reportUnknownMemberType]
    _envs[id] = entry_point


def list_envs() -> list[str]:
    """The ids of all environments, those of installed plug-ins included."""
    load_plugins()
    return sorted(_envs)


def make_registered(id: str, **kwargs: Any) -> object:
    """Make what is registered under an id, without gymnasium's wrappers; see `envsdk.make`.

    Raises:
        UnknownName: If there is no environment of that id; similar ids are suggested.
        PluginError: If its module cannot be imported.
    """
    _refuse_gymnasium_limit(kwargs)
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
    options: dict[str, Any] = {name: _as_json(value) for name, value in kwargs.items()}
    return gymnasium.make(id, disable_env_checker=True, **options).unwrapped


def load_plugins() -> None:
    """Import the environments' plug-ins, each once; one that fails is a `PluginWarning` with its name."""
    # Our own first, so that another that takes one of its ids is the one that is refused.
    for point in sorted(entry_points(group=ENVIRONMENTS), key=lambda point: point.name != "envsdk"):
        key = f"{point.name}={point.value}"
        if key in _loaded_plugins:
            continue
        _loaded_plugins.add(key)
        try:
            _load(point)
        except PluginError as error:
            _broken_plugins[point.name] = str(error.__cause__)
            warnings.warn(f"{error}; its environments are not there", PluginWarning, stacklevel=3)


def _refuse_gymnasium_limit(kwargs: dict[str, Any]) -> None:
    if kwargs.get("max_episode_steps") is not None:
        raise ConfigError("max_episode_steps would end an episode behind envsdk's back; use limits={'max_steps': ...}")


def _as_json(value: object) -> object:
    """Limits and history policies as JSON, so that the environment's specification is JSON, too."""
    if isinstance(value, Limits):
        return value.model_dump()  # every field: a mapping changes only what it names
    return value.specification() if isinstance(value, HistoryPolicy) and is_named(value) else value


def _path(entry_point: object) -> str:
    """Where a class or function is, as entry points write it."""
    if isinstance(entry_point, str):
        return entry_point
    return f"{getattr(entry_point, '__module__', '?')}:{getattr(entry_point, '__qualname__', repr(entry_point))}"


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # a plug-in is somebody else's code: what it raises is reported
        raise PluginError(
            f"the plug-in {point.name!r} ({point.value}) cannot be imported: {type(error).__name__}: {error}"
        ) from error
