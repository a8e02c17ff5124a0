"""Stored runs for the tests of reports: real episodes with given rewards."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import envsdk
from envsdk import Trajectory, get_renderer
from envsdk.rollouts import RunFolder
from envsdk.rollouts.scores import rescored

HOSTILE = (
    "<script>alert(1)</script>",
    "</td></table><img src=x onerror=alert(1)>",
    "\x1b[2J\x1b]0;title\x07",
    "\u202egnp.exe\u200b",
    "| a | **b** | [c](javascript:alert(1)) `d` www.example.org <b>",
    "$\\frac{1}{0}$ _under_ 漢字 עברית 🙂",
    "-rf",
    "\ud800",
)


@cache
def base() -> Trajectory:
    return envsdk.rollout("envsdk/GuessNumber-v1", "reference", seed=0)


def episode(task: str, number: int, reward: "float | dict[str, float] | str | None") -> Trajectory:
    """Return an episode with a reward; None for one that was not scored, and a text for one that failed."""
    one = replace(base(), id=f"{task}#{number}", group_id=task)
    if isinstance(reward, str):
        return replace(one, status="error", stop_reason="error", error=reward, error_kind="environment")
    return rescored(one, lambda _: reward)


def episodes(
    by_task: "Sequence[Sequence[float | dict[str, float] | str | None]]", prefix: str = "t"
) -> list[Trajectory]:
    """Return episodes with rewards by task; see `episode`."""
    return [
        episode(f"{prefix}{task}", number, reward)
        for task, rewards in enumerate(by_task)
        for number, reward in enumerate(rewards)
    ]


def store(path: Path, trajectories: Iterable[Trajectory], *, compress: bool = False, **configuration: Any) -> Path:
    """Write a run folder, and return its path."""
    renderers = {"main": get_renderer("qwen3", "embedded")}
    run = RunFolder.create(path, {"env": "envsdk/GuessNumber-v1", **configuration}, renderers, compress=compress)

    async def append_all() -> None:
        await asyncio.gather(*(run.append(trajectory, 1.0) for trajectory in trajectories))

    with run:
        asyncio.run(append_all())
        run.close(is_complete=True)
    return path
