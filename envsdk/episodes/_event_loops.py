"""Event loops in which plain code waits for coroutines: one for each thread, kept from call to call.

A client that is bound to an event loop (an HTTP session, a lock, a queue) therefore works in every call. If no loop is
running, a coroutine runs in the caller's own thread, so that an object that is bound to a thread (an sqlite3
connection) works as well. If a loop is running, as in a notebook, a second one cannot run in the same thread. The
coroutine then runs in a worker thread that is kept for this purpose, and the caller's loop is blocked until it ends.

Since a loop outlives the call, so would a task that the call starts: `_loop_tasks.py` collects those that must end.
"""

import asyncio
import atexit
import contextlib
import contextvars
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from ..errors import EnvsdkError
from ._loop_tasks import collect, in_event_loop

T = TypeVar("T")
_WORKER_NOTE = (
    "This ran in a worker thread, because an event loop is running in the caller's thread. An object that is bound to "
    "a thread or to an event loop works only where it was created: in a notebook, call `await envsdk.arollout(...)`, "
    "which stays in the caller's thread."
)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, with a copy of the caller's context variables, and return its result.

    An interrupt (Ctrl-C) cancels the coroutine and waits until it has ended; a second interrupt does not wait.
    """
    return _run_in_worker(coroutine) if in_event_loop() else _run_here(coroutine)


def collecting_loop(loop: asyncio.AbstractEventLoop | None = None) -> asyncio.AbstractEventLoop:
    """Return an event loop, a new one by default, whose tasks are collected (`_loop_tasks.py`)."""
    loop = asyncio.new_event_loop() if loop is None else loop
    loop.set_task_factory(_create_task)
    return loop


def _create_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    collect(task)
    return task


# In the caller's thread.


class _KeptLoop:
    """The event loop of a thread, which is closed when the thread ends."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=collecting_loop)  # so that asyncio's own factory stays as it is
        self._at_end = weakref.finalize(self, _close, self._runner.get_loop(), os.getpid())
        self._at_end.atexit = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        results: list[T] = []
        has_ended = False

        async def main() -> None:  # it returns nothing, because Runner makes the repr of a task's result
            nonlocal has_ended
            try:
                results.append(await coroutine)
            finally:
                has_ended = True

        try:
            self._runner.run(main(), context=contextvars.copy_context())
        finally:
            if not has_ended:  # interrupted twice: the rest of the coroutine must not run in the next call
                self.close()
        return results[0]

    def close(self) -> None:
        """Cancel the remaining tasks and close the loop."""
        if _thread.kept is self:
            _thread.kept = None
        self._at_end.detach()
        self._runner.close()

    def close_at_exit(self) -> None:
        """Close the loop when the interpreter ends."""
        self._at_end.detach()
        close_at_exit(self._runner)


def close_at_exit(runner: asyncio.Runner) -> None:
    """Cancel the remaining tasks and close the loop.

    asyncio starts a thread to wait for the threads of `asyncio.to_thread`. From Python 3.12 on, no thread can be
    started at this point. Python has waited for those threads already, and the loop is closed in any case.
    """
    with contextlib.suppress(RuntimeError):
        runner.close()


class _Thread(threading.local):
    kept: _KeptLoop | None = None


_thread = _Thread()
_not_ours: list[Any] = []
"""The event loops of the parent process after a fork. Closing or deleting one would disturb the parent."""


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


# In a worker thread.


class _Worker:
    """A thread with an event loop that runs one coroutine at a time."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=collecting_loop)
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
            except BaseException as error:  # the caller receives it
                ended.set_exception(error)

        self._call_in_loop(lambda: tasks.append(self._loop.create_task(main())))
        try:
            wait([ended])
        except BaseException:  # an interrupt of the caller
            self._call_in_loop(lambda: tasks[0].cancel())
            wait([ended])
            raise
        finally:
            if ended.done():
                _idle.append(self)
        return ended.result()

    def stop(self) -> None:
        """Cancel the remaining tasks and close the loop. A thread that hangs runs until the process ends."""
        self._is_stopped = True
        self._call_in_loop(self._loop.stop)
        self._thread.join(timeout=1)

    def _call_in_loop(self, function: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(function)  # with a copy of the caller's context variables

    def _serve(self) -> None:
        while not self._is_stopped:
            with contextlib.suppress(KeyboardInterrupt, SystemExit):  # raised by one task; the others continue
                self._loop.run_forever()
        close_at_exit(self._runner)


_idle: deque[_Worker] = deque()


def _run_in_worker(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the worker that was used last: consecutive calls share it, and a nested call has its own."""
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
    try:
        return worker.run(coroutine)
    except Exception as error:
        if not isinstance(error, EnvsdkError):
            error.add_note(_WORKER_NOTE)
        raise


@atexit.register
def _close_all() -> None:
    if _thread.kept is not None:
        _thread.kept.close_at_exit()
    while _idle:
        _idle.pop().stop()


def _after_fork() -> None:
    """Leave the event loops to the parent: a child process shares their files, but has none of the threads."""
    _not_ours.extend((_thread.kept, *_idle))
    _thread.kept = None
    _idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
