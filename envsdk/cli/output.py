"""Where the command line writes: the terminal, and folders."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ..errors import ConfigError
from ..trajectories.records import write_jsonl
from ..trajectories.samples import Sample
from ..trajectories.trajectory import Trajectory
from ..visible import on_one_line, visible

console = Console()
errors = Console(stderr=True)


def say(text: str = "", style: str = "") -> None:
    """Print a text as it is: nothing in it is markup or obeyed by the terminal, and its lines are not wrapped."""
    console.print(Text(visible(text), style), soft_wrap=True)


def say_json(value: Mapping[str, Any]) -> None:
    """Print a value as one line of JSON."""
    say(json.dumps(value))


def complain(text: str) -> None:
    """Print what went wrong."""
    errors.print(Text(visible(text), "red"), soft_wrap=True)


class Complaints(logging.Handler):
    """Prints what is logged, with its traceback, as any other complaint."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        try:
            complain(self.format(record))
        except Exception:
            self.handleError(record)


def show_table(drawn: Table) -> None:
    """Print a table; where the terminal is too narrow for it, its lines run over, and nothing is left out."""
    needed = Measurement.get(console, console.options.update(max_width=1000), drawn).minimum
    wide = Console(file=console.file, force_terminal=console.is_terminal, width=max(console.width, needed))
    wide.print(drawn)


def writable(folder: Path) -> Path:
    """Make the folder, before any work is done for it.

    Raises:
        ConfigError: If nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".envsdk-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"the output folder {str(folder)!r} cannot be written: {error}. Take another --out"
        ) from error
    return folder


def write(
    folder: Path, trajectories: Sequence[Trajectory], samples: Sequence[Sample], *, quietly: bool = False
) -> None:
    """Write trajectories and samples, and say where."""
    write_jsonl(folder / "trajectories.jsonl", trajectories)
    write_jsonl(folder / "samples.jsonl", samples)
    if not quietly:
        say(f"{len(trajectories)} trajectories and {len(samples)} samples are in {folder}/")


def complain_of(trajectories: Sequence[Trajectory]) -> None:
    """Print why episodes failed: the first few."""
    failed = [trajectory for trajectory in trajectories if trajectory.error is not None]
    for trajectory in failed[:5]:
        complain(on_one_line(f"failed: {trajectory.id}: {trajectory.error}"))
    if len(failed) > 5:
        complain(f"... and {len(failed) - 5} more")
