"""Reports on a run while it goes on. Each reporter works in a thread of its own: none can slow the run or end it."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from ..episodes._event_loops import MethodThread
from ..errors import ConfigError
from ._statistics import Rates, Statistics, scalars

_log = logging.getLogger(__name__)
_TICK_S = 0.25
"""The shortest time between two updates, in seconds."""
_BEGIN_S = 120.0
"""How long a reporter may take to begin, in seconds."""


class Reporter(Protocol):
    """Shows or stores the statistics of a run. All of its methods are called in one thread."""

    @property
    def name(self) -> str:
        """What to call it in an error."""
        ...

    @property
    def every_s(self) -> float:
        """The time between two updates, in seconds."""
        ...

    @property
    def end_s(self) -> float:
        """How long the last `update` may take, in seconds, and `end` after it."""
        ...

    def begin(self) -> None:
        """Prepare. The run begins after it; what it raises ends the run."""
        ...

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Report. What it raises is logged the first time.

        Args:
            step: How many episodes have ended, including those that were in the run folder already.
            values: The statistics by name; see docs/how-to/scale.md.
        """
        ...

    def end(self) -> None:
        """Finish, after the last update."""
        ...


class Reporting:
    """Calls the reporters of a run.

    Args:
        statistics: The statistics of the run.
        reporters: What reports on it.
    """

    def __init__(self, statistics: Statistics, reporters: Sequence[Reporter]) -> None:
        self._statistics = statistics
        self._reporters = reporters
        self._rates = Rates(statistics)
        self._channels: list[_Channel] = []
        self._updates: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Begin to report.

        Raises:
            ConfigError: If a reporter could not begin.
        """
        for reporter in self._reporters:
            channel = _Channel(reporter)
            self._channels.append(channel)
            await channel.begin()
        if self._channels:
            self._rates = Rates(self._statistics)
            self._updates = asyncio.create_task(self._update())

    async def end(self) -> None:
        """Report a last time and end all reporters. Those that take too long are left alone in their threads."""
        channels, self._channels = self._channels, []
        if self._updates is not None:
            self._updates.cancel()
            await asyncio.wait({self._updates})
        if channels:
            values = self._values()
            await asyncio.gather(*(channel.end(values) for channel in channels))

    async def _update(self) -> None:
        """Send updates to the reporters that are due, and are not at work on the last one."""
        now = asyncio.get_running_loop().time
        due = {channel: now() + channel.reporter.every_s for channel in self._channels}
        while True:
            await asyncio.sleep(_TICK_S)
            self._rates.count()
            ready = [channel for channel, at in due.items() if now() >= at and not channel.is_busy]
            values = self._values() if ready else {}
            for channel in ready:
                due[channel] = now() + channel.reporter.every_s
                channel.update(values)

    def _values(self) -> dict[str, float]:
        self._rates.count()
        return scalars(self._statistics) | self._rates.scalars()


class _Channel:
    """A reporter and its thread."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self._thread = MethodThread()
        self._has_begun = False
        self._has_failed = False
        self._updating: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the reporter is still at work on the last update."""
        return self._thread.is_busy

    async def begin(self) -> None:
        """Let the reporter begin.

        Raises:
            ConfigError: If it could not.
        """
        try:
            await self._call(self.reporter.begin, "begin()", _BEGIN_S)
        except Exception as error:  # trackers raise anything: no account, no permission, no network
            raise ConfigError(f"{self.reporter.name} could not begin: {type(error).__name__}: {error}") from error
        self._has_begun = True

    def update(self, values: Mapping[str, float]) -> None:
        """Send an update. It does not wait for it."""
        self._updating = asyncio.create_task(self._attempt(self._update_of(values), "update()", None))

    async def end(self, values: Mapping[str, float]) -> None:
        """Send the last update, then let the reporter and its thread end."""
        try:
            if self._has_begun:
                await self._attempt(self._update_of(values), "update()", self.reporter.end_s)
                await self._attempt(self.reporter.end, "end()", self.reporter.end_s)
        finally:
            self._thread.stop()

    def _update_of(self, values: Mapping[str, float]) -> Callable[[], None]:
        return partial(self.reporter.update, int(values["rollouts/episodes"]), values)

    async def _attempt(self, function: Callable[[], None], what: str, seconds: float | None) -> None:
        """Call a function of the reporter, and log its first error."""
        try:
            await self._call(function, what, seconds)
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                with contextlib.suppress(ValueError):  # standard error may be what is closed
                    _log.warning("%s failed; the run continues: %s", self.reporter.name, error, exc_info=error)

    async def _call(self, function: Callable[[], None], what: str, seconds: float | None) -> None:
        await self._thread.call_within(seconds, f"{what} of {self.reporter.name}", partial(_contained, function))


def _contained(function: Callable[[], None]) -> None:
    """Call a function. If it ends the program, raise an ordinary error instead.

    Raises:
        RuntimeError: Instead of `SystemExit` and `KeyboardInterrupt`, which would end the event loop.
    """
    try:
        function()
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
