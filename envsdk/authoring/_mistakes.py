"""Checks of environment classes: reserved names, invalid declarations, and wrong return values of methods.

Authors may use any name for an attribute or a method, except the names of members that users call and names that begin
with `_envsdk`. A reserved name is refused when the class is defined or the attribute is set, before it can cause a
failure elsewhere. The errors name the method, its class, its file and its line.
"""

import functools
import inspect
import linecache
import re
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

import numpy as np
from gymnasium.envs.registration import EnvSpec
from pydantic import BaseModel

from .._visible import brief, shorten, type_of
from ..episodes._functions import is_async, plain_function
from ..episodes._turn import Turn
from ..errors import ConfigError, EpisodeError, MistakeWarning, ReservedName, TaskError, TurnError
from ..limits import Limits
from ._tools import Tool
from .tasks import load_tasks

METHODS = frozenset(
    {
        *("start", "respond", "resume", "renderer_of", "reference_reply", "null_reply", "default_tools"),
        *("finish", "after_tools", "on_bad_reply", "after_handoff"),
        *("run", "prepare", "score", "role_of"),
        *("render", "close"),
    }
)
"""Methods that authors may override with a callable."""
DECLARATIONS = frozenset(
    {
        *("Config", "Task", "default_limits", "reward_range", "n_tasks", "metadata", "tools", "reported_exceptions"),
        *("blocking", "shows_images", "records_roles", "command", "container", "environ", "trainable_roles"),
        *("sampling", "limit_grace_s", "roles", "train_unseen"),
    }
)
"""Class attributes that authors may declare."""
_SETTABLE: Mapping[str, tuple[type, ...]] = {
    "task": (object,),
    "tasks": (object,),
    "observation_space": (object,),
    "action_space": (object,),
    "render_mode": (str, type(None)),
    "spec": (EnvSpec, type(None)),
    "np_random": (np.random.Generator,),
    "_np_random": (np.random.Generator,),
    "_np_random_seed": (int, np.integer, type(None)),
}
"""The attributes that both envsdk and a program may set on an environment, and the types of their values."""
_DECLARED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "Task": (lambda task: task is None or (isinstance(task, type) and issubclass(task, BaseModel)), "a pydantic model"),
    "blocking": (lambda value: value is None or isinstance(value, bool), "True, False or None"),
    "n_tasks": (
        lambda n: n is None or isinstance(n, property) or (type(n) is int and n > 0),
        "a number of tasks, or None",
    ),
    "reward_range": (
        lambda pair: isinstance(pair, property) or (isinstance(pair, (tuple, list)) and len(cast("Any", pair)) == 2),
        "the lowest and the highest reward, such as (0.0, 1.0)",
    ),
}
"""For declarations of a class: a check, and a description of the valid values."""
_warned: dict[Any, Any] = {}
"""What was warned of, so that it is not repeated."""
_PLAIN = ("renderer_of", "reference_reply", "null_reply", "default_tools", "render", "close")
"""Methods of authors that are never awaited."""


@functools.cache
def _names_of(cls: type) -> tuple[Set[str], Set[str]]:
    """Return the names of envsdk's class that authors must not use, and those that they may use only for methods."""
    sdk = next(base for base in cls.__mro__ if base.__module__.startswith("envsdk."))
    names = {name for name in dir(sdk) if not name.startswith("__")}
    return names - METHODS - DECLARATIONS - set(dir(Protocol)), METHODS & names


def check_names(cls: type) -> None:
    """Check the names that a subclass of `Env` and its mixins define.

    Raises:
        ReservedName: If a definition hides a member of every environment, or an attribute that envsdk sets.
    """
    reserved, methods = _names_of(cls)
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] not in ("envsdk", "gymnasium", "typing", "builtins"):
            for name in sorted((reserved | _SETTABLE.keys()) & vars(base).keys()):
                raise ReservedName(_hides(f"{base.__name__}.{name}", name))
    for name in methods:
        if not callable(getattr(cls, name)):
            raise ReservedName(
                f"{cls.__name__}.{name} is not callable, but envsdk calls the method of that name; give the attribute "
                "another name"
            )


def check_value(cls: type, name: str, value: Any) -> None:
    """Check a value before it is set as an attribute of an environment of class `cls`.

    Raises:
        ReservedName: If the name is reserved, or envsdk uses the attribute and the value does not fit.
        TaskError: If it is set as `tasks`, and is not a list of tasks.
    """
    reserved, methods = _names_of(cls)
    if name == "tasks" and value is not None:
        load_tasks(value)
    if name in _SETTABLE:
        fits, expected = isinstance(value, _SETTABLE[name]), " or ".join(one.__name__ for one in _SETTABLE[name])
    elif name in methods:
        fits, expected = callable(value), "a function"
    elif name in reserved and not name.startswith("_envsdk"):
        raise ReservedName(_hides(f"self.{name}", name))
    else:
        return
    if not fits:
        raise ReservedName(
            f"self.{name} is set to {brief(value)}; expected {expected}, since envsdk uses this attribute. Give your "
            "own attribute another name"
        )


def _hides(what: str, name: str) -> str:
    return (
        f"{what} hides `{name}`, which every environment has and other code relies on; take another name, such as "
        f"`my_{name.lstrip('_')}`. The behavior of an environment belongs in start() and respond()"
    )


def check_class(cls: type, config: type, *, runs_tools: bool) -> None:
    """Check the methods and declarations of an environment class when it is defined.

    Args:
        cls: The class.
        config: The class that its `Config` must be a subclass of.
        runs_tools: Whether the class is a `ToolEnv`.

    Raises:
        ConfigError: If something would fail later, or silently have no effect.
    """
    for name in _PLAIN:
        if is_async(getattr(cls, name)):
            raise ConfigError(f"{where(cls, name)} is `async def`, but it is never awaited; make it a plain `def`")
    found: object = inspect.getattr_static(cls, "Config")
    if not isinstance(found, type) or not issubclass(found, config):
        raise ConfigError(
            f"{cls.__name__}.Config is {brief(found)}; expected a subclass of {config.__name__}: "
            f"class Config({config.__name__})"
        )
    limits: object = inspect.getattr_static(cls, "default_limits")
    if not isinstance(limits, Limits):
        raise ConfigError(f"{cls.__name__}.default_limits is {brief(limits)}; expected Limits(...)")
    for name, (is_valid, expected) in _DECLARED.items():
        if not is_valid(value := inspect.getattr_static(cls, name)):
            raise ConfigError(f"{cls.__name__}.{name} is {brief(value)}; expected {expected}")
    sdk = next(base for base in cls.__mro__ if base.__module__.startswith("envsdk."))
    for name in METHODS & {name for base in cls.__mro__[: cls.__mro__.index(sdk)] for name in vars(base)}:
        written, called = inspect.getattr_static(cls, name), inspect.getattr_static(sdk, name, None)
        if inspect.isfunction(written) and inspect.isfunction(called):
            parameters = list(inspect.signature(called).parameters)
            try:
                inspect.signature(written).bind(*parameters)
            except TypeError as error:
                raise ConfigError(
                    f"{where(cls, name)} is called with {', '.join(parameters)}, which does not fit: {error}. Write "
                    f"def {name}({', '.join(parameters)})"
                ) from None
    tools = [name for name in dir(cls) if isinstance(inspect.getattr_static(cls, name, None), Tool)]
    if tools and not runs_tools:
        raise ConfigError(
            f"{where(cls, tools[0])} is a @tool, but {cls.__name__} is an Env, which does not run tools; derive it "
            f"from ToolEnv, class {cls.__name__}(ToolEnv), and write finish() instead of respond()"
        )


def refuse_without_tools(cls: type) -> NoReturn:
    """Refuse a `ToolEnv` that has no tool.

    Raises:
        ConfigError: Always. The message names methods that may have been meant as tools.
    """
    own = [name for base in cls.__mro__ if not base.__module__.startswith("envsdk.") for name in vars(base)]
    meant = [
        f"{name}()"
        for name in dict.fromkeys(own)
        if not name.startswith("_") and name not in _names_of(cls)[1] and inspect.isfunction(vars(cls).get(name))
    ]
    advice = f"Is @tool missing above {' or '.join(meant)}?" if meant else "Decorate a method with @tool."
    raise ConfigError(
        f"{cls.__name__} is a ToolEnv without a tool. {advice} For an environment without tools, derive from Env; for "
        "tools of one episode, let start() return Turn(tools=...)"
    )


def missing_init(cls: type) -> ConfigError:
    """Return the error for an environment that is used before `Env.__init__` has run."""
    owner = next(base for base in cls.__mro__ if "__init__" in vars(base))
    if owner.__module__.startswith("envsdk."):
        return ConfigError(
            f"a {cls.__name__} lacks the state that its __init__ made: if it has its own __getstate__ or __setstate__, "
            "start from super().__getstate__() and pass the state to super().__setstate__(state)"
        )
    return ConfigError(
        f"{where(cls, '__init__')} uses the environment before super().__init__(**options) has run, or never "
        "calls it; accept **options and pass them on in the first line, or declare the environment's own options as "
        "fields of its Config"
    )


def wrong_turn(env: object, method: str, returned: object) -> TurnError:
    """Return the error for a method that returned something other than a `Turn`."""
    if returned is None:
        what = "None, not a Turn: is a `return` missing on one of its paths?"
    elif isinstance(returned, str):
        what = f"the string {brief(returned, 60)}, not a Turn: return Turn({brief(returned, 60)})"
    elif isinstance(returned, Mapping):
        keys = ", ".join(map(str, cast("Mapping[Any, Any]", returned)))
        what = f"a mapping with {shorten(keys, 80)}, not a Turn: return Turn(...) with its items as arguments"
    elif inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        what = "a generator, not a Turn: it has a `yield`, where it should `return` a Turn"
    elif inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        what = "an awaitable, not a Turn: an `await` is missing"
    elif isinstance(returned, type):
        what = f"the class {returned.__name__}, not a Turn: call it, such as Turn('Well done.')"
    else:
        what = f"{type_of(returned)}, not a Turn, a Handoff, or a list of them that is not empty: {brief(returned)}"
    return TurnError(f"{where(type(env), method)} returned {what}")


def explained(error: Exception, env: Any, method: str) -> Exception:
    """Return an author's exception, or one that says what to do: without a task, or inside an event loop."""
    frames = traceback.extract_tb(error.__traceback__)
    cls = cast("type[Any]", type(env))
    method = "run" if cls._envsdk_program is not None else method  # the methods of others are the program's
    if isinstance(error, RuntimeError) and "running event loop" in str(error):
        own = [frame for frame in frames if Path(frame.filename).parent.name != "asyncio"]
        raised = EpisodeError(
            f"{where(cls, method)} starts an event loop in one that runs already (line {own[-1].lineno}: "
            f"{own[-1].line}). Write `async def {method}` and `await` there, without asyncio.run()"
        )
        raised.__cause__ = error
        return raised.with_traceback(error.__traceback__)
    if isinstance(error, TypeError) and str(error) == "'Message' object is not subscriptable":
        error.add_note("A Message has attributes: message.content, message.role, message.tool_calls.")
    if not isinstance(error, (TypeError, AttributeError)) or "NoneType" not in str(error) or env.task is not None:
        return error
    if not frames:
        return error
    frame = frames[-1]
    failed = linecache.getline(frame.filename, frame.lineno or 0)
    if frame.colno is not None and frame.end_colno is not None and frame.end_lineno == frame.lineno:
        failed = failed[frame.colno : frame.end_colno]
    if not re.search(r"\bself\.task\b", failed):
        return error
    explanation = TaskError(
        f"{where(cls, method)} reads self.task, which is None (line {frame.lineno}: "
        f"{shorten((frame.line or '').strip(), 80)}). Give tasks, {cls.__name__}(tasks=[...]), or the task of an "
        f"episode, reset(options={{'task': ...}}). If the environment can also make its own tasks, test `if "
        "self.task is None`"
    )
    explanation.__cause__ = error
    return explanation.with_traceback(error.__traceback__)


def warn_of(env: Any, method: str, turn: Turn) -> None:
    """Warn if a turn lacks what was set as an attribute instead, or the first turn shows the model nothing."""
    cls, own = cast("type[Any]", type(env)), cast("dict[str, Any]", vars(env))
    reward, name, what = own.get("reward"), "reward", ""
    if method == "start" and turn.messages and not any(m.content or m.parts for m in turn.messages):
        warn_at([cls.start], f"{cls.__name__}.start() returned a turn without text: the model sees no task")
    if turn.terminated and turn.rewards == {"reward": 0.0} and type(reward) in (int, float) and reward != 0:
        what = f" to {reward}, which no one reads: return Turn(reward=...)"
    elif not (turn.terminated or turn.truncated):
        name = next((end for end in ("done", "terminated", "truncated") if own.get(end) is True), "")
        meant = name.replace("done", "terminated")
        what = f", which does not end the episode: return Turn({meant}=True)" if name else ""
    if what:
        values = [value for base in cls.__mro__ for value in vars(base).values() if inspect.isfunction(value)]
        written = [value for value in values if value.__name__ != "__init__"]  # which sets options
        warn_at(written, f"{cls.__name__} set self.{name}{what}", rf"self\.{name}\s*[-+*]?=[^=]")


def warn_at(functions: Sequence[Any], what: str, pattern: str = "") -> None:
    """Warn, once, at the first line of some functions that matches a pattern; without one, at their first line.

    What functions of envsdk itself do is not a user's mistake: a replay repeats what a record has.
    """
    users = [one for one in functions if not str(getattr(one, "__module__", "")).startswith("envsdk.")]
    codes = [code for function in users if (code := getattr(plain_function(function), "__code__", None))]
    lines = [(code.co_filename, line) for code in codes for *_, line in code.co_lines() if line]
    if found := [place for place in lines if re.search(pattern, linecache.getline(*place))]:
        warnings.warn_explicit(what, MistakeWarning, *min(found), registry=_warned)


def where(cls: type, name: str) -> str:
    """Return a method as `Class.name() (file, line)`."""
    value: Any = inspect.getattr_static(cls, name, None)
    value = getattr(value, "function", value)  # a tool's
    function: Any = inspect.unwrap(getattr(value, "__func__", value))
    code = getattr(function, "__code__", None)
    place = "" if code is None else f" ({Path(code.co_filename).name}, line {code.co_firstlineno})"
    return f"{cls.__name__}.{name}(){place}"
