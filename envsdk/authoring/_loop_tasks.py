"""The state of the running event loop, and the tasks that an episode's methods start in it.

Each step needs this, with and without an event loop. The module does not import asyncio at the top, which takes longer
than the rest of the package and is not needed without an event loop.
"""

import contextlib
import contextvars
import inspect
import sys
import weakref
from collections.abc import Awaitable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import EpisodeError

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


def in_event_loop() -> bool:
    """Return whether an event loop is running in this thread."""
    running = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    return running is not None and running() is not None


async def not_cancelled(value: T | Awaitable[T]) -> T:
    """Return a value, awaited if it is an awaitable.

    Raises:
        EpisodeError: If the value was cancelled, but not the running task.
    """
    import asyncio

    try:
        return await value if inspect.isawaitable(value) else value  # pyright: ignore[reportReturnType, reportUnknownVariableType]
    except asyncio.CancelledError as error:
        if is_being_cancelled():
            raise
        raise EpisodeError("an awaited task or future was cancelled, but the episode was not") from error


def is_being_cancelled() -> bool:
    """Return whether the running task itself is being cancelled."""
    if not in_event_loop():
        return False
    import asyncio

    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@dataclass(eq=False, repr=False)
class Tasks:
    """The asyncio tasks that were created inside `collecting()`.

    Only tasks in the event loops of this module are collected; a caller manages the tasks in its own loop.
    """

    created: "weakref.WeakSet[asyncio.Task[Any]]" = field(default_factory=weakref.WeakSet["asyncio.Task[Any]"])

    @contextlib.contextmanager
    def collecting(self) -> Generator[None]:
        """Collect the tasks that are created in the `with` block, and the tasks that those create."""
        token = _collector.set(self)
        try:
            yield
        finally:
            _collector.reset(token)

    def are_left(self) -> bool:
        """Return whether any task has not ended."""
        return any(not task.done() for task in self.created)

    def cancel(self) -> "list[asyncio.Task[Any]]":
        """Cancel the tasks that have not ended and return them. They end the next time their loop runs."""
        left = [task for task in self.created if not task.done()]
        self.created.clear()
        for task in left:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                task.get_loop().call_soon_threadsafe(task.cancel)
        return left

    async def end(self) -> None:
        """Cancel the tasks that have not ended and wait until they have, as `asyncio.run` does."""
        import asyncio

        here = asyncio.get_running_loop()
        left = [task for task in self.cancel() if task.get_loop() is here]
        if left:
            await asyncio.wait(left)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tasks, ()  # a copy, such as a fork's, has not started any task


_collector: contextvars.ContextVar[Tasks | None] = contextvars.ContextVar("envsdk tasks", default=None)


def collect(task: "asyncio.Task[Any]") -> None:
    """Add a task to the innermost enclosing `collecting()`, if there is one."""
    collector = _collector.get()
    if collector is not None:
        collector.created.add(task)
