"""`python -m benchmarks [ROW ...]`: measure rows, and write their page, plots and figures.

All rows, measured at all sizes, go into `docs/`, and named rows with `--out docs`: they replace what is there of these
rows. `--write` measures nothing: it writes the page of the stored figures again. Any other run writes into
`.cache/benchmarks`, or into the folder of `--out`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from envsdk.viewer.reporting._plots import check_matplotlib

from . import CHECKOUT
from .contender import Size
from .measuring import measure
from .page import has_plot, page
from .plots import plot
from .pool import Pool
from .results import Results
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
    is_part = bool(options.sizes or options.quick or options.repetitions)
    is_published = options.write or not (options.rows or is_part)
    out = output(options.out or (DOCS if is_published else CACHE), is_part=is_part)
    repetitions = options.repetitions or (QUICK_REPETITIONS if options.quick else REPETITIONS)
    stored = out / "benchmarks.json"
    results = Results.model_validate_json(stored.read_text(encoding="utf-8")) if stored.is_file() else Results()
    pool = Pool(_folder(CACHE / "logs"), options.cap)
    try:
        for row in [] if options.write else rows:
            print(f"{row.id} ...", file=sys.stderr, flush=True)
            sizes = sizes_of(row, options.sizes, quick=options.quick)
            measured = measure(row, pool, sizes=sizes, repetitions=repetitions, budget_s=BUDGET_S)
            results = results.replaced(measured)
            for verdict in verdicts(row, measured):
                print(f"  {verdict.target}: {verdict.detail}: {verdict.word}", file=sys.stderr, flush=True)
    finally:
        pool.close()
    write(results, out)
    return 0


def output(given: Path, *, is_part: bool) -> Path:
    """Return the folder that a run writes into.

    Raises:
        SystemExit: If a part of a row would replace published figures.
    """
    if is_part and given.resolve() == DOCS:
        raise SystemExit("docs/benchmarks.md has rows at all sizes with all repetitions: leave out --out docs")
    return given


def sizes_of(row: Row, given: Sequence[str], *, quick: bool) -> tuple[Size, ...]:
    """Return the sizes of a row that are to be measured; all if it has none of the given ones."""
    chosen = tuple(size for size in row.sizes if str(size) in given)
    return chosen or (row.quick_sizes if quick else row.sizes)


def write(results: Results, out: Path) -> None:
    """Write the page, the plots and the figures of rows into a folder."""
    for row in ROWS:
        for result in results.rows:
            if result.id == row.id and has_plot(result):
                plot(row, result, _folder(out / "benchmarks") / f"{row.id}.svg")
    (_folder(out) / "benchmarks.md").write_text(page(results, ROWS), encoding="utf-8")
    (out / "benchmarks.json").write_text(results.model_dump_json(indent=1) + "\n", encoding="utf-8")
    print(out / "benchmarks.md")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = [row.id for row in ROWS]
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"one of {', '.join(known)}; all if none is named")
    parser.add_argument("--out", type=Path, help="the folder for page, plots and figures")
    parser.add_argument("--repetitions", type=int, help=f"of each contender at each size ({REPETITIONS})")
    parser.add_argument("--sizes", nargs="+", default=[], help="some sizes only")
    parser.add_argument("--write", action="store_true", help="measure nothing: write the page of the stored figures")
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
