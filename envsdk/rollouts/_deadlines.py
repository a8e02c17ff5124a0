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
from concurrent.futures import Future
from typing import Any, cast

from ..authoring._driver import not_cancelled
from ..episodes._event_loops import close_at_exit, collecting_loop
from ..errors import DeadlineExceeded

_NEW_S = 0.01
"""How long a call counts as one that computes in any case, in seconds."""
_CANCEL_S = 1.0
"""How long a coroutine in a thread may take to end when it is cancelled, in seconds."""


class Call:
    """A function that is called in a `MethodThread`.

    Args:
        function: The function.
        loop: The event loop that awaits its `future`; None for a thread that waits for it.

    Attributes:
        began_at: When the thread began it (`time.monotonic`); None while it waits for the thread.
    """

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop | None) -> None:
        self.began_at: float | None = None
        self.has_ended = False
        self.server: _Server | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_cancelled = False
        self.future: asyncio.Future[Any] | Future[Any] = Future() if loop is None else loop.create_future()
        self._returns = None if loop is None else _returns.get(loop) or _returns.setdefault(loop, _Returns(loop))
        self._function = function
        self._context = contextvars.copy_context()

    def begin(self, server: "_Server") -> None:
        """Note that a thread begins it."""
        self.server, self.began_at, self._cpu_at = server, time.monotonic(), time.thread_time()

    def computes(self) -> bool:
        """Return whether it has just begun, or its thread computes rather than waits for something."""
        server = self.server
        if server is None or self.began_at is None:
            return True
        seconds = time.monotonic() - self.began_at
        cpu_s = server.cpu_time_of(self)
        return seconds < _NEW_S or (cpu_s is not None and cpu_s - self._cpu_at > seconds / 4)

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

    def end(self, result: Any, error: BaseException | None) -> None:
        """Give the caller what the function returned or raised; in any thread."""
        if self._returns is None:
            self.settle(result, error)
        else:
            self._returns.add(self, result, error)

    def settle(self, result: Any, error: BaseException | None) -> None:
        """As `end`, in the caller's event loop."""
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


class Places:
    """Lets only so many calls compute at the same time: more threads would keep an event loop from running.

    Calls that wait for something, such as a process or a server, do not count.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._holders: set[Call] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self, call: Call) -> None:
        """Wait for a place, which the call has until `leave`, or until it waits and another call needs a place."""
        if not self._free:
            loop = asyncio.get_running_loop()
            place: asyncio.Future[None] = loop.create_future()
            if not self._waiting:
                loop.call_later(_NEW_S, self._look, loop)
            self._waiting.append(place)
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self._give_back()
                raise
        else:
            self._free -= 1
        self._holders.add(call)

    def leave(self, call: Call) -> None:
        """Give the place of a call to another one, if it still has it."""
        if call in self._holders:
            self._holders.discard(call)
            self._give_back()

    def _give_back(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the places of calls that wait for something."""
        for call in [call for call in self._holders if not call.computes()]:
            self.leave(call)
        if self._waiting:
            loop.call_later(_NEW_S, self._look, loop)


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
        return await self.result(Call(function, asyncio.get_running_loop()))

    def wait(self, function: Callable[[], Any]) -> Any:
        """As `call`, and block the caller's thread meanwhile."""
        call = Call(function, None)
        self._shared.put(call)
        return cast("Future[Any]", call.future).result()

    async def result(self, call: Call) -> Any:
        """As `call`, for a call whose beginning the caller watches."""
        self._shared.put(call)
        future = cast("asyncio.Future[Any]", call.future)
        try:
            return await future
        except asyncio.CancelledError:
            await self._give_up(call)
            raise

    async def _give_up(self, call: Call) -> None:
        """Cancel a call; abandon its thread if that has begun it and does not end it."""
        call.is_cancelled = True
        future = cast("asyncio.Future[Any]", call.future)
        if future.cancelled():
            call.future = future = asyncio.get_running_loop().create_future()  # what it still returns
        try:
            if call.task is not None:
                with contextlib.suppress(RuntimeError):  # its loop has ended
                    call.task.get_loop().call_soon_threadsafe(call.task.cancel)
                await asyncio.wait({future}, timeout=_CANCEL_S)
        finally:
            self._shared.abandon(call)
            if future.done() and not future.cancelled():
                future.exception()  # asyncio would log one that nobody takes

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

        self._thread = threading.Thread(target=self._serve, name="envsdk-method", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

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
        call.end(result, error)

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
            del call  # it holds an episode
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
            call.begin(self)
            self._running += 1
        call.run(self)

    def cpu_time_of(self, call: Call) -> float | None:
        """Return the processor time of the thread while it runs a call; None if the call ended, or it is not known."""
        clock_of, ident = getattr(time, "pthread_getcpuclockid", None), self._thread.ident
        with self._shared.lock:  # the clock of a thread that has ended must not be read
            if clock_of is None or ident is None or call.has_ended:
                return None
            return time.clock_gettime(clock_of(ident))

    def _is_replaced(self) -> bool:
        return self._shared.server is not self

    def _is_over(self) -> bool:
        return self._is_replaced() and not self._running


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop with few file descriptors, because each episode may have one."""
    selector: Any = getattr(selectors, "PollSelector", None)
    return collecting_loop(None if selector is None else asyncio.SelectorEventLoop(selector()))
