"""A program with a run that tests kill with -9 and continue."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from envsdk.rollouts import RunFolder

PROGRAM = """
import asyncio, sys
from envsdk.policies import RandomPolicy
from envsdk.rollouts import Rollouts

class Slow:
    tokenizer = "any"
    def for_episode(self, env, seed):
        inner = RandomPolicy(env.renderer.tokenizer.vocab_size, seed=seed or 0)
        async def policy(prompt, *, episode_id, **request):
            await asyncio.sleep(hash((episode_id, len(prompt))) % 7 / 2000)
            return inner(prompt, episode_id=episode_id, **request)
        policy.tokenizer = "any"
        return policy
    def specification(self):
        return {"name": "slow"}

async def main(out, tasks, executor, env):
    policy = "reference" if env else Slow()
    rollouts = Rollouts(env or "envsdk/GuessNumber-v1", policy, seeds=range(tasks), group_size=8, max_concurrency=64,
        out=out, resume=True, executor=executor or None, n_workers=2)
    print("begun", flush=True)
    async for trajectory in rollouts:
        print(trajectory.id, flush=True)

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
"""


def play(
    program: Path, out: Path, tasks: int, executor: str = "", env: str = "", kill_after_s: float | None = None
) -> list[str]:
    """Play or continue a run in a process of its own, or kill it after it has begun; return the ids that it reported.

    An environment that is named is played by its reference.
    """
    command = [sys.executable, str(program), str(out), str(tasks), executor, env]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            os.killpg(process.pid, signal.SIGKILL)
        reported = (process.communicate()[0] or "").split("\n")[:-1]  # a line that was cut off was not reported
        assert process.returncode == (0 if kill_after_s is None else process.returncode)
        return reported


def stored(out: Path) -> dict[str, bytes]:
    return {one.id: one.to_json() for one in RunFolder.open(out).trajectories()}
