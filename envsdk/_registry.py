"""The registry of renderers and environments, built-in and third-party alike.

Both are found through the entry points of installed packages. In the group `envsdk.renderers`, an entry point has the
renderer's name and points to its class. In the group `envsdk.environments`, it points to a module that calls
`register_env` when it is imported. A plug-in that cannot be imported is reported by name, and the others still load.
"""

import contextlib
import inspect
import pkgutil
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from ._specifications import specification
from ._visible import brief, type_of
from .contexts._history import HistoryPolicy
from .errors import ConfigError, PluginError, UnknownName
from .limits import Limits
from .rendering import tokenizers
from .rendering.renderer import Renderer

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

RENDERERS = "envsdk.renderers"
ENVIRONMENTS = "envsdk.environments"

_ID = r"[\w:-]+/[\w:.-]+-v\d+"
_renderers: dict[str, Callable[..., Renderer]] = {}
_envs: dict[str, object] = {}
_loaded_plugins: set[str] = set()
_loading = threading.RLock()
_failed_plugins: dict[str, str] = {}


class PluginWarning(UserWarning):
    """A plug-in cannot be imported, so its environments are not available."""


def register_renderer(name: str, factory: Callable[..., Renderer]) -> None:
    """Register a renderer under a name. A package should use an entry point in the group `envsdk.renderers` instead.

    Args:
        name: The renderer's name.
        factory: Makes the renderer, such as its class: `get_renderer(name, tokenizer, **options)` returns
            `factory(tokenizer, **options)`.

    Raises:
        PluginError: If another renderer has that name.
    """
    if not callable(factory):
        raise ConfigError(f"the factory of the renderer {name!r} is {brief(factory)}; expected a class or a function")
    points = {point.value for point in _entry_points(RENDERERS) if point.name == name}
    known = {_path(_renderers[name])} if name in _renderers else points
    if known - {_path(factory)}:
        raise PluginError(f"the renderer name {name!r} is taken by {known.pop()}; {_path(factory)} needs another name")
    _renderers[name] = factory


def list_renderers() -> list[str]:
    """Return the names of all renderers, sorted."""
    return sorted({*_renderers, *(point.name for point in _entry_points(RENDERERS))})


def renderer_factories() -> dict[str, Callable[..., Renderer]]:
    """Return the factory of each renderer (such as its class) by name, except those that cannot be imported."""
    points = list(_entry_points(RENDERERS))
    found: dict[str, Callable[..., Renderer]] = {}
    for name in sorted({*_renderers, *(point.name for point in points)}):
        try:
            found[name] = _factory(name, points)
        except PluginError as error:
            import logging

            logging.getLogger(__name__).warning("%s", error)
    return found


def _factory(name: str, points: "Iterable[EntryPoint] | None" = None) -> Callable[..., Renderer]:
    """Return the factory of the renderer with a name.

    Raises:
        UnknownName: If no renderer has that name. Similar names are suggested.
        PluginError: If the renderer's package cannot be imported, or several packages provide the name.
    """
    factory = _renderers.get(name)
    if factory is None:
        own = [point for point in points or _entry_points(RENDERERS) if point.name == name]
        if not own:
            hint = _families_of(name, list_renderers())
            raise (
                UnknownName(f"No renderer is named {name!r}. {hint}")
                if hint
                else UnknownName.of("renderer", name, list_renderers())
            )
        if len({point.value for point in own}) > 1:
            found = ", ".join(point.value for point in own)
            raise PluginError(f"several packages provide a renderer {name!r}: {found}; uninstall all but one of them")
        factory = _renderers[name] = _load(own[0])
    return factory


_MODELS = {"gpt-oss": "harmony", "magistral": "mistral-3", "ministral": "mistral-3", "devstral": "mistral-3"}
"""The renderers of models whose names do not contain the family's name, by the beginning of the model's name."""


def _joined(name: str) -> str:
    return re.sub(r"[-_. ]", "", name)


def _families_of(model: object, names: Sequence[str]) -> str:
    """Return advice that names the renderers of a model, given by its name or its id on a hub; empty if none is known.

    A family's name is in the name of its models, word by word: `qwen3-instruct-2507` in `Qwen3-4B-Instruct-2507`, and
    `llama-3` in `Llama-3.1-8B`. What separates the words of a family's name may be left out, or be another sign.
    """
    given = str(model).lower().rpartition("/")[2]
    words, joined = set(re.split(r"[-_ ]", given)), _joined(given)
    found = [family for name, family in _MODELS.items() if joined.startswith(_joined(name))]
    found = found or [name for name in names if _joined(name) == joined]
    found += [
        name
        for name in sorted(names, key=lambda name: (-len(name.split("-")), -len(name)))
        if all(any(word == part or word.startswith(f"{part}.") for word in words) for part in name.split("-"))
    ][: not found]
    stem = re.split(r"[-_. ]", given)[0]
    if not found and len(stem) > 2:
        found = [name for name in sorted(names) if name.startswith(stem.rstrip("0123456789"))]
    if "/" in str(model):
        of_family = f", or with renderer={min(found, key=len)!r}" if found else ""
        return (
            f"A model is given as the tokenizer: tokenizer={model!r}, with renderer='auto', which chooses by the "
            f"tokenizer's chat template{of_family}."
        )
    if not found:
        return ""
    families = " or ".join(map(repr, sorted(found, key=len)))
    return f"Did you mean {families}? With a tokenizer, renderer='auto' chooses by its chat template."


_OPTIONS_OF_HISTORY = ("strip_thinking_from_history", "strip_thinking", "keep_thinking")


def refuse_history_options(options: Mapping[str, Any]) -> None:
    """Refuse the options that other libraries use for the history policy.

    Raises:
        ConfigError: If one is given. The message names the environment's option instead.
    """
    if given := [name for name in _OPTIONS_OF_HISTORY if name in options]:
        raise ConfigError(
            f"{given[0]}={brief(options[given[0]], 40)} is not an option of a renderer. The environment's history "
            f"policy decides which reasoning stays in later prompts: history='strip' shows what the model's "
            "template shows, history='keep' shows all of it"
        )


def get_renderer(name: str, tokenizer: Any = None, **options: Any) -> Renderer:
    """Make a renderer by its name.

    Args:
        name: The renderer's name, one of `list_renderers()`. It may include options:
            `"qwen3:enable_thinking=false"`.
        tokenizer: What `load_tokenizer` accepts; None is the embedded vocabulary.
        **options: The renderer's own options.

    Raises:
        UnknownName: If no renderer has that name. Similar names are suggested.
        PluginError: If the renderer's package cannot be imported, or it does not make a `Renderer`.
        ConfigError: If the renderer does not accept an option.
        TokenizerError: If the tokenizer cannot be loaded, or lacks control tokens that the model family needs.
    """
    given = specification(name) if isinstance(name, str) else name  # pyright: ignore[reportUnnecessaryIsInstance]
    if isinstance(given, dict):
        options = {**given, **options}
        name = options.pop("name", "")
    factory = _factory(name)
    refuse_history_options(options)
    try:
        inspect.signature(factory).bind(None, **options)
    except TypeError as error:
        own = [*inspect.signature(factory).parameters][1:]
        raise ConfigError(
            f"the renderer {name!r} does not accept {options}: {error}. Its options: {', '.join(own) or 'none'}"
        ) from error
    renderer: object = factory(tokenizers.load_tokenizer(tokenizer), **options)
    if not isinstance(renderer, Renderer):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PluginError(f"the renderer {name!r} is {type_of(renderer)}; expected an envsdk.Renderer")
    return renderer


def find_renderer(renderer: str | Mapping[str, Any] | Renderer, tokenizer: Any = None) -> Renderer:
    """Return a renderer that is given by its name, its name with options, or as an object.

    Args:
        renderer: Its name, its name with options (`{"name": "qwen3", "enable_thinking": False}`), or an object.
        tokenizer: What `load_tokenizer` takes; None is the embedded vocabulary by default, or the object's own.

    Raises:
        ConfigError: If an object is given together with a different tokenizer, or `renderer` has another type.
        UnknownName: If no renderer has that name.
    """
    if isinstance(renderer, Renderer):
        if tokenizer is not None and tokenizers.load_tokenizer(tokenizer).fingerprint != renderer.tokenizer.fingerprint:
            raise ConfigError(
                f"tokenizer is {brief(tokenizer)}, but the renderer is an object that already has another one, "
                f"{renderer.tokenizer.name!r}: give only one of them, or get_renderer({renderer.name!r}, tokenizer)"
            )
        return renderer
    if not isinstance(renderer, (str, Mapping)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"renderer is {brief(renderer)}; expected a name, a name with options, or a Renderer")
    options: dict[str, Any] = {"name": renderer} if isinstance(renderer, str) else dict(renderer)
    return get_renderer(options.pop("name", None), tokenizer, **options)


def register_env(id: str, entry_point: str | Callable[..., Any], **kwargs: Any) -> None:
    """Register an environment under an id, with gymnasium as well.

    Args:
        id: The id, in the form `namespace/Name-v0`.
        entry_point: The class, preferably as a string `"module:Class"`, so that its module is imported only when the
            environment is used.
        **kwargs: Further arguments of `gymnasium.register`, such as `kwargs` (default arguments) and
            `nondeterministic`.

    Raises:
        ConfigError: If the id has another form, or `max_episode_steps` is given.
        PluginError: If another environment has that id.
    """
    if not isinstance(id, str) or not re.fullmatch(_ID, id):  # pyright: ignore[reportUnnecessaryIsInstance]
        name = re.sub(r"[^\w-]", "", str(id).rpartition("/")[2]) or "Name"
        like = name if re.search(r"-v\d+$", name) else f"{name}-v0"
        raise ConfigError(f"the environment id is {brief(id)}; expected namespace/Name-v0, such as 'you/{like}'")
    _refuse_gymnasium_limit(kwargs)
    if not (isinstance(entry_point, str) or callable(entry_point)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"the entry point of {id!r} is {brief(entry_point)}; expected a class, or 'module:Class'")
    takes = inspect.signature(cast("Any", gymnasium).register).parameters
    if unknown := [name for name in kwargs if name not in takes]:
        raise ConfigError(
            f"gymnasium.register has no argument {unknown[0]!r}; options of the environment are given as "
            f"kwargs={{{unknown[0]!r}: {kwargs[unknown[0]]!r}}}"
        )
    known = _envs.get(id)
    if known is not None and _path(known) != _path(entry_point):
        raise PluginError(
            f"the environment id {id!r} is taken by {_path(known)}; {_path(entry_point)} needs another id"
        )
    if not isinstance(entry_point, str) and entry_point.__module__ != "__main__":
        with contextlib.suppress(ImportError, AttributeError, ValueError):  # a class in a function has no name
            if pkgutil.resolve_name(_path(entry_point)) is entry_point:  # so that the spec can be stored
                entry_point = _path(entry_point)
    gymnasium.registry.pop(id, None)  # a class that is defined again, as in a notebook, replaces its old definition
    gymnasium.register(id, entry_point=entry_point, **kwargs)  # pyright: ignore[reportUnknownMemberType]
    _envs[id] = entry_point


def list_envs() -> list[str]:
    """Return the ids of all environments, sorted, including those of installed plug-ins."""
    load_plugins()
    return sorted(_envs)


def make_registered(id: str, **kwargs: Any) -> object:
    """Make the environment of an id, without gymnasium's wrappers; see `envsdk.make`.

    Raises:
        UnknownName: If no environment has that id. Similar ids are suggested.
        PluginError: If the environment's module cannot be imported.
        ConfigError: If `max_episode_steps` is given.
    """
    _refuse_gymnasium_limit(kwargs)
    find_creator(id)
    options = dict(kwargs)
    for name, value in kwargs.items():  # limits and history policies as JSON, so that the environment's spec is JSON
        if isinstance(value, Limits):
            options[name] = value.model_dump()  # all fields, because a mapping changes only those that it names
        elif isinstance(value, HistoryPolicy):
            from .contexts._history import is_named

            options[name] = value.specification() if is_named(value) else value
    return gymnasium.make(id, disable_env_checker=True, **options).unwrapped


def find_creator(id: str) -> object:
    """Return the entry point of an id: the environment's class, or a function that makes it.

    Raises:
        UnknownName: If no environment has that id. Similar ids are suggested.
        PluginError: If the environment's module cannot be imported.
    """
    if id not in _envs:  # reading what is installed takes 10 ms
        load_plugins()
    if id not in _envs:
        hints = [f"The plug-in {name!r} failed to import: {error}." for name, error in _failed_plugins.items()]
        if "/" not in id:
            hints.append("A class of your own needs no id: call it, or register it; commands take it as module:Class.")
        raise UnknownName.of("environment", id, _envs, " ".join(hints))
    entry_point = _envs[id]
    try:
        return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    except (ImportError, AttributeError) as error:
        raise PluginError(f"the environment {id!r} ({entry_point}) cannot be imported: {error}") from error


def is_entry_point(path: str) -> bool:
    """Return whether an environment that is registered here has the entry point `module:Class`."""
    load_plugins()
    return path in map(_path, _envs.values())


def spec_of(cls: type, options: Mapping[str, Any]) -> EnvSpec | None:
    """Return the spec that a class is registered with, or None.

    If there are several, return the one with the most options among those that agree with `options`.
    """
    load_plugins()
    path = _path(cls)
    specs = [gymnasium.registry[name] for name, entry_point in _envs.items() if _path(entry_point) == path]
    fitting = [spec for spec in specs if all(spec.kwargs.get(name, value) == value for name, value in options.items())]
    return max(fitting, key=lambda spec: len(spec.kwargs), default=None)


def is_of_plugin(spec: EnvSpec) -> bool:
    """Return whether an environment is in the package of a plug-in, so that every process knows its id."""
    package = _path(spec.entry_point).partition(":")[0].partition(".")[0]
    return package in {point.module.partition(".")[0] for point in _entry_points(ENVIRONMENTS)}


def package_of(group: str, entry_point: object) -> tuple[str, str]:
    """Return the name and version of the installed package that an object comes from; empty if it is of no plug-in.

    Args:
        group: The group of entry points, `RENDERERS` or `ENVIRONMENTS`.
        entry_point: The object, or its location.
    """
    package = _path(entry_point).partition(":")[0].partition(".")[0]
    if package == __package__:  # an adapter, or a history policy
        from importlib.metadata import version

        return package, version(package)
    points = (point for point in _entry_points(group) if point.module.partition(".")[0] == package)
    return next(((point.dist.name, point.dist.version) for point in points if point.dist is not None), ("", ""))


def installed() -> dict[str, list[dict[str, str]]]:
    """Return what is registered, by kind: the name of each, and the package and version that it comes from."""
    from .contexts._history import POLICIES

    locations: dict[str, object] = {point.name: point.value for point in _entry_points(RENDERERS)}
    locations.update(_renderers)
    found = [("environments", name, package_of(ENVIRONMENTS, _envs[name])) for name in list_envs()]
    found += [("renderers", name, package_of(RENDERERS, locations[name])) for name in sorted(locations)]
    found += [("history_policies", name, package_of(RENDERERS, policy)) for name, policy in sorted(POLICIES.items())]
    kinds: dict[str, list[dict[str, str]]] = {}
    for kind, name, (package, version) in found:
        kinds.setdefault(kind, []).append({"name": name, "package": package, "version": version})
    return kinds


def load_plugins() -> None:
    """Import the plug-ins of environments, each once, and emit a `PluginWarning` for each that fails."""
    with _loading:  # another thread waits until all are there
        # Our own plug-in first, so that another plug-in that uses one of its ids is refused, not ours.
        for point in sorted(_entry_points(ENVIRONMENTS), key=lambda point: point.name != "envsdk"):
            key = f"{point.name}={point.value}"
            if key in _loaded_plugins:
                continue
            _loaded_plugins.add(key)
            try:
                _load(point)
            except PluginError as error:
                _failed_plugins[point.name] = str(error.__cause__)
                warnings.warn(f"{error}; its environments are not available", PluginWarning, stacklevel=3)


def _refuse_gymnasium_limit(kwargs: dict[str, Any]) -> None:
    if kwargs.get("max_episode_steps") is not None:
        raise ConfigError(
            "max_episode_steps is given, with which gymnasium would end episodes without envsdk; use "
            "limits={'max_steps': ...}"
        )


def _path(entry_point: object) -> str:
    """Return the location of a class or function in the form of an entry point, `module:name`."""
    if isinstance(entry_point, str):
        return entry_point
    return f"{getattr(entry_point, '__module__', '?')}:{getattr(entry_point, '__qualname__', repr(entry_point))}"


def _entry_points(group: str) -> "EntryPoints":
    from importlib.metadata import entry_points  # which takes longer than the rest of this module

    return entry_points(group=group)


def _load(point: "EntryPoint") -> Any:
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # a plug-in may raise anything while it is imported
        raise PluginError(
            f"the plug-in {point.name!r} ({point.value}) cannot be imported: {type(error).__name__}: {error}"
        ) from error
