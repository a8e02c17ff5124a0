"""Errors about what an author's method returned or raised, which name the method, its class and its line."""

import inspect
import linecache
import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ..errors import TaskError, TurnError

_TASK = r"\bself\.task\b"


def wrong_turn(env: object, method: str, returned: object) -> TurnError:
    """Return the error for a method that returned something other than a `Turn`."""
    return TurnError(f"{where(type(env), method)} returned {_describe(returned)}")


def _describe(returned: object) -> str:
    if returned is None:
        return "None, not a Turn: is a `return` missing on one of its paths?"
    if isinstance(returned, str):
        return f"the text {returned!r:.60}, not a Turn: return Turn({returned!r:.60})"
    if isinstance(returned, Mapping):
        keys = ", ".join(map(str, cast("Mapping[Any, Any]", returned)))
        return f"a mapping with {keys:.80}, not a Turn: return Turn(...) with its items as arguments"
    if inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        return "a generator, not a Turn: it has a `yield`, where it should `return` a Turn"
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        return "an awaitable, not a Turn: an `await` is missing"
    if isinstance(returned, type):
        return f"the class {returned.__name__}, not a Turn: call it, such as Turn('Well done.')"
    return f"a {type(returned).__name__}, not a Turn, a Handoff, or a list of them that is not empty: {returned!r:.80}"


def explained(error: Exception, env: Any, method: str) -> Exception:
    """Return an exception of an author's method, or a `TaskError` if it was raised because `self.task` is None."""
    if not isinstance(error, (TypeError, AttributeError)) or "NoneType" not in str(error) or env.task is not None:
        return error
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not re.search(_TASK, _failed(frames[-1])):
        return error
    line = frames[-1].line or ""
    cls = cast("type[Any]", type(env))
    explanation = TaskError(
        f"{where(cls, method)} reads self.task, which is None (line {frames[-1].lineno}: {line.strip():.80}). "
        f"Give tasks, {cls.__name__}(tasks=[...]), or the task of an episode, reset(options={{'task': ...}}). If the "
        "environment can also make its own tasks, test `if self.task is None`"
    )
    explanation.__cause__ = error
    return explanation.with_traceback(error.__traceback__)


def _failed(frame: traceback.FrameSummary) -> str:
    """Return the source of the expression that failed, or its whole line if the columns are unknown."""
    line = linecache.getline(frame.filename, frame.lineno or 0)
    if frame.colno is None or frame.end_colno is None or frame.end_lineno != frame.lineno:
        return line
    return line[frame.colno : frame.end_colno]


def where(cls: type, name: str) -> str:
    """Return a method as `Class.name() (file, line)`."""
    value: Any = inspect.getattr_static(cls, name, None)
    value = getattr(value, "function", value)  # a tool's
    function: Any = inspect.unwrap(getattr(value, "__func__", value))
    code = getattr(function, "__code__", None)
    place = "" if code is None else f" ({Path(code.co_filename).name}, line {code.co_firstlineno})"
    return f"{cls.__name__}.{name}(){place}"
