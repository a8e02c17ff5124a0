"""Checks and measures trees on a GPU, and TRL's trainer on them: `make test-gpu`, or `python tests/gpu/run.py`.

It stores what it found, and writes the table of docs/explanation/trees.md. `--device cpu --shape tiny` runs the same
code on a CPU.
"""

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "tests"), str(CHECKOUT / "scripts")]
import marked_tables  # noqa: E402 (found in the folder above)

RESULTS = CHECKOUT / "docs" / "gpu.json"
PAGE = CHECKOUT / "docs" / "explanation" / "trees.md"
NOT_RUN = "This was not run on a GPU yet.\n"
COLUMNS = {
    "steps": "T",
    "dtype": "precision",
    "way": "attention",
    "tokens": "tokens",
    "seconds": "seconds",
    "peak_gib": "peak memory, GiB",
    "logprob_difference": "mean difference, nats",
    "gradient_difference": "difference of the gradient",
}


def table(found: dict[str, Any]) -> str:
    """Return the table of a run, in Markdown."""
    about = {**found["versions"], "GPU": found["device"]}
    lines = [
        f"Measured on {found['day']} at commit {found['commit']}: {', '.join(f'{k} {v}' for k, v in about.items())}.",
        "",
        f"| {' | '.join(COLUMNS.values())} |",
        f"|{'---|' * len(COLUMNS)}",
    ]
    for row in found["rows"]:
        cells = [f"{row[name]:.3g}" if isinstance(row[name], float) else row[name] for name in COLUMNS]
        shown = " | ".join("" if cell is None else str(cell) for cell in cells)
        lines.append(f"| {shown} |" if row["problem"] is None else f"| {shown} {row['problem'].replace('|', '/')} |")
    if trainer := found["trainer"]:
        times = ", ".join(f"{each:.3g}" for each in trainer["seconds"])
        lines += [
            "",
            f"Updates of GRPOTrainer with four rollouts of {trainer['steps']} replies each: {times} seconds, with all "
            f"{trainer['sampled_tokens']:,} sampled tokens in the loss.",
        ]
    return "\n".join(lines) + "\n"


def replaced(text: str) -> str:
    """Return the page with the table of the stored run."""
    own = table(json.loads(RESULTS.read_text(encoding="utf-8"))) if RESULTS.is_file() else NOT_RUN
    return marked_tables.replaced(text, "gpu", own)


def main() -> int:
    """Run all that was asked for; return 1 if something is not exact or did not run."""
    parser = argparse.ArgumentParser(description="Check and measure trees on a GPU.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="0.6B", choices=("0.6B", "tiny"))
    parser.add_argument("--steps", type=int, nargs="+", default=[16, 64, 128], metavar="T")
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--no-trainer", action="store_true", help="leave out TRL's trainer")
    parser.add_argument("--out", type=Path, help="write the results here, and not into the documentation")
    options = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # of transformers, about its next version
    import torch
    import transformers
    from gpu.attention import measurements

    from benchmarks.machine import commit, machine, today

    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"torch {torch.__version__} sees no GPU: install a build of torch for CUDA")
        return 1
    device = machine()["processor"] if options.device == "cpu" else torch.cuda.get_device_name()
    found: dict[str, Any] = {
        "day": today(),
        "commit": commit(),
        "device": device,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "shape": options.shape,
        "rows": [],
        "trainer": None,
    }
    for row in measurements(options.shape, options.device, options.steps, options.repetitions):
        print(row, flush=True)
        found["rows"].append(row)
    if not options.no_trainer:
        from gpu.trainer import updates

        found["trainer"] = updates(options.shape, options.device, min(options.steps))
        print(found["trainer"], flush=True)
    (options.out or RESULTS).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.out is None:
        PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    problems = [each["problem"] for each in [*found["rows"], found["trainer"] or {"problem": None}] if each["problem"]]
    print(*problems or ["exact, and everything ran"], sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
