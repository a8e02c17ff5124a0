"""Output of the command line: to the terminal and to folders."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from .._visible import on_one_line, visible
from ..errors import ConfigError
from ..trajectories._samples import Sample
from ..trajectories._trajectory import Trajectory
from ..trajectories.records import write_jsonl

console = Console()
errors = Console(stderr=True)


def print_text(text: str = "", style: str = "") -> None:
    """Print a string literally: without markup, terminal escape codes, or wrapping of lines."""
    console.print(Text(visible(text), style), soft_wrap=True)


def print_json(value: Mapping[str, Any]) -> None:
    """Print a value as one line of JSON."""
    print_text(json.dumps(value))


def print_error(text: str) -> None:
    """Print an error to standard error, in red."""
    errors.print(Text(visible(text), "red"), soft_wrap=True)


class ErrorHandler(logging.Handler):
    """A logging handler that prints records and their tracebacks to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        try:
            print_error(self.format(record))
        except Exception:
            self.handleError(record)


def print_table(drawn: Table) -> None:
    """Print a table in full, even if the terminal is too narrow for it."""
    needed = Measurement.get(console, console.options.update(max_width=1000), drawn).minimum
    wide = Console(file=console.file, force_terminal=console.is_terminal, width=max(console.width, needed))
    wide.print(drawn)


def writable(folder: Path) -> Path:
    """Create the output folder and check that it is writable, before any work is done.

    Raises:
        ConfigError: If it is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".envsdk-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"--out is {str(folder)!r}, which cannot be written: {error}. Expected a writable folder"
        ) from error
    return folder


def write(
    folder: Path, trajectories: Sequence[Trajectory], samples: Sequence[Sample], *, quietly: bool = False
) -> None:
    """Write trajectories and samples to a folder, and print where they are."""
    write_jsonl(folder / "trajectories.jsonl", trajectories)
    write_jsonl(folder / "samples.jsonl", samples)
    if not quietly:
        print_text(f"wrote {len(trajectories)} trajectories and {len(samples)} samples to {folder}/")


def print_failures(trajectories: Sequence[Trajectory]) -> None:
    """Print the errors of the first failed episodes."""
    failed = [trajectory for trajectory in trajectories if trajectory.error is not None]
    for trajectory in failed[:5]:
        print_error(on_one_line(f"failed: {trajectory.id}: {trajectory.error}"))
    if len(failed) > 5:
        print_error(f"... and {len(failed) - 5} more")
