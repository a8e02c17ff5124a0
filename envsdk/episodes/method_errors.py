"""What an author's method returned or raised by mistake, with the method, its class and its line."""

import inspect
import linecache
import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ..errors import TaskError, TurnError

_TASK = re.compile(r"\bself\.task\b")


def wrong_turn(env: object, method: str, said: object) -> TurnError:
    """What is wrong with something that a method returned in place of a `Turn`."""
    return TurnError(f"{where(type(env), method)} returned {_what(said)}")


def _what(said: object) -> str:
    if said is None:
        return "None, not a Turn: is a `return` missing on one of its paths?"
    if isinstance(said, str):
        return f"the text {said!r:.60}, not a Turn: return Turn({said!r:.60})"
    if isinstance(said, Mapping):
        keys = ", ".join(map(str, cast("Mapping[Any, Any]", said)))
        return f"a mapping with {keys:.80}, not a Turn: return Turn(...) with what is in it as arguments"
    if inspect.isgenerator(said) or inspect.isasyncgen(said):
        return "a generator, not a Turn: it has a `yield`, where it should `return` a Turn"
    if inspect.isawaitable(said):
        if inspect.iscoroutine(said):
            said.close()
        return "something to wait for, not a Turn: an `await` is missing"
    if isinstance(said, type):
        return f"the class {said.__name__}, not a Turn: it is called with what the Turn says"
    return f"a {type(said).__name__}, not a Turn, a Handoff, or a list of them that is not empty: {said!r:.80}"


def explained(error: Exception, env: Any, method: str) -> Exception:
    """An exception of an author's method; a `TaskError`, if it is that there is no task."""
    if not isinstance(error, (TypeError, AttributeError)) or "NoneType" not in str(error) or env.task is not None:
        return error
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not _TASK.search(_failed(frames[-1])):
        return error
    line = frames[-1].line or ""
    cls = cast("type[Any]", type(env))
    explanation = TaskError(
        f"{where(cls, method)} reads self.task, and there is none (line {frames[-1].lineno}: {line.strip():.80}). "
        f"Give tasks, {cls.__name__}(tasks=[...]), or the task of an episode, reset(options={{'task': ...}}); where an "
        "environment also makes its own, test `if self.task is None`"
    )
    explanation.__cause__ = error
    return explanation.with_traceback(error.__traceback__)


def _failed(frame: traceback.FrameSummary) -> str:
    """The expression that failed; its whole line, if more is not known."""
    line = linecache.getline(frame.filename, frame.lineno or 0)
    if frame.colno is None or frame.end_colno is None or frame.end_lineno != frame.lineno:
        return line
    return line[frame.colno : frame.end_colno]


def where(cls: type, name: str) -> str:
    """A method with its class, file and line."""
    value: Any = inspect.getattr_static(cls, name, None)
    value = getattr(value, "function", value)  # a tool's
    function: Any = inspect.unwrap(getattr(value, "__func__", value))
    code = getattr(function, "__code__", None)
    place = "" if code is None else f" ({Path(code.co_filename).name}, line {code.co_firstlineno})"
    return f"{cls.__name__}.{name}(){place}"
