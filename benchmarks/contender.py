"""What a worker measures: the contenders that the modules of one environment register."""

import importlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

Size = int | str
Repetition = Callable[[], float | None]
"""Runs the workload once. It returns the figure in the row's unit, or None: then its CPU time is measured. If it has a
method `close`, that is called when the size is done."""
SetUp = Callable[[Any], Repetition]


class NotMeasured(Exception):
    """A contender gives no figure. The message says why, in the words of the page."""


CONTENDERS = Path(__file__).resolve().parent / "contenders"


@dataclass(frozen=True)
class Contender:
    """One project's way to run the workload of a row.

    Attributes:
        row: The id of the row.
        name: The name in the row's table.
        set_up: Prepares the workload for a size; returns what is measured.
        note: The mode it runs in, and what it leaves out, for the page.
        packages: The distributions whose versions the page states.
        is_reimplemented: Whether it is written here by the project's public rules instead of calling its code.
    """

    row: str
    name: str
    set_up: SetUp
    note: str = ""
    packages: tuple[str, ...] = ()
    is_reimplemented: bool = False

    def described(self) -> dict[str, Any]:
        """Return what the parent is told about it, as JSON."""
        return {
            "note": self.note,
            "versions": {package: version(package) for package in self.packages},
            "is_reimplemented": self.is_reimplemented,
        }


_registered: dict[tuple[str, str], Contender] = {}


def contender(row: str, name: str, **options: Any) -> Callable[[SetUp], SetUp]:
    """Register a function `set_up(size) -> repetition` as a contender; `options` are the fields of `Contender`."""

    def register(set_up: SetUp) -> SetUp:
        if (row, name) in _registered:
            raise ValueError(f"the row {row!r} has two contenders named {name!r}")
        _registered[row, name] = Contender(row, name, set_up, **options)
        return set_up

    return register


def registered(row: str, name: str) -> Contender:
    """Return a contender.

    Raises:
        NotMeasured: If no imported module registers it.
    """
    if (row, name) not in _registered:
        raise NotMeasured("not measured: its package cannot be imported here")
    return _registered[row, name]


def import_contenders(environment: str) -> None:
    """Import the modules of an environment; print the error of each that cannot be imported, for the log."""
    for file in sorted((CONTENDERS / environment).glob("*.py")):
        try:
            importlib.import_module(f"benchmarks.contenders.{environment}.{file.stem}")
        except Exception:  # whatever a peer raises where it does not run
            traceback.print_exc()
