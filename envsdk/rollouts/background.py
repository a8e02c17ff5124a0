"""A coroutine that runs in a thread of its own, beside a program that knows no event loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from typing import Any, cast

from ..errors import EpisodeError


class Background:
    """Runs a coroutine, from now on, until it ends or `stop` is called.

    Args:
        coroutine: What runs.
        name: The thread's name.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        self.error: BaseException | None = None
        """What it ended with, if nobody stopped it."""
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
            self.error = None if self._is_stopped else EpisodeError("it ended by itself")

    def call(self, function: Callable[[], object], timeout_s: float) -> None:
        """Run a function between two steps of the coroutine, or here if that has ended, and wait for it.

        Raises:
            EpisodeError: If the coroutine has no pause for so long: something in it hangs, or is slow and not async.
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
                    f"the rollouts did not pause for {timeout_s:g} s: an environment or the policy hangs"
                )
            wait([future], timeout=1)
            waited_s += 1
        if future.done():
            future.result()
        else:
            waiting.close()
            function()

    def stop(self, timeout_s: float) -> bool:
        """Cancel the coroutine; whether it has ended in time."""
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
