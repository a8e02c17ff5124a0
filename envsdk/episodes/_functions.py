"""Inspect and copy the functions of authors."""

import copy
import functools
import inspect
from collections.abc import Mapping
from types import FunctionType
from typing import Any, cast

from ..errors import EpisodeError


def is_async(function: Any) -> bool:
    """Return whether a function is `async def`, or a plain function that wraps one."""
    plain = plain_function(function)
    return inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(inspect.unwrap(plain))


def plain_function(function: Any) -> Any:
    """Return the underlying function of a partial or a callable object."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    return function if inspect.isroutine(function) or not callable(function) else type(function).__call__


def copied_function(function: Any, memo: dict[int, Any]) -> Any:
    """Copy a function with its environment: methods are bound to the copy, and plain functions are shared.

    Args:
        function: Any callable.
        memo: The memo of `copy.deepcopy`.

    Raises:
        EpisodeError: If a nested function refers to a copied object: it would act on the original.
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
