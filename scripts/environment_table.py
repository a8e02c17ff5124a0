"""Make docs/builtin-environments.md's table from the registry: `python scripts/environment_table.py --write`.

A row has what an environment exercises, its tools, the reasons of the breaks in its reference episodes (in brackets,
those that other history policies add), and the scores of the reference and the null policy.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import marked_tables

import envsdk
from envsdk.cli._card import card_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "builtin-environments.md"
HEAD = "| environment | exercises | tools | breaks | reference | null |\n|---|---|---|---|---|---|\n"
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
    return HEAD + "".join(row(name) for name in envsdk.list_envs() if name.startswith("envsdk/"))


def row(name: str) -> str:
    """Return the row of an environment."""
    card = card_of(name, seeds=1, histories=("strip", *HISTORIES.get(name, ())))
    kept, *others = card.breaks.values()
    more = list(dict.fromkeys(reason for other in others for reason in other if reason not in kept))
    breaks = ", ".join(kept) or "none"
    cells = (
        f"`{name}`" + (" (not the same each time)" if card.environment.nondeterministic else ""),
        card.environment.exercises,
        ", ".join(f"`{tool}`" for tool in card.environment.tools) or "none",
        f"{breaks} ({', '.join(more)})" if more else breaks,
        card.score("reference"),
        card.score("null"),
    )
    return f"| {' | '.join(cells)} |\n"


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
