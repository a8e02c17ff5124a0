"""Experiment trackers: trackio, Weights & Biases, TensorBoard, OpenTelemetry, or a function."""

import contextvars
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from .._packages import load
from .._visible import brief
from ..errors import ConfigError
from ._otel import OtelTracker
from ._reporting import Reporter

LogTo: TypeAlias = str | Callable[[int, Mapping[str, float]], Any]
"""The name of a tracker, or a function that gets the step and the values."""

_PROJECT = "envsdk"


def find_tracker(log_to: LogTo) -> Reporter:
    """Return the tracker of a name such as `wandb:my-project/run-name`.

    Raises:
        ConfigError: If no tracker has that name.
        MissingPackage: If its package is not installed.
    """
    if inspect.iscoroutinefunction(log_to):
        raise ConfigError(f"log_to is {brief(log_to)}, an async function; expected a plain one: it runs in a thread")
    if callable(log_to):
        return FunctionTracker(log_to)
    name, _, where = log_to.partition(":") if isinstance(log_to, str) else ("", "", "")  # pyright: ignore[reportUnnecessaryIsInstance]
    if name not in _TRACKERS:
        raise ConfigError(
            f"log_to is {brief(log_to)}; expected 'trackio', 'wandb', 'trackio:PROJECT/RUN', 'wandb:PROJECT/RUN', "
            "'tensorboard', 'tensorboard:FOLDER', 'otel', or a function of the step and the values"
        )
    return _TRACKERS[name](where)


class Tracker(Reporter):
    """A reporter that logs the values."""

    every_s = 10.0
    end_s = 60.0


@dataclass(eq=False, repr=False)
class FunctionTracker(Tracker):
    """A tracker that calls a function.

    Args:
        function: It is called with the step and the values, in a separate thread.
    """

    name = "the function log_to"

    _function: Callable[[int, Mapping[str, float]], Any]

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """See `Reporter`."""
        self._function(step, values)


class RunTracker(Tracker):
    """A package with runs in projects: Weights & Biases or trackio. It opens a new run next to that of a trainer.

    Args:
        package: The name of the package.
        where: The project, or the project and the name of the run: `PROJECT/RUN`. The project may be empty.
        options: Additional arguments of `init`.
    """

    def __init__(self, package: str, where: str, **options: Any) -> None:
        self.name = package
        self._package = load(package, f"log_to={package!r} needs", f"pip install 'envsdk[{package}]'")
        project, _, run = where.partition("/")
        self._options = {"project": project or _PROJECT, "name": run or None, **options}
        self._run: Any = None

    def begin(self) -> None:
        """See `Reporter`."""
        # In an empty context, trackio does not see, and so does not finish, the run of a trainer.
        self._run = contextvars.Context().run(partial(self._package.init, **self._options))

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """See `Reporter`."""
        self._run.log(dict(values), step=step)

    def end(self) -> None:
        """See `Reporter`."""
        self._run.finish()


class TensorBoardTracker(Tracker):
    """Event files for TensorBoard.

    Args:
        folder: The folder to write them to; if empty, `runs/` with the time and the name of the machine.
    """

    name = "tensorboard"

    def __init__(self, folder: str) -> None:
        self._package = load("tensorboardX", "log_to='tensorboard' needs", "pip install 'envsdk[tensorboard]'")
        self._folder = folder or None
        self._writer: Any = None

    def begin(self) -> None:
        """See `Reporter`."""
        self._writer = self._package.SummaryWriter(self._folder)

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """See `Reporter`."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def end(self) -> None:
        """See `Reporter`."""
        self._writer.close()


_TRACKERS: dict[str, Callable[[str], Reporter]] = {
    "trackio": partial(RunTracker, "trackio"),
    "wandb": partial(RunTracker, "wandb", reinit="create_new"),
    "tensorboard": TensorBoardTracker,
    "otel": OtelTracker,
}
