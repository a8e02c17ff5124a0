"""Runs the benchmarks, and compares their figures with those of the last release, or stores them as the new ones.

python -m regressions                       # compare; exit status 1 if a row got slower
python -m regressions --release --runs 5    # store the figures of this version
python -m regressions -k samples            # some benchmarks only
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import envsdk

from .comparing import better, compare
from .figures import STORED, Figure, read, summarized, write

_RETRIES = 2  # how many times a row that seems slower is measured again
_BENCHMARKS = STORED.parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m regressions",
        description="Compare the costs of this version with those of the last release, or store them.",
    )
    parser.add_argument("--release", action="store_true", help="store the figures instead of comparing them")
    parser.add_argument("--runs", type=int, default=5, help="with --release: how many times to run everything")
    parser.add_argument("--against", type=Path, default=STORED, help="the file of stored figures")
    parser.add_argument("-k", dest="expression", help="run only the benchmarks that pytest selects with this")
    given = parser.parse_args(arguments)
    selected = [str(_BENCHMARKS), *(["-k", given.expression] if given.expression else [])]
    if given.release:
        return _release(selected, given.runs, given.against)
    return _compare(selected, given.against, is_partial=given.expression is not None)


def measure(selected: Sequence[str]) -> dict[str, Figure]:
    """Run benchmarks with pytest, and return the figures of their rows.

    Raises:
        SystemExit: If one of them fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "pytest", "--benchmark-only", "-q", "-p", "no:cacheprovider", *selected]
        status = subprocess.run([*command, f"--figures={path}"], check=False).returncode
        if status:
            raise SystemExit(f"the benchmarks failed with exit status {status}")
        return {name: Figure(**row) for name, row in json.loads(path.read_text(encoding="utf-8")).items()}


def _release(selected: Sequence[str], runs: int, path: Path) -> int:
    rows = summarized([measure(selected) for _ in range(runs)])
    about = {"version": envsdk.__version__, "runs": runs, "python": platform.python_version(), "machine": _machine()}
    write(path, rows, about)
    print(f"{len(rows)} figures of envsdk {envsdk.__version__} are in {path}")
    return 0


def _compare(selected: Sequence[str], path: Path, *, is_partial: bool) -> int:
    measured = measure(selected)
    if not path.exists():
        print(f"there are no figures to compare with in {path}: make bench-release stores those of this version")
        return 0
    stored = read(path)
    for _ in range(_RETRIES):
        slower = [change.row for change in compare(stored, measured) if change.verdict == "slower"]
        if not slower:
            break
        again = measure(sorted({measured[row].test for row in slower}))
        measured |= {row: better(measured[row], again[row]) for row in slower if row in again}
    changes = [change for change in compare(stored, measured) if not (is_partial and change.verdict == "missing")]
    print(f"\ncompared with {path.name}, {len(stored)} rows:")
    for change in changes:
        if change.verdict != "same":
            print(f"  {change}")
    slower = [change for change in changes if change.verdict == "slower"]
    print(f"{len(slower)} of {len(changes)} rows got slower" if slower else "no row got slower")
    return 1 if slower else 0


def _machine() -> str:
    """Return the processor's name and count of cores."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} cores"


if __name__ == "__main__":
    raise SystemExit(main())
