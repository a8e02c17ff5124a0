"""Checks for common mistakes of authors. Their errors name the method, its class, its file and its line."""

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any, NoReturn

from ..episodes._functions import is_async
from ..episodes._method_errors import where
from ..errors import ConfigError
from ..limits import Limits
from ._tools import Tool

_PLAIN = ("renderer_of", "reference_reply", "null_reply", "default_tools", "render", "close")
"""Methods of authors that are never awaited."""


def check_methods(cls: type, config: type, *, runs_tools: bool) -> None:
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
            f"{cls.__name__}.Config is {found!r:.80}; expected a subclass of {config.__name__}: "
            f"class Config({config.__name__})"
        )
    limits: object = inspect.getattr_static(cls, "default_limits")
    if not isinstance(limits, Limits):
        raise ConfigError(f"{cls.__name__}.default_limits is {limits!r:.80}; expected Limits(...)")
    tools = [name for name in dir(cls) if isinstance(inspect.getattr_static(cls, name, None), Tool)]
    if tools and not runs_tools:
        raise ConfigError(
            f"{where(cls, tools[0])} is a @tool, but {cls.__name__} is an Env, which does not run tools; derive it "
            f"from ToolEnv, class {cls.__name__}(ToolEnv), and write finish() instead of respond()"
        )
    if runs_tools and not _may_run_tools(cls):
        raise ConfigError(
            f"{where(cls, 'respond')} replaces the method that runs the tools; write finish(reply) for a reply without "
            "a call and after_tools(reply, results) for a reply with calls, or call super().respond(reply) in it"
        )


def refuse_without_tools(env: object) -> NoReturn:
    """Refuse a `ToolEnv` that has no tool.

    Raises:
        ConfigError: Always. The message names methods that may have been meant as tools.
    """
    cls = type(env)
    own = [name for base in cls.__mro__ if base.__module__.partition(".")[0] != "envsdk" for name in vars(base)]
    methods = [
        name for name in dict.fromkeys(own) if not name.startswith("_") and inspect.isfunction(vars(cls).get(name))
    ]
    known = ("start", "finish", "after_tools", "on_bad_reply", "after_handoff", "respond", "resume", *_PLAIN)
    meant = [f"{name}()" for name in methods if name not in known]
    advice = f"Is @tool missing above {' or '.join(meant)}?" if meant else "Decorate a method with @tool"
    raise ConfigError(
        f"{cls.__name__} is a ToolEnv without a tool. {advice}. For an environment without tools, derive from Env; for "
        "tools of one episode, let start() return Turn(tools=...)"
    )


def missing_init(cls: type) -> ConfigError:
    """Return the error for an environment that is used before `Env.__init__` has run."""
    owner = next(base for base in cls.__mro__ if "__init__" in vars(base))
    if owner.__module__.partition(".")[0] == "envsdk":
        return ConfigError(
            f"a {cls.__name__} lacks the state that its __init__ made: if it has its own __getstate__ or __setstate__, "
            "start from super().__getstate__() and pass the state to super().__setstate__(state)"
        )
    return ConfigError(
        f"{where(cls, '__init__')} uses the environment before super().__init__(**options) has run, or never "
        "calls it; accept **options and pass them on in the first line, or declare the environment's own options as "
        "fields of its Config"
    )


def _may_run_tools(cls: type) -> bool:
    """Return whether `respond` is envsdk's own, or a method of the class that overrides it may call that one."""
    owner = next(base for base in cls.__mro__ if "respond" in vars(base))
    if owner.__module__.partition(".")[0] == "envsdk":
        return True
    functions: Iterator[Any] = (inspect.unwrap(value) for value in vars(owner).values() if inspect.isfunction(value))
    return any("respond" in _names(function.__code__) for function in functions)


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that code uses, including nested functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
