"""A coroutine that runs in its own thread, for programs that do not use an event loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from typing import Any, cast

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
        try:
            self._loop.run_until_complete(self._task)
        except BaseException as error:
            self.error = None if self._is_stopped else _first(error)
        else:
            self.error = None if self._is_stopped else EpisodeError("the coroutine returned before stop() was called")

    def call(self, function: Callable[[], object], timeout_s: float) -> None:
        """Run a function in the coroutine's event loop, and wait for it. If the coroutine has ended, run it here.

        Args:
            function: The function.
            timeout_s: The time to wait, in seconds, for the coroutine to yield to the event loop.

        Raises:
            EpisodeError: If the coroutine did not yield in time: something in it hangs, or blocks without `await`.
        """

        async def called() -> None:
            function()

        waiting = called()
        future = asyncio.run_coroutine_threadsafe(waiting, self._loop)
        waited_s = 0
        while self._thread.is_alive() and not future.done():
            if waited_s >= timeout_s:
                future.cancel()
                raise EpisodeError(
                    f"the rollouts did not yield to their event loop for {timeout_s:g} s: an environment or the policy "
                    "hangs, or blocks without `await`"
                )
            wait([future], timeout=1)
            waited_s += 1
        if future.done():
            future.result()
        else:
            waiting.close()
            function()

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


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
