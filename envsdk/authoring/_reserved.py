"""The reserved names of an environment, which its author may not use for anything else.

An author may give any other name to an attribute or a method. A reserved name is refused when the class is defined or
the attribute is set, not later, when something fails because of it.
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
        *("run", "prepare", "score", "role_of"),
        *("render", "close"),
    }
)
"""Methods that authors may override, with something that can be called."""
DECLARATIONS = frozenset(
    {
        *("Config", "Task", "default_limits", "reward_range", "n_tasks", "metadata", "tools", "reported_exceptions"),
        *("blocking", "shows_images", "records_roles", "command", "trainable_roles", "sampling", "limit_grace_s"),
    }
)
"""Class attributes that authors may declare."""


class Settable(NamedTuple):
    """An attribute that both envsdk and a program may set on an environment.

    Attributes:
        expected: What values it accepts, in words.
        fits: Returns whether it accepts a value.
    """

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
_READ_ONLY = Settable("nothing", _never)
_FUNCTION = Settable("a function, because envsdk calls it", callable)
SETTABLE: Mapping[str, Settable] = {
    "task": _ANYTHING,
    "observation_space": _ANYTHING,
    "action_space": _ANYTHING,
    "tasks": Settable("None or a list of tasks", _are_tasks),
    "render_mode": Settable("None or 'ansi'", _is_render_mode),
    "spec": Settable("a gymnasium EnvSpec", _is_a(EnvSpec, type(None))),
    "np_random": Settable("a Generator of NumPy", _is_a(np.random.Generator)),
    "_np_random": Settable("a Generator of NumPy", _is_a(np.random.Generator)),
    "_np_random_seed": Settable("an integer", _is_a(int, np.integer, type(None))),
}


def check_class(cls: type, env: type, sdk: type) -> None:
    """Check the names that a subclass of `Env` and its mixins define.

    Args:
        cls: The subclass.
        env: The class `Env`.
        sdk: The class of envsdk that it derives from: `Env` or `ToolEnv`.

    Raises:
        ReservedName: If a definition hides a member of every environment, or an attribute that envsdk sets.
    """
    for name in sorted(_reserved_names(env) | SETTABLE.keys()):
        owner = next((base for base in cls.__mro__ if name in vars(base)), env)
        if owner not in env.__mro__:
            where = (
                f"{owner.__name__}.{name}" if owner is cls else f"{owner.__name__}.{name}, which {cls.__name__} has,"
            )
            raise ReservedName(_hides(where, name))
    for name in METHODS & set(dir(sdk)):
        if not callable(getattr(cls, name)):
            raise ReservedName(
                f"{cls.__name__}.{name} is a method that envsdk calls, and here it cannot be called; give "
                "the attribute another name"
            )


def check_attribute(sdk: type, name: str, value: Any) -> None:
    """Check a value before it is set as an attribute of an environment.

    Args:
        sdk: The class of envsdk that the environment derives from.
        name: The attribute's name.
        value: The value.

    Raises:
        ReservedName: If the name is reserved, or envsdk uses the attribute and the value does not fit.
    """
    rule = _rules(sdk).get(name)
    if rule is None or rule.fits(value):
        return
    if rule is _READ_ONLY:
        raise ReservedName(_hides(f"self.{name}", name))
    raise ReservedName(
        f"self.{name} is set to {value!r:.80}; expected {rule.expected}, since envsdk uses this attribute. Give your "
        "own attribute another name"
    )


def _hides(what: str, name: str) -> str:
    return (
        f"{what} hides `{name}`, which every environment has and other code relies on; take another name, such as "
        f"`my_{name.lstrip('_')}`. The behavior of an environment belongs in start() and respond()"
    )


@cache
def _rules(sdk: type) -> Mapping[str, Settable]:
    """Return the values that each reserved name accepts as an attribute of an environment."""
    methods = dict.fromkeys(METHODS & set(dir(sdk)), _FUNCTION)
    return {**dict.fromkeys(_reserved_names(sdk), _READ_ONLY), **SETTABLE, **methods}


@cache
def _reserved_names(env: type) -> frozenset[str]:
    """Return the names of an environment's members, without those that authors write and Python's own methods."""
    names = {name for name in dir(env) if not name.startswith("__")}
    return frozenset(names - METHODS - DECLARATIONS - set(dir(Protocol)))
