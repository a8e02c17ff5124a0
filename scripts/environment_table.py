"""Make docs/builtin-environments.md's table from the registry: `python scripts/environment_table.py --write`.

A row has what an environment exercises, its tools, the reasons of the breaks in its reference episodes (in brackets,
those that other history policies add), and the scores of the reference and the null policy.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import marked_tables

import envsdk
from envsdk import Trajectory
from envsdk.authoring._making import CatalogEntry, describe

PAGE = Path(__file__).resolve().parent.parent / "docs" / "builtin-environments.md"
HEAD = "| environment | exercises | tools | breaks | reference | null |\n|---|---|---|---|---|---|\n"
SEEDS = range(2)
HISTORIES: dict[str, list[Any]] = {
    "envsdk/LongNotes-v1": [
        {"name": "compact", "every": 5},
        {"name": "budget", "max_tokens": 2500},
        {"name": "summarize", "threshold": 2500},
    ],
    "envsdk/GridScreen-v1": [{"name": "compact", "every": 2, "keep_images": 1}],
}
"""The history policies in addition to `strip`: those that an environment is about."""


def table() -> str:
    """Return the table, in Markdown."""
    return HEAD + "".join(row(describe(name)) for name in envsdk.list_envs() if name.startswith("envsdk/"))


def row(entry: CatalogEntry) -> str:
    """Return the row of an environment.

    Raises:
        RuntimeError: If this machine cannot make it.
    """
    if entry.problem is not None:
        raise RuntimeError(f"{entry.id}: {entry.problem}")
    kept = play(entry.id, "reference", "keep")
    others = [play(entry.id, "reference", history) for history in ("strip", *HISTORIES.get(entry.id, ()))]
    breaks = ", ".join(reasons(kept)) or "none"
    more = [reason for other in others for reason in reasons(other) if reason not in reasons(kept)]
    cells = (
        f"`{entry.id}`" + (" (not the same each time)" if entry.nondeterministic else ""),
        entry.exercises,
        ", ".join(f"`{tool}`" for tool in entry.tools) or "none",
        f"{breaks} ({', '.join(more)})" if more else breaks,
        score(kept),
        score(play(entry.id, "null", "keep")),
    )
    return f"| {' | '.join(cells)} |\n"


def play(name: str, policy: str, history: Any) -> list[Trajectory]:
    """Play a few episodes."""
    return envsdk.rollouts.rollout_many(lambda: envsdk.make(name, history=history), policy, seeds=SEEDS)


def reasons(trajectories: Sequence[Trajectory]) -> list[str]:
    """Return the reasons of the breaks, each once."""
    return sorted({broken.reason for trajectory in trajectories for broken in trajectory.breaks})


def score(trajectories: Sequence[Trajectory]) -> str:
    """Return the score of all episodes, or the range of their scores."""
    scores = {round(trajectory.reward, 9) for trajectory in trajectories}
    return " to ".join(f"{value:g}" for value in sorted(scores))


def replaced(text: str) -> str:
    """Return the page with the current table."""
    return marked_tables.replaced(text, "environments", table())


def main() -> int:
    """Check the page, or write it."""
    parser = argparse.ArgumentParser(description="Check that the page lists the environments as they are.")
    parser.add_argument("--write", action="store_true", help="write the list instead")
    text = PAGE.read_text(encoding="utf-8")
    new = replaced(text)
    if parser.parse_args().write:
        PAGE.write_text(new, encoding="utf-8")
    elif new != text:
        print("docs/builtin-environments.md is not up to date: python scripts/environment_table.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
