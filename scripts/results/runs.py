"""The logs of the runs, as `training` writes them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LOGS = Path(__file__).resolve().parent / "logs"
ARMS = {
    "tree": ("every sampled token, as a tree", "#2f6fb3"),
    "last_segment": ("the last segment", "#f0a23b"),
    "naive": ("naive: rendered again", "#e4576b"),
    "keep": ("`keep`: no breaks", "#5b9b5b"),
}
"""What an arm trains, and its color."""


class Run(NamedTuple):
    """The log of a run."""

    arm: str
    seed: int
    settings: Mapping[str, Any]
    updates: Sequence[Mapping[str, Any]]

    @property
    def rewards(self) -> list[float]:
        """The mean reward of the episodes of each update, which were sampled before it."""
        return [mean(update["rewards"]) for update in self.updates]

    @property
    def seconds(self) -> list[float]:
        """The CPU seconds that were used before each update's episodes."""
        return [0.0, *(update["cpu_s"] for update in self.updates[:-1])]


def runs_of(game: str) -> list[Run]:
    """Return the complete runs of a game, in the order of the arms and seeds."""
    runs: list[Run] = []
    for path in LOGS.glob(f"{game}-*.jsonl"):
        settings, *updates = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if len(updates) == settings["updates"]:
            runs.append(Run(settings["arm"], settings["seed"], settings, updates))
    return sorted(runs, key=lambda run: (list(ARMS).index(run.arm), run.seed))


def mean(values: Sequence[float]) -> float:
    """Return the mean as a float."""
    return float(sum(values) / len(values))
