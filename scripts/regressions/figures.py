"""The figures of benchmarks: ratios within a run, which can be compared with those of another run.

A time is stored as a multiple of the yardstick that was measured around the test, not in seconds.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

STORED = Path(__file__).resolve().parents[2] / "tests" / "benchmarks" / "figures.json"
"""The figures of the last release."""
_SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
_RATES = ("steps/s", "a second")


class Figure(NamedTuple):
    """The measurement of a row in one run."""

    value: float
    unit: str
    lower_is_better: bool
    test: str
    """The id of the test that measures the row."""


class Stored(NamedTuple):
    """The measurements of several runs."""

    value: float
    """The median."""
    noise: float
    """The largest deviation of a run from the median, relative to the median."""
    unit: str
    lower_is_better: bool


def figure_of(value: float, unit: str, test: str, *, yardstick_s: float, higher_is_better: bool) -> Figure:
    """Return a row as a figure: a time in yardsticks, a rate per yardstick, and any other value as it is.

    Args:
        value: The measured value.
        unit: Its unit, such as `ms`, `ns a token`, `steps/s` or `x`.
        test: The id of the test.
        yardstick_s: The time of the yardstick around the test, in seconds.
        higher_is_better: Whether a higher value is better, as for every rate.
    """
    scale, _, rest = unit.partition(" ")
    if unit in _RATES:
        return Figure(
            value * yardstick_s, f"{unit.removesuffix('a second').removesuffix('/s')} a yardstick".strip(), False, test
        )
    if scale in _SECONDS:
        return Figure(value * _SECONDS[scale] / yardstick_s, f"yardsticks {rest}".strip(), not higher_is_better, test)
    return Figure(value, unit, not higher_is_better, test)


def summarized(runs: Sequence[Mapping[str, Figure]]) -> dict[str, Stored]:
    """Return the rows that every run measured, each with its median and its noise."""
    found: dict[str, Stored] = {}
    for name, first in runs[0].items():
        if all(name in run for run in runs):
            values = [run[name].value for run in runs]
            middle = median(values)
            noise = max(abs(value - middle) for value in values) / middle if middle else 0.0
            found[name] = Stored(middle, noise, first.unit, first.lower_is_better)
    return found


def read(path: Path) -> dict[str, Stored]:
    """Read stored figures."""
    rows: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {name: Stored(**row) for name, row in rows.items()}


def write(path: Path, rows: Mapping[str, Stored], about: Mapping[str, Any]) -> None:
    """Write figures with one line for each row, so that a diff shows what changed.

    Args:
        path: The file.
        rows: The figures by the name of the row.
        about: The versions and the machine of the measurements.
    """
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in about.items()]
    listed = [
        f"    {json.dumps(name, ensure_ascii=False)}: {json.dumps(_rounded(rows[name]))}" for name in sorted(rows)
    ]
    inside = ",\n".join(listed)
    lines.append(f'  "rows": {{\n{inside}\n  }}')
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _rounded(row: Stored) -> dict[str, Any]:
    return {**row._asdict(), "value": float(f"{row.value:.4g}"), "noise": round(row.noise, 3)}
