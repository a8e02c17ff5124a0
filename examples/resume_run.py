"""Stop a run in the middle and continue it: reported episodes are on disk, and no episode is played twice.

Run it with `python examples/resume_run.py FOLDER`, an empty or new folder.
"""

import asyncio
import sys
from pathlib import Path

from envsdk.rollouts import Rollouts, StoredRun

EPISODES = 12


def run(folder: Path, *, resume: bool) -> Rollouts:
    """Return the same run, new or continued."""
    seeds = range(EPISODES)
    env, policy = "envsdk/MathChat-v0", "reference"
    return Rollouts(env, policy, seeds=seeds, max_concurrency=2, out=folder, resume=resume)


async def begin(folder: Path, episodes: int) -> None:
    """Play some episodes, and stop: a killed process would leave the same folder."""
    async for _ in run(folder, resume=False):
        episodes -= 1
        if not episodes:
            return


def main() -> None:
    """Begin, continue, and read the folder."""
    folder = Path(sys.argv[1])
    asyncio.run(begin(folder, episodes=5))
    stored = {trajectory.id for trajectory in StoredRun(folder).trajectories()}
    print(f"stopped: {len(stored) < EPISODES}, at least 5 stored: {len(stored) >= 5}")
    continued = run(folder, resume=True)
    continued.run()
    finished = StoredRun(folder)
    ids = [trajectory.id for trajectory in finished.trajectories()]
    print(f"finished: {len(ids)} episodes, each once: {len(set(ids)) == len(ids)}, kept: {stored <= set(ids)}")
    first = next(finished.trajectories())
    print(f"read without the environment: {finished.tokenizer.decode(next(first.prompts()).prompt)[:32]!r}")


if __name__ == "__main__":
    main()
