"""Episodes in another process, where strings have other hashes and the date is different."""

import json
import os
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..authoring._env import Env
from ._env_differences import described
from ._env_episodes import closing, roll_out
from ._reports import Failure, NotPossible

RAISES = "raises "
_LIMIT_S = 120.0
_PROGRAM = "from envsdk.testing._env_process import main; main()"


def run_elsewhere(pickled: bytes, policies: Sequence[str], seeds: Sequence[int]) -> dict[tuple[str, int], str]:
    """Run episodes in a new process.

    Args:
        pickled: A pickled function that creates an environment.
        policies: The names of the policies. Each runs an episode with every seed.
        seeds: The seeds.

    Returns:
        For each policy and seed, the trajectory as JSON, or `"raises ..."`.

    Raises:
        NotPossible: If the new process cannot import the environment.
        Failure: If the process failed or timed out.
    """
    command = [sys.executable, "-c", _PROGRAM]
    episodes = [(policy, seed) for policy in policies for seed in seeds]
    job = pickle.dumps((pickled, episodes))
    try:
        done = subprocess.run(command, input=job, capture_output=True, env=_variables(), timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Failure(f"the episodes in another process did not end within {_LIMIT_S:g} s") from None
    if done.returncode or not done.stdout:
        stderr = done.stderr.decode(errors="replace").strip()
        raise Failure(f"another process ended with status {done.returncode}: {stderr[-500:]}")
    answer = json.loads(done.stdout)
    if "unknown" in answer:
        raise NotPossible(f"another process cannot import it: {answer['unknown']}")
    return dict(zip(episodes, answer["played"], strict=True))


def main() -> None:
    """Run as the new process: read the episodes from standard input, run them, and write the results."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep the output of the environment out of the results
    pickled, episodes = pickle.loads(sys.stdin.buffer.read())
    try:
        make = pickle.loads(pickled)
    except Exception as error:  # it imports user code, which may raise anything
        answer: dict[str, object] = {"unknown": described(error)}
    else:
        answer = {"played": [_run(make, policy, seed) for policy, seed in episodes]}
    out.write(json.dumps(answer))
    out.close()


def _run(make: Callable[[], Env], policy: str, seed: int) -> str:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        with closing(make()) as env:
            return roll_out(env, policy, seed).to_json().decode()
    except Exception as error:
        return f"{RAISES}{described(error)}"


def _variables() -> dict[str, str]:
    """Return environment variables with the same module path, but another hash seed and another date."""
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    return {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed, "TZ": _other_day()}


def _other_day() -> str:
    """Return a time zone with another date than here, out of two whose dates always differ."""
    east, west = "east-14", "west+12"
    is_today = time.gmtime(time.time() + 14 * 3600).tm_mday == time.localtime().tm_mday
    return west if is_today else east
