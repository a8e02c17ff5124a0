"""What it costs to store the trajectories of a run, and to continue it."""

import asyncio
import copy
import time
from pathlib import Path

import pytest

import envsdk
from envsdk import Trajectory
from envsdk.rollouts import RunFolder, rollout_many
from envsdk.rollouts._run_folder import Journal


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "zst"])
def test_storing_trajectories_does_not_hold_up_the_event_loop(
    benchmark, report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: bool
):
    count = 2000 if benchmark.enabled else 20
    env = envsdk.make("envsdk/MathChat-v0")
    episodes = rollout_many("envsdk/MathChat-v0", "reference", seeds=range(16))
    batches, lags = list[int](), list[float]()
    write = Journal.append

    def counted(self: Journal, lines: list[bytes]) -> None:
        batches.append(len(lines))
        write(self, lines)

    monkeypatch.setattr(Journal, "append", counted)

    async def measure_lag() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            lags.append(time.perf_counter() - before - 0.001)

    async def store(folder: RunFolder) -> None:
        left = iter(range(count))

        async def work() -> None:
            for number in left:
                trajectory: Trajectory = copy.copy(episodes[number % len(episodes)])
                trajectory.id = f"{number}"
                await folder.append(trajectory)

        measuring = asyncio.create_task(measure_lag())
        await asyncio.gather(*(work() for _ in range(256)))
        measuring.cancel()

    folder = RunFolder.create(tmp_path / "run", {}, {"main": env.renderer}, compress=compress)
    benchmark.pedantic(lambda: asyncio.run(store(folder)), rounds=1)
    folder.close()
    before = time.perf_counter()
    again = RunFolder.create(tmp_path / "run", {}, {"main": env.renderer}, compress=compress, resume=True)
    again.close()
    assert len(again.finished) == count
    if benchmark.enabled:
        name = "zst" if compress else "plain"
        size = len(episodes[0].to_json())
        rate = count / benchmark.stats.stats.median
        note = f"{size:,} bytes each, 256 at a time, {count / len(batches):.0f} for each fsync"
        report(f"storing trajectories, {name}", rate, "a second", at_least=500, note=note)
        lag = sorted(lags)[int(len(lags) * 0.99)]
        report(f"lag of the event loop while storing, p99, {name}", 1e3 * lag, "ms", at_most=100)
        report(f"continuing a run of {count:,}, {name}", 1e3 * (time.perf_counter() - before), "ms")
