"""A coroutine that runs in its own thread, for programs that do not use an event loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from typing import Any

from ..errors import EpisodeError


class Background:
    """Runs a coroutine in a new thread until it ends or `stop` is called.

    Args:
        coroutine: The coroutine. It starts at once.
        name: The name of the thread.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        self.error: BaseException | None = None
        """The error that the coroutine ended with; None while it runs and after `stop`."""
        self._is_stopped = False
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(coroutine)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        error: BaseException = EpisodeError("the coroutine returned before stop() was called")
        try:
            self._loop.run_until_complete(self._task)
        except BaseException as raised:
            error = raised
        self.error = None if self._is_stopped else error

    def call(self, function: Callable[[], Coroutine[Any, Any, object]], timeout_s: float) -> None:
        """Run another coroutine in the same event loop, and wait for it. Do nothing if the first one has ended.

        Args:
            function: Makes the coroutine.
            timeout_s: The time to wait, in seconds.

        Raises:
            EpisodeError: If it did not end in time: it waits for something that hangs, or something blocks the loop.
        """

        async def called() -> None:
            await function()

        waiting = called()
        future = asyncio.run_coroutine_threadsafe(waiting, self._loop)
        waited_s = 0
        while self._thread.is_alive() and not future.done():
            if waited_s >= timeout_s:
                future.cancel()
                raise EpisodeError(
                    f"the rollouts did not pause for {timeout_s:g} s: the policy hangs, or an environment blocks "
                    "without `await`"
                )
            wait([future], timeout=1)
            waited_s += 1
        if future.done():
            future.result()
        else:
            waiting.close()

    def stop(self, timeout_s: float) -> bool:
        """Cancel the coroutine. Return whether it ended within `timeout_s` seconds."""
        self._is_stopped = True
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._loop.close()
        return True
