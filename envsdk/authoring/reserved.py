"""Which names of an environment are its author's, and which are the SDK's.

An author may give any name to an attribute or a method of an environment, except for what every environment has and the
SDK or its users go through. Such a name is refused where it is taken, and not where it breaks something later.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from gymnasium.envs.registration import EnvSpec

from ..errors import ReservedName

METHODS = frozenset(
    {
        *("start", "respond", "resume", "renderer_of", "reference_reply", "null_reply", "default_tools"),
        *("finish", "after_tools", "on_bad_reply", "after_handoff"),
        *("render", "close"),
    }
)
"""Methods that an author writes: they may be overridden, but by nothing that cannot be called."""
DECLARATIONS = frozenset(
    {"Config", "Task", "default_limits", "reward_range", "n_tasks", "metadata", "tools", "told_exceptions"}
)
"""What an author declares in a class."""


class Settable(NamedTuple):
    """An attribute that the SDK sets for each object, and that a program may set, too."""

    expected: str
    fits: Callable[[Any], bool]


def _always(_: Any) -> bool:
    return True


def _never(_: Any) -> bool:
    return False


def _is_a(*kinds: type) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        return isinstance(value, kinds)

    return fits


def _are_tasks(value: Any) -> bool:
    if value is None:
        return True
    is_list = hasattr(value, "__len__") and hasattr(value, "__getitem__") and not isinstance(value, (str, Mapping))
    return is_list and len(cast("Sequence[Any]", value)) > 0


def _is_render_mode(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value == "ansi")


_ANYTHING = Settable("anything", _always)
_NOTHING = Settable("nothing", _never)
_FUNCTION = Settable("a function, as the SDK calls it", callable)
SETTABLE: Mapping[str, Settable] = {
    "task": _ANYTHING,
    "observation_space": _ANYTHING,
    "action_space": _ANYTHING,
    "tasks": Settable("None or a list of tasks", _are_tasks),
    "render_mode": Settable("None or 'ansi'", _is_render_mode),
    "spec": Settable("an EnvSpec of gymnasium", _is_a(EnvSpec, type(None))),
    "np_random": Settable("a Generator of NumPy", _is_a(np.random.Generator)),
    "_np_random": Settable("a Generator of NumPy", _is_a(np.random.Generator)),
    "_np_random_seed": Settable("an integer", _is_a(int, np.integer, type(None))),
}


def check_class(cls: type, env: type, sdk: type) -> None:
    """Check what a subclass of `Env`, with all that it mixes in, defines.

    Args:
        cls: The subclass.
        env: `Env`.
        sdk: The class of the SDK that it is derived from: `Env` or `ToolEnv`.

    Raises:
        ReservedName: If it hides what every environment has, or what the SDK sets for each object.
    """
    for name in sorted(_names(env) | SETTABLE.keys()):
        owner = next((base for base in cls.__mro__ if name in vars(base)), env)
        if owner not in env.__mro__:
            where = (
                f"{owner.__name__}.{name}" if owner is cls else f"{owner.__name__}.{name}, which {cls.__name__} has,"
            )
            raise ReservedName(_hides(where, name))
    for name in METHODS & set(dir(sdk)):
        if not callable(getattr(cls, name)):
            raise ReservedName(f"{cls.__name__}.{name} is a method that the SDK calls; give what is in it another name")


def check_attribute(sdk: type, name: str, value: Any) -> None:
    """Check what is about to be set as an attribute of an environment that is derived from a class of the SDK.

    Raises:
        ReservedName: If the name is the SDK's, and for a value that does not fit the name.
    """
    rule = _rules(sdk).get(name)
    if rule is None or rule.fits(value):
        return
    if rule is _NOTHING:
        raise ReservedName(_hides(f"self.{name}", name))
    raise ReservedName(
        f"self.{name} is set to {value!r:.80}; expected {rule.expected}, since the SDK uses it. Give "
        "what is yours another name"
    )


def _hides(what: str, name: str) -> str:
    return (
        f"{what} hides `{name}`, which every environment has and the SDK and its users go through; take another name, "
        f"such as `my_{name.lstrip('_')}`. What an environment does is written in start() and respond()"
    )


@cache
def _rules(sdk: type) -> Mapping[str, Settable]:
    """What may be set as an attribute of an object, by the names that are not the author's alone."""
    methods = dict.fromkeys(METHODS & set(dir(sdk)), _FUNCTION)
    return {**dict.fromkeys(_names(sdk), _NOTHING), **SETTABLE, **methods}


@cache
def _names(env: type) -> frozenset[str]:
    """What every environment has, but for what authors write and the names in which Python has its own methods."""
    names = {name for name in dir(env) if not name.startswith("__")}
    return frozenset(names - METHODS - DECLARATIONS - set(dir(Protocol)))
