"""Writes docs/results.md from the logs of the runs. It needs no torch."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .runs import ARMS, LOGS, Run, mean, runs_of

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
PAGE = CHECKOUT / "docs" / "results.md"
LAST = 3
"""The number of last updates whose rewards are averaged."""


# The tables of a game.


def progress_table(runs: Sequence[Run]) -> list[str]:
    """Return the rewards, tokens and times of the arms."""
    head = ["trained", "seeds", "reward: first update", f"last {LAST} updates", "all updates", "all, minus the tree's"]
    head += [
        "tokens of a reply: first update",
        "last",
        "sampled tokens that are trained",
        "CPU s of an update: sampling",
    ]
    lines = [head := [*head, "rest"], ["---"] * len(head)]
    for arm, own in _by_arm(runs).items():
        updates = [update for run in own for update in run.updates]
        every = sum(update["sampled"] for update in updates)
        trained = sum(count for update in updates for count, *_ in update["k"].values())
        sampling = mean([update["sampling_s"] for update in updates])
        lengths = [mean([run.updates[at]["sampled"] / run.updates[at]["steps"] for run in own]) for at in (0, -1)]
        cells = [
            *(ARMS[arm][0], str(len(own)), f"{mean([run.rewards[0] for run in own]):.2f}"),
            _spread([mean(run.rewards[-LAST:]) for run in own]),
            _spread([mean(run.rewards) for run in own]),
            _difference(runs, arm),
            *map("{:.1f}".format, lengths),
            f"{trained:,} of {every:,} ({trained / every:.0%})",
            f"{sampling:.1f}",
            f"{mean([run.updates[-1]['cpu_s'] / len(run.updates) for run in own]) - sampling:.1f}",
        ]
        lines.append(cells)
    return [f"| {' | '.join(line)} |" for line in lines]


def divergence_table(runs: Sequence[Run]) -> list[str]:
    """Return k1 and k2 between sampler and trainer, by the reason of the break."""
    lines = [["trained", "break", "tokens", "k1", "k2", "k2: first update", "last update"], ["---"] * 7]
    for arm, own in _by_arm(runs).items():
        parts = [(at, *part) for run in own for at, update in enumerate(run.updates) for part in update["k"].items()]
        for reason in sorted({reason for _, reason, _ in parts}, key="none".__ne__):
            found = [(at, *part) for at, name, part in parts if name == reason]
            ends = [[part for part in found if part[0] == at] for at in (0, len(own[0].updates) - 1)]
            values = [_weighted(found, 2), *(_weighted(part, 3) for part in (found, *ends))]
            count = sum(part[1] for part in found)
            lines.append([ARMS[arm][0], reason, f"{count:,}", *values])
    return [f"| {' | '.join(line)} |" for line in lines]


def _weighted(parts: Sequence[Sequence[float]], column: int) -> str:
    """Return the mean of a column over tokens, whose number is in column 1; empty if there are none."""
    count = sum(part[1] for part in parts)
    return f"{sum(part[1] * part[column] for part in parts) / count:.1e}" if count else ""


def _by_arm(runs: Sequence[Run]) -> dict[str, list[Run]]:
    return {arm: own for arm in ARMS if (own := [run for run in runs if run.arm == arm])}


def _spread(values: Sequence[float]) -> str:
    """Return the mean of seeds, and the smallest and largest."""
    return f"{mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _difference(runs: Sequence[Run], arm: str) -> str:
    """Return the mean difference to the tree's reward over the seeds that both have, with its standard error."""
    tree = {run.seed: mean(run.rewards) for run in runs if run.arm == "tree"}
    pairs = [mean(run.rewards) - tree[run.seed] for run in runs if run.arm == arm and run.seed in tree]
    if arm == "tree" or len(pairs) < 2:
        return ""
    return f"{mean(pairs):+.2f} ± {float(np.std(pairs, ddof=1)) / len(pairs) ** 0.5:.2f}"


# The page.


def setup(game: str, runs: Sequence[Run]) -> list[str]:
    """Return how the runs of a game were trained."""
    warm = json.loads((LOGS / f"{game}.json").read_text(encoding="utf-8"))
    settings, losses = runs[0].settings, warm["losses"]
    lora = settings["lora"]
    rows = {
        "warm-up, shared by all arms": f"{len(losses)} steps of Adam at {warm['rate']:g}, all weights, on "
        f"{2 * warm['games']} games of the reference policy, half of them with all thinking kept",
        "its loss": f"{losses[0]:.2f}, then {mean(losses[-4:]):.2f} nats per token (mean of four steps)",
        "updates": f"{settings['updates']}, each of {settings['groups']} groups of {settings['generations']} episodes",
        "trained": f"LoRA of rank {lora['r']} in the last {len(lora['layers_to_transform'])} of "
        f"30 layers, at a constant rate of {settings['rate']:g}",
    }
    return ["| what | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]


def page() -> str:
    """Return docs/results.md: the text of page.md with the tables of its games."""
    text = (HERE / "page.md").read_text(encoding="utf-8")
    for game in re.findall(r"{progress (\w+)}", text):
        runs = runs_of(game)
        tables = {"progress": progress_table(runs), "divergence": divergence_table(runs), "setup": setup(game, runs)}
        for name, lines in tables.items():
            text = text.replace(f"{{{name} {game}}}", "\n".join(lines))
    return text


def write_page() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
