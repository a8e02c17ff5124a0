"""Episodes in another process, where texts have other hashes and the day may be another."""

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

from ..authoring.env import Env
from .env_differences import told
from .env_plays import closed, roll_out
from .reports import Failure, NotPossible

RAISES = "raises "
_LIMIT_S = 120.0
_PROGRAM = "from envsdk.testing.env_process import main; main()"


def play_elsewhere(pickled: bytes, policies: Sequence[str], seeds: Sequence[int]) -> dict[tuple[str, int], str]:
    """Play episodes in a new process.

    Args:
        pickled: What makes an environment.
        policies: Who plays; each plays every seed.
        seeds: What it is reset with.

    Returns:
        For each policy and seed the record of the episode; or `"raises ..."`.

    Raises:
        NotPossible: If the environment is not known there.
        Failure: If the process ended without an answer.
    """
    command = [sys.executable, "-c", _PROGRAM]
    episodes = [(policy, seed) for policy in policies for seed in seeds]
    job = pickle.dumps((pickled, episodes))
    try:
        done = subprocess.run(command, input=job, capture_output=True, env=_variables(), timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Failure(f"another process did not play the episodes within {_LIMIT_S:g} s") from None
    if done.returncode or not done.stdout:
        said = done.stderr.decode(errors="replace").strip()
        raise Failure(f"another process ended with status {done.returncode}: {said[-500:]}")
    answer = json.loads(done.stdout)
    if "unknown" in answer:
        raise NotPossible(f"another process cannot import it: {answer['unknown']}")
    return dict(zip(episodes, answer["played"], strict=True))


def main() -> None:
    """Be that process: read what to play, and write what came of it."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an environment prints is no answer
    pickled, episodes = pickle.loads(sys.stdin.buffer.read())
    try:
        make = pickle.loads(pickled)
    except Exception as error:  # it imports anybody's code
        answer: dict[str, object] = {"unknown": told(error)}
    else:
        answer = {"played": [_play(make, policy, seed) for policy, seed in episodes]}
    out.write(json.dumps(answer))
    out.close()


def _play(make: Callable[[], Env], policy: str, seed: int) -> str:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        with closed(make()) as env:
            return roll_out(env, policy, seed).to_json().decode()
    except Exception as error:
        return f"{RAISES}{told(error)}"


def _variables() -> dict[str, str]:
    """The environment variables of the other process: it finds the same modules, and all else may be different."""
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    return {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed, "TZ": _other_day()}


def _other_day() -> str:
    """A time zone in which it is another day than here: one of two whose days always differ."""
    east, west = "east-14", "west+12"
    is_today = time.gmtime(time.time() + 14 * 3600).tm_mday == time.localtime().tm_mday
    return west if is_today else east
