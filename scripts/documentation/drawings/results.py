"""The figures of docs/results.md: rewards of the runs that `make results` logged."""

from collections.abc import Sequence

import numpy as np
from results.runs import ARMS, Run, runs_of

from .svg import INK, LINE, SOFT, Drawing


def rewards(game: str) -> str:
    """Draw the rewards of a game against updates and against CPU seconds."""
    runs = runs_of(game)
    picture = Drawing(820, 370, f"Mean reward in the game {game}, for each way of training, over updates and CPU time")
    picture.text(20, 28, f"{game}: mean reward of an update's episodes; band: smallest and largest seed", size=15)
    picture.legend(20, 54, {name.replace("`", ""): color for name, color in ARMS.values()})
    high = max(max(run.rewards) for run in runs)
    low = min(0.0, *(min(run.rewards) for run in runs))
    for left, label in ((60, "updates before"), (460, "CPU seconds before")):
        width = max(_places(run, label)[-1] for run in runs)

        def at(x: float, y: float, left: int = left, width: float = width) -> tuple[float, float]:
            return left + 330 * x / width, 320 - 240 * (y - low) / (high - low)

        for tick in np.arange(np.ceil(low * 5) / 5, high, 0.2):
            picture.line(left, at(0, tick)[1], left + 330, at(0, tick)[1], "#e3e7ee")
            picture.text(left - 8, at(0, tick)[1] + 4, f"{abs(tick):.1f}", size=11, color=SOFT, anchor="end")
        picture.line(left, 320, left + 330, 320, LINE)
        picture.text(left, 338, "0", size=11, color=SOFT, anchor="middle")
        picture.text(left + 330, 338, f"{width:.0f}", size=11, color=SOFT, anchor="middle")
        picture.text(left + 165, 356, label, size=12, color=INK, anchor="middle")
        for arm, (_, color) in ARMS.items():
            own = [run for run in runs if run.arm == arm]
            if own:
                x = np.mean([_places(run, label) for run in own], axis=0)
                rewards = np.array([run.rewards for run in own])
                edges = [*zip(x, rewards.max(0), strict=True), *zip(x[::-1], rewards.min(0)[::-1], strict=True)]
                picture.path([at(*point) for point in edges], fill=color)
                picture.path([at(*point) for point in zip(x, rewards.mean(0), strict=True)], stroke=color)
    return picture.svg()


def _places(run: Run, label: str) -> Sequence[float]:
    """Return the horizontal places of a run's updates."""
    return range(len(run.updates)) if label.startswith("updates") else run.seconds
