"""`python -m benchmarks [ROW ...]`: measure the rows, and write their page, plots and figures.

A complete run, of all rows and sizes, writes into `docs/`. Any other run writes into `.cache/benchmarks`, or into the
folder of `--out`, which cannot be `docs/` then: a published page never mixes runs.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from envsdk.viewer.reporting._plots import check_matplotlib

from . import CHECKOUT
from .contender import Size
from .machine import commit, machine, today
from .measuring import measure
from .page import has_plot, page
from .plots import plot
from .pool import Pool
from .results import RunResult
from .row import Row
from .rows import ROWS
from .verdicts import verdicts

DOCS = CHECKOUT / "docs"
CACHE = CHECKOUT / ".cache" / "benchmarks"
REPETITIONS, QUICK_REPETITIONS = 7, 3
CAP_S, BUDGET_S = 60.0, 8.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the command line names."""
    options = _options(arguments)
    check_matplotlib()  # before anything is measured, which takes minutes
    rows = [row for row in ROWS if row.id in (options.rows or [each.id for each in ROWS])]
    is_complete = not (options.rows or options.sizes or options.quick or options.repetitions)
    out = output(options.out, is_complete=is_complete)
    repetitions = options.repetitions or (QUICK_REPETITIONS if options.quick else REPETITIONS)
    run = RunResult(date=today(), commit=commit(), machine=machine(), repetitions=repetitions, is_complete=is_complete)
    start = time.monotonic()
    pool = Pool(_folder(CACHE / "logs"), options.cap)
    try:
        for row in rows:
            print(f"{row.id} ...", file=sys.stderr, flush=True)
            sizes = sizes_of(row, options.sizes, quick=options.quick)
            run.rows.append(measure(row, pool, sizes=sizes, repetitions=repetitions, budget_s=BUDGET_S))
            for verdict in verdicts(row, run.rows[-1]):
                print(f"  {verdict.target}: {verdict.detail}: {verdict.word}", file=sys.stderr, flush=True)
    finally:
        pool.close()
    run.seconds = round(time.monotonic() - start, 1)
    write(run, rows, out)
    return 0


def output(given: Path | None, *, is_complete: bool) -> Path:
    """Return the folder that a run writes into.

    Raises:
        SystemExit: If an incomplete run would replace the published page.
    """
    if given is None:
        return DOCS if is_complete else CACHE
    if not is_complete and given.resolve() == DOCS:
        raise SystemExit("a run of some rows or sizes does not replace docs/benchmarks.md: leave out --out docs")
    return given


def sizes_of(row: Row, given: Sequence[str], *, quick: bool) -> tuple[Size, ...]:
    """Return the sizes of a row that are to be measured; all if it has none of the given ones."""
    chosen = tuple(size for size in row.sizes if str(size) in given)
    return chosen or (row.quick_sizes if quick else row.sizes)


def write(run: RunResult, rows: Sequence[Row], out: Path) -> None:
    """Write the page, the plots and the figures of a run into a folder."""
    text = page(run, rows)
    for row, result in zip(rows, run.rows, strict=True):
        if has_plot(result):
            plot(row, result, _folder(out / "benchmarks") / f"{row.id}.svg")
    (_folder(out) / "benchmarks.md").write_text(text, encoding="utf-8")
    (out / "benchmarks.json").write_text(run.model_dump_json(indent=1) + "\n", encoding="utf-8")
    print(out / "benchmarks.md")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = [row.id for row in ROWS]
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"one of {', '.join(known)}; all if none is named")
    parser.add_argument("--out", type=Path, help="the folder for page, plots and figures")
    parser.add_argument("--repetitions", type=int, help=f"of each contender at each size ({REPETITIONS})")
    parser.add_argument("--sizes", nargs="+", default=[], help="some sizes only")
    parser.add_argument("--quick", action="store_true", help=f"small sizes, {QUICK_REPETITIONS} repetitions")
    parser.add_argument(
        "--cap", type=float, default=CAP_S, help=f"seconds for one repetition ({CAP_S:g}); a row may allow more"
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.rows if name not in known]:
        parser.error(f"unknown row {', '.join(unknown)}; known: {', '.join(known)}")
    return options


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


if __name__ == "__main__":
    sys.exit(main())
