"""Deadlines for code that may never return: coroutines, and plain functions in a thread or in the event loop."""

import asyncio
import contextlib
import contextvars
import ctypes
import inspect
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from ..episodes.driver import not_cancelled
from ..episodes.event_loops import run as run_coroutine
from ..errors import DeadlineExceeded

_log = logging.getLogger(__name__)
_CANCEL_S = 1.0
"""How long a coroutine in a thread may take to end when it is cancelled, in seconds."""


class MethodThread:
    """A thread that calls plain functions, one at a time.

    An environment keeps its thread, because what its methods open may be bound to a thread (an sqlite3 connection).
    The thread is a daemon: one that hangs does not keep the program from ending.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._pending = 0
        self._task: asyncio.Task[Any] | None = None
        self._thread = threading.Thread(target=self._serve, name="envsdk-method", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a function has not returned."""
        return self._pending > 0

    async def call_within(self, seconds: float | None, what: str, function: Callable[[], Any]) -> Any:
        """As `call`, with a deadline; `what` describes the call in its error.

        Raises:
            DeadlineExceeded: If it took longer. A `TimeoutError` of the function itself stays as it is.
        """
        clock = asyncio.timeout(seconds)
        try:
            async with clock:
                return await self.call(function)
        except TimeoutError as error:
            if clock.expired():
                raise DeadlineExceeded(f"{what} took longer than {seconds:g} s") from error
            raise

    async def call(self, function: Callable[[], Any]) -> Any:
        """Return what a function returns, with a copy of the caller's context variables.

        If that is an awaitable, it is awaited in an event loop of the thread. If the caller is cancelled, so is the
        awaitable; but a function that does not return keeps running (`is_busy`), and what it returns is dropped.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def settle(result: Any, error: BaseException | None) -> None:
            self._pending -= 1
            if future.done():
                return
            if error is None:
                future.set_result(result)
            elif isinstance(error, StopIteration):  # a future cannot hold one
                future.set_exception(RuntimeError("StopIteration"))
            else:
                future.set_exception(error)

        def run() -> None:
            result, error = None, None
            try:
                result = context.run(self._complete, function)
            except BaseException as raised:  # the caller gets it
                error = raised
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:  # the loop is closed: nobody waits
                self._pending -= 1

        self._pending += 1
        self._calls.put(run)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            task = self._task
            if task is not None:
                with contextlib.suppress(RuntimeError):  # its loop has ended
                    task.get_loop().call_soon_threadsafe(task.cancel)
                await asyncio.wait({future}, timeout=_CANCEL_S)
            if not future.done():
                future.cancel()
            elif not future.cancelled():
                future.exception()  # asyncio would log one that nobody takes
            raise

    def _complete(self, function: Callable[[], Any]) -> Any:
        """Call a function in the thread; if it returns an awaitable, await that."""
        result = function()
        if not inspect.isawaitable(result):
            return result

        async def awaited() -> Any:
            self._task = asyncio.current_task()
            try:
                return await not_cancelled(result)
            finally:
                self._task = None

        return run_coroutine(awaited())

    def stop(self) -> None:
        """End the thread once it has returned from its last function."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (run := self._calls.get()) is not None:
            run()


class Watchdog:
    """Interrupts a plain function that blocks an event loop for too long.

    A thread looks at what the loop is calling. If a call has not returned in time, it logs what hangs, and raises
    `DeadlineExceeded` in it. Python delivers that when the function executes its next instruction of Python code:
    an endless loop ends; a call into C that never returns does not. For such code, declare `blocking = True`.

    Args:
        seconds: The longest time that a call may take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._since: float | None = None
        self._what: Callable[[], str] = str
        self._is_interrupted = False
        self._loop_thread = threading.get_ident()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="envsdk-watchdog", daemon=True)
        self._thread.start()

    def call(self, what: Callable[[], str], function: Callable[[], Any]) -> Any:
        """Call a function in the event loop's thread.

        Args:
            what: Describes the call, in an error.
            function: The function.

        Raises:
            DeadlineExceeded: If it was interrupted.
        """
        if self._since is not None:  # a call inside a call is a part of it
            return function()
        self._what = what
        self._since = time.monotonic()
        result: Any = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as raised:
            error = raised
        is_ours = isinstance(error, DeadlineExceeded) and not error.args
        try:  # an interrupt may be on its way: it must arrive here
            with self._lock:
                self._since = None
            while self._is_interrupted and not is_ours:
                time.sleep(0.001)
        except DeadlineExceeded:
            with self._lock:
                self._since = None
        was_interrupted, self._is_interrupted = self._is_interrupted, False
        if was_interrupted and is_ours:
            raise DeadlineExceeded(f"{what()} took longer than {self._seconds:g} s") from error
        if error is not None:
            raise error
        return result

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _watch(self) -> None:
        raised_at = 0.0
        while not self._stopped.wait(min(1.0, self._seconds / 4)):
            with self._lock:
                since, now = self._since, time.monotonic()
                if since is None or now - max(since, raised_at) < self._seconds:
                    continue
                raised_at = now
                self._is_interrupted = True
                _log.error(
                    "%s has blocked the event loop, and with it all episodes, for %.3g s. Declare `blocking = True` in "
                    "the environment, so that its methods run in a thread, or write them as `async def`",
                    self._what(),
                    now - since,
                )
                error = ctypes.py_object(DeadlineExceeded)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._loop_thread), error)
