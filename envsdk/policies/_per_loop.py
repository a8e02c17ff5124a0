"""Keeps one object for each event loop, such as an HTTP client, whose connections belong to the loop."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """One object for each event loop.

    Args:
        create: Creates an object. It is called in the loop that the object belongs to.
        close: Closes an object, in the same loop.
    """

    def __init__(self, create: Callable[[], T], close: Callable[[T], Awaitable[None]]) -> None:
        self._create = create
        self._close = close
        self._objects: dict[asyncio.AbstractEventLoop, T] = {}
        self._lock = threading.Lock()

    def get(self) -> T:
        """Return the object of the running loop, which is created at the first call."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._objects:
                for ended in [other for other in self._objects if other.is_closed()]:
                    del self._objects[ended]
                self._objects[loop] = self._create()
            return self._objects[loop]

    async def aclose(self) -> None:
        """Close the object of the running loop. The next `get` creates another one."""
        with self._lock:
            kept = self._objects.pop(asyncio.get_running_loop(), None)
        if kept is not None:
            await self._close(kept)
