"""Reports the statistics of a run while it runs. What a reporter does, or fails to do, never ends or slows the run."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ..episodes._event_loops import MethodThread
from ..errors import ConfigError
from ._statistics import Rates, Statistics, scalars

_log = logging.getLogger(__name__)
_TICK_S = 0.25
"""The shortest time between two updates, in seconds."""
_BEGIN_S = 120.0
"""How long a reporter may take to begin, in seconds."""


class Reporter:
    """Shows or stores the statistics of a run. All of its methods are called in one thread.

    Attributes:
        name: What to call it in an error.
        every_s: The time between two updates, in seconds.
        end_s: How long the last `update` may take, in seconds, and `end` after it.
    """

    name: str
    every_s: float
    end_s: float

    def begin(self) -> None:
        """Prepare. The run begins after it; what it raises ends the run."""

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Report. What it raises is logged the first time.

        Args:
            step: How many episodes have ended, including those that were in the run folder already.
            values: The statistics by name; see docs/how-to/scale.md.
        """
        raise NotImplementedError

    def end(self) -> None:
        """Finish, after the last update."""


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
            ready = [channel for channel, at in due.items() if now() >= at and not channel.thread.is_busy]
            values = self._values() if ready else {}
            for channel in ready:
                due[channel] = now() + channel.reporter.every_s
                channel.updating = asyncio.create_task(channel.update(values, None))

    def _values(self) -> dict[str, float]:
        self._rates.count()
        return scalars(self._statistics) | self._rates.scalars()


class _Channel:
    """A reporter and its thread."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.thread = MethodThread()
        self.updating: asyncio.Task[None] | None = None
        self._has_begun = self._has_failed = False

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

    async def update(self, values: Mapping[str, float], seconds: float | None) -> None:
        """Send an update."""
        step = int(values["rollouts/episodes"])
        await self._attempt(partial(self.reporter.update, step, values), "update()", seconds)

    async def end(self, values: Mapping[str, float]) -> None:
        """Send the last update, then let the reporter and its thread end."""
        try:
            if self._has_begun:
                await self.update(values, self.reporter.end_s)
                await self._attempt(self.reporter.end, "end()", self.reporter.end_s)
        finally:
            self.thread.stop()

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
        def contained() -> None:
            try:
                function()
            except (SystemExit, KeyboardInterrupt) as error:  # which would end the event loop
                raise RuntimeError(f"{type(error).__name__}: {error}") from error

        await self.thread.call_within(seconds, f"{what} of {self.reporter.name}", contained)
