"""What the SDK needs to know of an author's functions: whether they are async, and what a copy of one is."""

import copy
import functools
import inspect
from collections.abc import Mapping
from types import FunctionType, MethodType
from typing import Any, cast
from weakref import WeakKeyDictionary

from ..errors import EpisodeError

_KNOWN: "WeakKeyDictionary[FunctionType, bool]" = WeakKeyDictionary()
"""Whether functions are async: each step asks for all methods of its environment."""


def is_async(function: Any) -> bool:
    """Return whether a function is `async def`, or a plain one that wraps one that is."""
    plain = function.__func__ if isinstance(function, MethodType) else function
    if not isinstance(plain, FunctionType):
        return _is_async(plain_function(function))
    known = _KNOWN.get(plain)
    if known is None:
        known = _KNOWN[plain] = _is_async(plain)
    return known


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(inspect.unwrap(function))


def plain_function(function: Any) -> Any:
    """Return the function that a partial or a callable object calls in the end."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    return function if inspect.isroutine(function) or not callable(function) else type(function).__call__


def copied_function(function: Any, memo: dict[int, Any]) -> Any:
    """Return what a copied environment has in place of a function: a method is the copy's, a plain function is shared.

    Args:
        function: Any callable.
        memo: What `copy.deepcopy` has copied so far.

    Raises:
        EpisodeError: If a nested function refers to something that was copied: it would act on the original.
    """
    if not isinstance(function, FunctionType):
        return copy.deepcopy(function, memo)
    captured: Mapping[str, Any] = inspect.getclosurevars(function).nonlocals if function.__closure__ else {}
    if shared := sorted(name for name, value in captured.items() if id(value) in memo):
        raise EpisodeError(
            f"the nested function {function.__qualname__!r} refers to {', '.join(shared)}, so a fork's copy of it "
            "would change the original: make it a method of the environment, or functools.partial of one"
        )
    return function
