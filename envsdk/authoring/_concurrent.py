"""Run coroutines concurrently, and cancel all of them if one fails."""

import asyncio
import math
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def run_all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently, and return their results in order.

    If one of them raises, or the caller is cancelled, the others are cancelled and awaited first. Unlike with
    `asyncio.TaskGroup`, the exception itself is raised, not an exception group.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until_ended(tasks: Sequence["asyncio.Future[Any]"], seconds: float = math.inf) -> None:
    """Wait until tasks have ended, even if the caller is cancelled in the meantime.

    Raises:
        CancelledError: Once they have ended, or the time has passed, if the caller was cancelled.
    """
    ends_at, cancelled = time.monotonic() + seconds, None
    while (left := [task for task in tasks if not task.done()]) and (left_s := ends_at - time.monotonic()) > 0:
        try:
            await asyncio.wait(left, timeout=None if left_s == math.inf else left_s)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def take_error(task: "asyncio.Future[Any]") -> None:
    """Retrieve the exception of a task that is not awaited, so that asyncio does not log it."""
    if task.done() and not task.cancelled():
        task.exception()
