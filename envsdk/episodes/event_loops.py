"""Event loops that plain code waits in: one for each thread, kept from call to call.

A client that is bound to a loop (an HTTP session, a lock, a queue) works in one call as in the next. Where no loop is
running, a coroutine runs in the caller's own thread, so that what is bound to a thread (a connection of sqlite3) works,
too. Where a loop is running (a notebook has one), no other can run in that thread, so the coroutine runs in a thread
that is kept for this; the caller's loop stands still until it has ended.

Since a loop outlives the call, so would a task that the call starts. `Tasks` collects those that must not.
"""

import asyncio
import atexit
import contextlib
import contextvars
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from ..errors import EnvsdkError

T = TypeVar("T")
_ELSEWHERE = (
    "It ran in a thread of its own, since an event loop is running in the caller's thread. What is bound to a thread "
    "or to a loop works where it was made: in a notebook, `await envsdk.arollout(...)` stays in the caller's."
)


def in_event_loop() -> bool:
    """Return whether an event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result; with a copy of the caller's context variables.

    An interrupt (Ctrl-C) cancels the coroutine and waits for its end; a second one does not wait.
    """
    return _run_elsewhere(coroutine) if in_event_loop() else _run_here(coroutine)


# What a coroutine leaves behind.


class Tasks:
    """The asyncio tasks that were created while this was collecting, by whatever ran in that context.

    Only the loops of this module are observed: the tasks of a caller's own loop are the caller's.
    """

    def __init__(self) -> None:
        self._created: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()

    @contextlib.contextmanager
    def collecting(self) -> Generator[None]:
        """Collect the tasks that are created inside, and those that these create."""
        token = _collector.set(self)
        try:
            yield
        finally:
            _collector.reset(token)

    def add(self, task: "asyncio.Task[Any]") -> None:
        """Collect a task."""
        self._created.add(task)

    def are_left(self) -> bool:
        """Return whether one has not ended."""
        return any(not task.done() for task in self._created)

    def cancel(self) -> "list[asyncio.Task[Any]]":
        """Cancel the tasks that have not ended, and return them; they end when their loop runs next."""
        left = [task for task in self._created if not task.done()]
        self._created.clear()
        for task in left:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                task.get_loop().call_soon_threadsafe(task.cancel)
        return left

    async def end(self) -> None:
        """Cancel the tasks that have not ended, and wait for their ends, as `asyncio.run` does."""
        here = asyncio.get_running_loop()
        left = [task for task in self.cancel() if task.get_loop() is here]
        if left:
            await asyncio.wait(left)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tasks, ()  # a copy, such as a fork's, has started none


_collector: contextvars.ContextVar[Tasks | None] = contextvars.ContextVar("envsdk tasks", default=None)


def _new_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(_create_task)
    return loop


def _create_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    collector = _collector.get()
    if collector is not None:
        collector.add(task)
    return task


# In the caller's thread.


class _KeptLoop:
    """The event loop of a thread, which is closed when the thread ends."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=_new_loop)  # given: asyncio's own stays as it is
        self._at_end = weakref.finalize(self, _close, self._runner.get_loop(), os.getpid())
        self._at_end.atexit = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        results: list[T] = []
        has_ended = False

        async def main() -> None:  # returns nothing: Runner writes out what a task returns, however much that is
            nonlocal has_ended
            try:
                results.append(await coroutine)
            finally:
                has_ended = True

        try:
            self._runner.run(main(), context=contextvars.copy_context())
        finally:
            if not has_ended:  # interrupted twice: what was left in the middle does not go on in the next call
                self.close()
        return results[0]

    def close(self) -> None:
        """Cancel what is left, and close the loop."""
        if _thread.kept is self:
            _thread.kept = None
        self._at_end.detach()
        self._runner.close()

    def close_at_exit(self) -> None:
        """Close the loop when the interpreter ends."""
        self._at_end.detach()
        _close_at_exit(self._runner)


def _close_at_exit(runner: asyncio.Runner) -> None:
    """Cancel what is left, and close the loop.

    asyncio waits for the threads of `asyncio.to_thread` in a further thread, and from Python 3.12 none can be started
    any more. Python itself has waited for them already, and the loop is closed in any case.
    """
    with contextlib.suppress(RuntimeError):
        runner.close()


class _Thread(threading.local):
    kept: _KeptLoop | None = None


_thread = _Thread()
_not_ours: list[Any] = []
"""Loops of the process that this one was forked from: closing one would disturb it, and so would deleting it."""


def _run_here(coroutine: Coroutine[Any, Any, T]) -> T:
    kept = _thread.kept
    if kept is None:
        kept = _thread.kept = _KeptLoop()
    return kept.run(coroutine)


def _close(loop: asyncio.AbstractEventLoop, process: int) -> None:
    if os.getpid() == process:
        loop.close()
    else:
        _not_ours.append(loop)


# In a thread of its own.


class _Worker:
    """A thread with an event loop, for one coroutine at a time."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=_new_loop)
        self._loop = self._runner.get_loop()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._serve, name="envsdk-event-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        ended: Future[T] = Future()
        tasks: list[asyncio.Task[None]] = []

        async def main() -> None:
            try:
                ended.set_result(await coroutine)
            except BaseException as error:  # whoever called gets it
                ended.set_exception(error)

        self._tell(lambda: tasks.append(self._loop.create_task(main())))
        try:
            wait([ended])
        except BaseException:  # an interrupt of the caller
            self._tell(lambda: tasks[0].cancel())
            wait([ended])
            raise
        finally:
            if ended.done():
                _idle.append(self)
        return ended.result()

    def stop(self) -> None:
        """Cancel what is left, and close the loop; a thread that hangs is left to the end of the process."""
        self._is_stopped = True
        self._tell(self._loop.stop)
        self._thread.join(timeout=1)

    def _tell(self, function: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(function)  # with a copy of the caller's context variables

    def _serve(self) -> None:
        while not self._is_stopped:
            with contextlib.suppress(KeyboardInterrupt, SystemExit):  # a task's own, which ends no other
                self._loop.run_forever()
        _close_at_exit(self._runner)


_idle: deque[_Worker] = deque()


def _run_elsewhere(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run it in the worker that was used last: the same for calls in a row, another one for a call inside a call."""
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
    try:
        return worker.run(coroutine)
    except Exception as error:
        if not isinstance(error, EnvsdkError):
            error.add_note(_ELSEWHERE)
        raise


@atexit.register
def _close_all() -> None:
    if _thread.kept is not None:
        _thread.kept.close_at_exit()
    while _idle:
        _idle.pop().stop()


def _after_fork() -> None:
    """Leave the loops to the parent: a child shares their files with it, and has none of its threads."""
    _not_ours.extend((_thread.kept, *_idle))
    _thread.kept = None
    _idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
