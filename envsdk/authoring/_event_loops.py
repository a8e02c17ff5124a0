"""The bridge between threads and event loops: all code that runs in a different thread from its caller is here.

`run` waits for a coroutine in plain code. Each thread keeps one event loop for it, so that a client that is bound to
an event loop (an HTTP session, a lock, a queue) works in every call. If no loop is running, a coroutine runs in the
caller's own thread, so that an object that is bound to a thread (an sqlite3 connection) works as well. If a loop is
running, as in a notebook, a second one cannot run in the same thread. The coroutine then runs in a `LoopThread` that is
kept for this purpose, and the caller's loop is blocked until it ends. Since the loop outlives the call, tasks that the
call starts would outlive it, too: `_loop_tasks.py` collects those that must end.

`LoopThread` runs coroutines in a thread with an event loop. `MethodThread` calls functions that may never return. All
threads are daemons: one that hangs does not keep the program from ending.
"""

import asyncio
import atexit
import contextlib
import contextvars
import inspect
import os
import queue
import selectors
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

from ..errors import EnvsdkError
from ._concurrent import take_error
from ._loop_tasks import collect, in_event_loop, not_cancelled

T = TypeVar("T")
_WORKER_NOTE = (
    "This ran in a worker thread, because an event loop is running in the caller's thread. An object that is bound to "
    "a thread or to an event loop works only where it was created: in a notebook, call `await envsdk.arollout(...)`, "
    "which stays in the caller's thread."
)
_NEW_S = 0.01
"""The time in seconds for which a new call counts as computing in any case."""
_CANCEL_S = 1.0
"""The time in seconds that a coroutine in a thread may take to end when it is cancelled."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, with a copy of the caller's context variables, and return its result.

    An interrupt (Ctrl-C) cancels the coroutine and waits until it has ended; a second interrupt does not wait. Inside a
    running event loop, consecutive calls share a thread; a nested call gets another one.
    """
    if not in_event_loop():
        kept = _thread.kept
        if kept is None:
            kept = _thread.kept = _KeptLoop()
        return kept.run(coroutine)
    try:
        worker = _idle.pop()
    except IndexError:
        worker = LoopThread("envsdk-event-loop")
    try:
        return worker.run(coroutine)
    except Exception as error:
        if not isinstance(error, EnvsdkError):
            error.add_note(_WORKER_NOTE)
        raise
    finally:
        _idle.append(worker)


def collecting_loop(*, is_small: bool = False) -> asyncio.AbstractEventLoop:
    """Return a new event loop whose tasks are collected (`_loop_tasks.py`); a small one has few file descriptors."""

    def create_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        collect(task)
        return task

    selector: Any = getattr(selectors, "PollSelector", None) if is_small else None
    loop = asyncio.new_event_loop() if selector is None else asyncio.SelectorEventLoop(selector())
    loop.set_task_factory(create_task)
    return loop


def _close_runner(runner: asyncio.Runner) -> None:
    """Cancel the remaining tasks and close the loop.

    asyncio starts a thread to wait for the threads of `asyncio.to_thread`. From Python 3.12 on, no thread can be
    started when the interpreter ends. Python has waited for those threads already, and the loop is closed in any case.
    """
    with contextlib.suppress(RuntimeError):
        runner.close()


# In the caller's thread.


class _KeptLoop:
    """The event loop of a thread, which is closed when the thread ends."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner(loop_factory=collecting_loop)  # so that asyncio's own factory stays as it is
        self.at_end = weakref.finalize(self, _close_unless_forked, self.runner.get_loop(), os.getpid())
        self.at_end.atexit = False

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
            self.runner.run(main(), context=contextvars.copy_context())
        finally:
            if not has_ended:  # interrupted twice: the rest of the coroutine must not run in the next call
                if _thread.kept is self:
                    _thread.kept = None
                self.at_end.detach()
                self.runner.close()
        return results[0]


class _Thread(threading.local):
    kept: _KeptLoop | None = None


_thread = _Thread()
_not_ours: list[Any] = []
"""The event loops of the parent process after a fork. Closing or deleting one would disturb the parent."""


def _close_unless_forked(loop: asyncio.AbstractEventLoop, process: int) -> None:
    if os.getpid() == process:
        loop.close()
    else:
        _not_ours.append(loop)


# In a thread with an event loop.


class LoopThread:
    """A daemon thread that runs coroutines in an event loop until `stop`.

    Args:
        name: The name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._runner = asyncio.Runner(loop_factory=collecting_loop)
        self._loop = self._runner.get_loop()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Begin a coroutine, with a copy of the caller's context variables. Cancel the future to cancel it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine, and return its result. If the caller is interrupted, the coroutine is cancelled."""
        ended: Future[T] = Future()

        async def main() -> None:
            try:
                ended.set_result(await coroutine)
            except BaseException as error:  # the caller receives it
                ended.set_exception(error)

        running = self.submit(main())
        try:
            wait([ended])
        except BaseException:
            running.cancel()
            wait([ended])
            raise
        return ended.result()

    def stop(self, timeout_s: float) -> bool:
        """Cancel the tasks and close the loop. Return whether the thread ended within `timeout_s`."""
        self._is_stopped = True
        with contextlib.suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        while not self._is_stopped:
            with contextlib.suppress(KeyboardInterrupt, SystemExit):  # raised by one task; the others continue
                self._loop.run_forever()
        _close_runner(self._runner)


_idle: deque[LoopThread] = deque()


@atexit.register
def _close_all() -> None:
    if _thread.kept is not None:
        _thread.kept.at_end.detach()
        _close_runner(_thread.kept.runner)
    while _idle:
        _idle.pop().stop(1)


def _after_fork() -> None:
    """Leave the event loops to the parent: a child process shares their files, but does not have the threads."""
    _not_ours.extend((_thread.kept, *_idle))
    _thread.kept = None
    _idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# In a thread that may never return.


class MethodCall:
    """A function that is called in a `MethodThread`, with a copy of the caller's context variables.

    Attributes:
        began_at: The time at which the thread began it (`time.monotonic`); None while it waits for the thread.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function, self.context = function, contextvars.copy_context()
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()  # so that a caller that is cancelled can wait until it has ended
        self.began_at: float | None = None
        self.cpu_at = 0.0
        self.server: _Server | None = None
        self.task: asyncio.Task[None] | None = None
        self.has_ended = self.is_cancelled = False

    def computes(self) -> bool:
        """Return whether the call has just begun, or its thread is computing rather than waiting."""
        if self.server is None or self.began_at is None:
            return True
        seconds = time.monotonic() - self.began_at
        if seconds < _NEW_S:
            return True
        clock_of, ident = getattr(time, "pthread_getcpuclockid", None), self.server.ident
        with self.server.calls.lock:  # the clock of a thread that has ended must not be read
            if clock_of is None or ident is None or self.has_ended:
                return False
            return time.clock_gettime(clock_of(ident)) - self.cpu_at > seconds / 4


class MethodThread:
    """A thread that calls functions, one at a time, and awaits coroutines in an event loop, made for the first one.

    An episode keeps its thread, because objects that its methods open may be bound to a thread (an sqlite3 connection)
    or to an event loop (an HTTP client). A function that has not returned when its caller is cancelled is abandoned
    together with its thread, and a new thread makes the other calls.
    """

    def __init__(self) -> None:
        self._calls = _Calls()
        weakref.finalize(self, self._calls.put, None).atexit = False

    @property
    def is_busy(self) -> bool:
        """True if a call has not ended."""
        return self._calls.pending > 0

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call a function and return its result, awaited, with a copy of the caller's context variables."""
        return await self.result(MethodCall(function))

    def wait(self, function: Callable[[], Any]) -> Any:
        """Do the same as `call`, but block the caller's thread."""
        call = MethodCall(function)
        self._calls.put(call)
        return call.future.result()

    async def result(self, call: MethodCall) -> Any:
        """Do the same as `call`, for a `MethodCall` whose state the caller watches.

        If the caller is cancelled, the call is cancelled. If that does not end it, its thread is abandoned.
        """
        self._calls.put(call)
        try:
            return await asyncio.wrap_future(call.future)
        except asyncio.CancelledError:
            call.is_cancelled = True
            try:
                if call.task is not None:
                    with contextlib.suppress(RuntimeError):  # its loop has ended
                        call.task.get_loop().call_soon_threadsafe(call.task.cancel)
                    ended = asyncio.wrap_future(call.future)
                    ended.add_done_callback(take_error)
                    await asyncio.wait({ended}, timeout=_CANCEL_S)
            finally:
                self._calls.abandon(call)
            raise

    def stop(self) -> None:
        """End the thread once it has returned from its last function."""
        self._calls.put(None)


def is_abandoned(thread: threading.Thread | None) -> bool:
    """Return whether a `MethodThread` has replaced this thread, because a function did not return in time."""
    return isinstance(thread, _Server) and thread.calls.server is not thread


class _Calls:
    """The shared state of a `MethodThread`: the waiting calls, and the thread that serves them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a garbage collection may end the thread while this thread holds it
        self.queue: queue.SimpleQueue[MethodCall | None] = queue.SimpleQueue()
        self.pending = 0
        self.server = _Server(self)
        self.server.start()

    def put(self, call: MethodCall | None) -> None:
        """Add a call; None ends the thread."""
        with self.lock:
            self.pending += call is not None
            self.queue.put(call)
            server = self.server
        if server.loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                server.loop.call_soon_threadsafe(server.serve_waiting)

    def abandon(self, call: MethodCall) -> None:
        """Replace the serving thread if it has begun the call and not ended it."""
        with self.lock:
            if call.has_ended:
                return
            if call.server is None:  # it has not begun
                call.has_ended = True
                self.pending -= 1
            elif call.server is self.server:
                self.server = _Server(self)
                self.server.start()


class _Server(threading.Thread):
    """Serves the calls of a `MethodThread`, until another thread replaces it."""

    def __init__(self, calls: _Calls) -> None:
        super().__init__(name="envsdk-method", daemon=True)
        self.loop: asyncio.AbstractEventLoop | None = None
        self._runner = asyncio.Runner(loop_factory=partial(collecting_loop, is_small=True))  # each episode may have one
        self.calls = calls
        self._running = 0

    def run(self) -> None:
        """Serve calls, in an event loop from the first awaitable on."""
        while self.calls.server is self and (call := self.calls.queue.get()) is not None:
            self._begin(call)
            del call  # it holds an episode
            if self.loop is not None:
                if not self._is_over():
                    self.loop.call_soon(self.serve_waiting)
                    self.loop.run_forever()
                _close_runner(self._runner)
                return

    def serve_waiting(self) -> None:
        """Begin the waiting calls in the event loop."""
        assert self.loop is not None
        while self.calls.server is self:
            try:
                call = self.calls.queue.get_nowait()
            except queue.Empty:
                return
            if call is None:
                self.loop.stop()
                return
            self._begin(call)

    def _begin(self, call: MethodCall) -> None:
        with self.calls.lock:
            if call.has_ended:  # its caller has gone
                return
            call.server, call.began_at, call.cpu_at = self, time.monotonic(), time.thread_time()
            self._running += 1
        try:
            result = call.context.run(call.function)
        except BaseException as error:  # the caller gets it
            self._end(call, None, error)
            return
        if not inspect.isawaitable(result):
            self._end(call, result, None)
            return
        if self.loop is None:
            self.loop = self._runner.get_loop()
        call.task = self.loop.create_task(self._await(call, result), context=call.context)
        call.task.add_done_callback(partial(self._end_if_not_begun, call, result))
        if call.is_cancelled:
            call.task.cancel()

    async def _await(self, call: MethodCall, awaitable: Awaitable[Any]) -> None:
        try:
            result = await not_cancelled(awaitable)
        except BaseException as error:  # the caller gets it
            self._end(call, None, error)
        else:
            self._end(call, result, None)

    def _end_if_not_begun(self, call: MethodCall, awaitable: Awaitable[Any], _: "asyncio.Task[None]") -> None:
        """End a call that was cancelled before its task ran: the task has not touched the awaitable then."""
        if not call.has_ended:
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            self._end(call, None, asyncio.CancelledError())

    def _end(self, call: MethodCall, result: Any, error: BaseException | None) -> None:
        """Mark a call as ended, and wake its caller."""
        with self.calls.lock:
            call.has_ended = True
            self.calls.pending -= 1
            self._running -= 1
        if self.loop is not None and self._is_over():
            self.loop.stop()
        if error is None:
            call.future.set_result(result)
        else:  # a future cannot hold StopIteration
            call.future.set_exception(RuntimeError("StopIteration") if isinstance(error, StopIteration) else error)

    def _is_over(self) -> bool:
        return self.calls.server is not self and not self._running
