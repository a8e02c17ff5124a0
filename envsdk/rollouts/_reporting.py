"""Report the statistics of a run while it runs. A reporter that fails or hangs never ends or slows the run."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .._spans import EpisodeSpan
from ..authoring._event_loops import MethodThread
from ..errors import ConfigError, DeadlineExceeded
from ._statistics import Rates, Statistics, scalars

_log = logging.getLogger(__name__)
_TICK_S = 0.25
"""The minimum time between two updates, in seconds."""
_BEGIN_S = 120.0
"""The longest time that a reporter may take to begin, in seconds."""


class Reporter:
    """Shows or stores the statistics of a run. All of its methods are called in one thread.

    Attributes:
        name: Its name in errors.
        every_s: The time between two updates, in seconds.
        end_s: The longest time for the last `update`, in seconds, and for `end` after it.
        spans: Whether `take` gets the spans of episodes, and whether they have content.
    """

    name: str
    every_s: float
    end_s: float
    spans: Literal["timing", "content"] | None = None

    def take(self, spans: Sequence[EpisodeSpan]) -> None:
        """Take the spans of an episode that has ended, in any thread, for the next `update`."""

    def begin(self) -> None:
        """Prepare. The run begins after it; an exception ends the run."""

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Report. The first exception is logged, and none ends the run.

        Args:
            step: The number of episodes that have ended, including those that were in the run folder already.
            values: The statistics by name; see docs/how-to/scale.md.
        """
        raise NotImplementedError

    def end(self) -> None:
        """Finish, after the last update."""


@dataclass(eq=False, repr=False)
class Reporting:
    """Calls the reporters of a run.

    Args:
        statistics: The statistics of the run.
        reporters: The reporters that show or store them.
    """

    _statistics: Statistics
    _reporters: Sequence[Reporter]
    _rates: Rates = field(init=False)  # from `begin` on
    _threads: dict[Reporter, MethodThread] = field(default_factory=dict[Reporter, MethodThread])
    _failed: set[Reporter] = field(default_factory=set[Reporter])
    _updates: "asyncio.Task[None] | None" = None

    async def begin(self) -> None:
        """Begin to report.

        Raises:
            ConfigError: If a reporter could not begin.
        """
        for reporter in self._reporters:
            self._threads[reporter] = MethodThread()
            try:
                await self._call(reporter, _BEGIN_S, reporter.begin)
            except Exception as error:  # trackers may raise any exception: no account, no permission, no network
                self._threads.pop(reporter).stop()
                raise ConfigError(f"{reporter.name} could not begin: {type(error).__name__}: {error}") from error
        if self._threads:
            self._rates = Rates(self._statistics)
            self._updates = asyncio.create_task(self._update())

    async def end(self) -> None:
        """Report a last time and end all reporters. Those that take too long are abandoned in their threads."""
        if self._updates is not None:
            self._updates.cancel()
            await asyncio.wait({self._updates})
        if self._threads:
            last = self._last_update()
            await asyncio.gather(*(self._end(reporter, last) for reporter in [*self._threads]))

    async def _end(self, reporter: Reporter, last: tuple[int, dict[str, float]]) -> None:
        try:
            await self._attempt(reporter, reporter.end_s, reporter.update, *last)
            await self._attempt(reporter, reporter.end_s, reporter.end)
        finally:
            self._threads.pop(reporter).stop()

    async def _update(self) -> None:
        """Send updates to the reporters that are due and have finished the previous update."""
        now = asyncio.get_running_loop().time
        due = {reporter: now() + reporter.every_s for reporter in self._threads}
        updating: dict[Reporter, asyncio.Task[None]] = {}
        while True:
            await asyncio.sleep(_TICK_S)
            self._rates.count()
            ready = [one for one, at in due.items() if now() >= at and not self._threads[one].is_busy]
            update = self._last_update() if ready else ()
            for reporter in ready:
                due[reporter] = now() + reporter.every_s
                updating[reporter] = asyncio.create_task(self._attempt(reporter, None, reporter.update, *update))

    def _last_update(self) -> tuple[int, dict[str, float]]:
        """Return the step and the values to report now."""
        self._rates.count()
        values = scalars(self._statistics) | self._rates.scalars()
        return int(values["rollouts/episodes"]), values

    async def _call(
        self, reporter: Reporter, seconds: float | None, method: Callable[..., None], *arguments: Any
    ) -> None:
        """Call a method of a reporter in its thread.

        Raises:
            DeadlineExceeded: If the call took longer than `seconds`.
        """

        def contained() -> None:
            try:
                method(*arguments)
            except (SystemExit, KeyboardInterrupt) as error:  # they would end the event loop
                raise RuntimeError(f"{type(error).__name__}: {error}") from error

        clock = asyncio.timeout(seconds)
        try:
            async with clock:
                await self._threads[reporter].call(contained)
        except TimeoutError as error:
            if clock.expired():
                what = f"{method.__name__}() of {reporter.name}"
                raise DeadlineExceeded(f"{what} took longer than {seconds:g} s") from error
            raise  # raised by the method itself

    async def _attempt(
        self, reporter: Reporter, seconds: float | None, method: Callable[..., None], *arguments: Any
    ) -> None:
        """Call a method of a reporter in its thread, and log its first error."""
        try:
            await self._call(reporter, seconds, method, *arguments)
        except Exception as error:
            if reporter not in self._failed:
                self._failed.add(reporter)
                with contextlib.suppress(ValueError):  # standard error may be closed
                    _log.warning("%s failed; the run continues: %s", reporter.name, error, exc_info=error)
