"""Threads for code that may never return: plain functions, and coroutines that may block their event loop."""

import asyncio
import contextlib
import contextvars
import inspect
import queue
import selectors
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from ..episodes.driver import not_cancelled
from ..episodes.event_loops import close_at_exit, collecting_loop
from ..errors import DeadlineExceeded

_CANCEL_S = 1.0
"""How long a coroutine in a thread may take to end when it is cancelled, in seconds."""


class Call:
    """A function that is called in a `MethodThread`.

    Attributes:
        began_at: When the thread began it (`time.monotonic`); None while it waits for the thread.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self.began_at: float | None = None
        self.has_ended = False
        self.server: _Server | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_cancelled = False
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = loop.create_future()
        self.returns = _returns.get(loop) or _returns.setdefault(loop, _Returns(loop))
        self._function = function
        self._context = contextvars.copy_context()

    def run(self, server: "_Server") -> None:
        """Call the function, in the thread of a server; what it awaits goes on in the server's event loop."""
        try:
            result = self._context.run(self._function)
        except BaseException as error:  # the caller gets it
            server.end(self, None, error)
            return
        if not inspect.isawaitable(result):
            server.end(self, result, None)
            return
        self.task = server.event_loop().create_task(self._await(server, result), context=self._context)
        if self.is_cancelled:
            self.task.cancel()

    async def _await(self, server: "_Server", result: Awaitable[Any]) -> None:
        try:
            value = await not_cancelled(result)
        except BaseException as error:  # the caller gets it
            server.end(self, None, error)
        else:
            server.end(self, value, None)

    def settle(self, result: Any, error: BaseException | None) -> None:
        """Give the caller what the function returned or raised."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(result)
        elif isinstance(error, StopIteration):  # a future cannot hold one
            self.future.set_exception(RuntimeError("StopIteration"))
        else:
            self.future.set_exception(error)


class _Returns:
    """What calls returned, on the way to the event loop of their callers, which is woken once for many of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._waiting: deque[tuple[Call, Any, BaseException | None]] = deque()
        self._is_due = False

    def add(self, call: Call, result: Any, error: BaseException | None) -> None:
        """Add what a call returned or raised; in any thread."""
        self._waiting.append((call, result, error))
        loop = self._loop()
        if not self._is_due and loop is not None:
            self._is_due = True
            with contextlib.suppress(RuntimeError):  # it is closed: nobody waits
                loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._is_due = False
        while self._waiting:
            call, result, error = self._waiting.popleft()
            call.settle(result, error)


_returns: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Returns]" = weakref.WeakKeyDictionary()


class MethodThread:
    """A thread that calls functions, one at a time, and awaits coroutines, in an event loop that it then has.

    An episode keeps its thread, because what its methods open may be bound to a thread (an sqlite3 connection) or to an
    event loop (an HTTP client). A function that has not returned when its caller is cancelled is abandoned: its thread
    is left alone, and another one makes the other calls. All of them are daemons: one that hangs does not keep the
    program from ending.
    """

    def __init__(self) -> None:
        self._shared = _Shared()
        weakref.finalize(self, self._shared.put, None).atexit = False

    @property
    def is_busy(self) -> bool:
        """Whether a function has not returned."""
        return self._shared.pending > 0

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
        """Return what a function returns, awaited, with a copy of the caller's context variables."""
        return await self.result(Call(function))

    async def result(self, call: Call) -> Any:
        """As `call`, for a call whose beginning the caller watches."""
        self._shared.put(call)
        try:
            return await call.future
        except asyncio.CancelledError:
            await self._give_up(call)
            raise

    async def _give_up(self, call: Call) -> None:
        """Cancel a call; abandon its thread if that has begun it and does not end it."""
        call.is_cancelled = True
        call.future = asyncio.get_running_loop().create_future()
        try:
            if call.task is not None:
                with contextlib.suppress(RuntimeError):  # its loop has ended
                    call.task.get_loop().call_soon_threadsafe(call.task.cancel)
                await asyncio.wait({call.future}, timeout=_CANCEL_S)
        finally:
            self._shared.abandon(call)
            if call.future.done():
                call.future.exception()  # asyncio would log one that nobody takes

    def stop(self) -> None:
        """End the thread once it has returned from its last function."""
        self._shared.put(None)


class _Shared:
    """What the threads of a `MethodThread` share: the calls that wait, and which thread serves them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a garbage collection may end the thread while this thread holds it
        self.calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self.pending = 0
        self.server = _Server(self)
        self.server.start()

    def put(self, call: Call | None) -> None:
        """Add a call; None ends the thread."""
        with self.lock:
            self.pending += call is not None
            self.calls.put(call)
            server = self.server
        if server.loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                server.loop.call_soon_threadsafe(server.serve_waiting)

    def abandon(self, call: Call) -> None:
        """Let another thread serve if the one that began a call has not ended it."""
        with self.lock:
            if call.has_ended:
                return
            if call.server is None:  # nobody has begun it
                call.has_ended = True
                self.pending -= 1
            elif call.server is self.server:
                self.server = _Server(self)
                self.server.start()


class _Server:
    """A thread that serves the calls of a `MethodThread`, until another one replaces it."""

    def __init__(self, shared: _Shared) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._shared = shared
        self._running = 0
        self._runner: asyncio.Runner | None = None

    def start(self) -> None:
        """Begin to serve."""
        threading.Thread(target=self._serve, name="envsdk-method", daemon=True).start()

    def event_loop(self) -> asyncio.AbstractEventLoop:
        """Return the thread's event loop, which runs from now on between the calls, too."""
        if self._runner is None or self.loop is None:
            self._runner = asyncio.Runner(loop_factory=_new_loop)
            self.loop = self._runner.get_loop()
        return self.loop

    def end(self, call: Call, result: Any, error: BaseException | None) -> None:
        """Note that a call has ended, and wake its caller."""
        with self._shared.lock:
            call.has_ended = True
            self._shared.pending -= 1
            self._running -= 1
        if self.loop is not None and self._is_over():
            self.loop.stop()
        call.returns.add(call, result, error)

    def serve_waiting(self) -> None:
        """Begin the calls that wait, in the event loop."""
        assert self.loop is not None
        while not self._is_replaced():
            try:
                call = self._shared.calls.get_nowait()
            except queue.Empty:
                return
            if call is None:
                self.loop.stop()
                return
            self._begin(call)

    def _serve(self) -> None:
        while not self._is_replaced() and (call := self._shared.calls.get()) is not None:
            self._begin(call)
            if self.loop is not None and self._runner is not None:
                if not self._is_over():
                    self.loop.call_soon(self.serve_waiting)
                    self.loop.run_forever()
                close_at_exit(self._runner)
                return

    def _begin(self, call: Call) -> None:
        with self._shared.lock:
            if call.has_ended:  # its caller has gone
                return
            call.server, call.began_at = self, time.monotonic()
            self._running += 1
        call.run(self)

    def _is_replaced(self) -> bool:
        return self._shared.server is not self

    def _is_over(self) -> bool:
        return self._is_replaced() and not self._running


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop with few file descriptors, because each episode may have one."""
    selector: Any = getattr(selectors, "PollSelector", None)
    return collecting_loop(None if selector is None else asyncio.SelectorEventLoop(selector()))
