"""Checks of determinism: the same seed gives the same bytes.

Each check changes one thing: the environment object, the process, the global random state, or the earlier episodes.
"""

import copy
import json
import os
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gymnasium.envs.registration import EnvSpec

from ..authoring._driver import driver_of
from ..authoring._env import Env
from ..trajectories._trajectory import Trajectory
from ._env_episodes import (
    NONDETERMINISTIC,
    NOT_REPRODUCIBLE,
    Episodes,
    closing,
    difference,
    roll_out,
    step_with,
    trajectory_of,
    transcript,
)
from ._reports import CheckFailure, NotPossible, described

_USE = "use self.np_random instead"
_OWN = (
    "store the state of an episode in the object (self), not in its class, its module, or a connection that both share"
)
_OBJECTS = ("renderer", "tokenizer", "history", "tasks")
"""Options of every environment that may be objects. The specification is then not JSON."""
_GARBAGE = 20
"""The number of garbage replies, enough to change any shared state."""


def same_bytes(episodes: Episodes) -> str:
    """Check that two new environments give the same episode."""
    if episodes.is_random:
        raise NotPossible(NONDETERMINISTIC)
    for policy in (episodes.policy, "random"):
        for seed in episodes.half_of_seeds:
            if not episodes.is_reproducible(policy, seed):
                first, second = episodes.play(policy, seed), episodes.play(policy, seed, "another rollout")
                raise CheckFailure(
                    f"two episodes of the {policy} policy differ: {difference(first, second)}. The environment depends "
                    "on a clock, on its own random numbers, or on earlier episodes",
                    seed,
                )
    return f"{len(episodes.half_of_seeds)} seeds, twice"


def same_bytes_elsewhere(episodes: Episodes) -> str:
    """Check that a new environment in another process gives the same episode."""
    if episodes.is_random:
        raise NotPossible(NONDETERMINISTIC)
    pickled = episodes.subject.pickled()
    policies = [episodes.policy, "random"]
    here = {(policy, seed): episodes.play(policy, seed) for policy in policies for seed in episodes.half_of_seeds}
    there = run_elsewhere(pickled, policies, episodes.half_of_seeds)
    for (policy, seed), found in there.items():
        if found.startswith(RAISES):
            raise CheckFailure(f"the {policy} policy works in this process, but in another process it {found}", seed)
        if found.encode() == here[policy, seed].to_json():
            continue
        if not episodes.is_reproducible(policy, seed):
            raise NotPossible(NOT_REPRODUCIBLE)
        raise CheckFailure(
            f"an episode of the {policy} policy differs in another process: "
            f"{difference(here[policy, seed], Trajectory.from_json(found))}. There, strings have other hashes, and "
            "it is another day: sort what comes out of a set, and do not use hash() or the clock",
            seed,
        )
    return f"{len(episodes.half_of_seeds)} seeds"


def no_global_random_state(episodes: Episodes) -> str:
    """Check that the environment neither uses nor changes the global state of `random` and `numpy.random`."""
    for seed in episodes.few_seeds:
        for policy in (episodes.policy, "random"):
            expected = episodes.play(policy, seed)
            found = _with_other_global_state(episodes, policy, seed)
            if found.to_json() != expected.to_json() and episodes.is_reproducible(policy, seed):
                raise CheckFailure(
                    "with another global state of `random` and `numpy.random`, the episode differs: "
                    f"{difference(expected, found)}; {_USE}",
                    seed,
                )
    return f"{len(episodes.few_seeds)} seeds"


def _with_other_global_state(episodes: Episodes, policy: str, seed: int) -> Trajectory:
    """Run an episode with a different global random state, and check that it does not change this state."""
    with episodes.attempt(seed):
        random.seed(f"not {seed}")
        np.random.seed((seed + 1) % 2**32)
        before = random.getstate(), pickle.dumps(np.random.get_state())
        with closing(episodes.subject.make()) as env:
            trajectory = roll_out(env, policy, seed)
        after = random.getstate(), pickle.dumps(np.random.get_state())
    names = ("random", "numpy.random")
    changed = [name for name, one, other in zip(names, before, after, strict=True) if one != other]
    if changed:
        raise CheckFailure(f"the episode changes the global state of `{'` and `'.join(changed)}`; {_USE}", seed)
    return trajectory


def _check_no_global_random(episodes: Episodes, seed: int) -> None:
    """Raise NotPossible if the environment uses the global random state, which a different check reports."""
    try:
        _with_other_global_state(episodes, episodes.policy, seed)
    except CheckFailure:
        raise NotPossible('it uses the global random state: see "no global random state"') from None


def reset_clears_state(episodes: Episodes) -> str:
    """Check that an environment gives the same episode after a reset, even in the middle of another episode."""
    with closing(episodes.subject.make()) as env:
        for seed in episodes.few_seeds:
            expected = episodes.reproducible(seed)
            with episodes.attempt(seed):
                env.reset(seed=seed + 1)
                step_with(env, "random", seed, 2)
                again = roll_out(env, episodes.policy, seed)
            if again.to_json() != expected.to_json():
                raise CheckFailure(
                    f"after another episode it differs: {difference(expected, again)}; set everything that an episode "
                    "changes in start()",
                    seed,
                )
    return f"{len(episodes.few_seeds)} seeds"


def copies(episodes: Episodes) -> str:
    """Check that a copy made before the first reset gives the same episode, and does not affect the original."""
    for seed in episodes.few_seeds:
        expected = episodes.reproducible(seed, "step")
        with episodes.attempt(seed), closing(episodes.subject.make()) as env, closing(copy.deepcopy(env)) as other:
            env.reset(seed=seed)
            step_with(env, episodes.policy, seed, 1)
            other.reset(seed=seed)
            step_with(other, episodes.policy, seed)
            step_with(env, episodes.policy, seed)
        for name, trajectory in {"the copy": trajectory_of(other), "the original": trajectory_of(env)}.items():
            if trajectory.to_json() != expected.to_json():
                _check_no_global_random(episodes, seed)
                raise CheckFailure(f"{name} gives another episode: {difference(expected, trajectory)}; {_OWN}", seed)
    return f"{len(episodes.few_seeds)} seeds"


def forks(episodes: Episodes) -> str:
    """Check that a running episode and its forks do not affect each other."""
    if (reason := driver_of(episodes.sample).why_no_fork) is not None:
        raise NotPossible(f"a running episode cannot be copied: {reason}")
    for seed in episodes.few_seeds:
        episodes.reproducible(seed)
        with episodes.attempt(seed):  # one fork gets garbage, then the original continues, then the other fork
            policy = episodes.policy
            whole = episodes.play(policy, seed, "step")
            with closing(episodes.subject.make()) as env:
                env.reset(seed=seed)
                step_with(env, policy, seed, len(whole.steps) // 2)
                with closing(env.fork()) as spoiled, closing(env.fork()) as sound:
                    step_with(spoiled, "random", seed, _GARBAGE)
                    step_with(env, policy, seed)
                    step_with(sound, policy, seed)
            fork, original = trajectory_of(sound), trajectory_of(env)
            is_fork_same = transcript(fork) == transcript(whole) and fork.reward == whole.reward
            is_original_same = original.to_json() == whole.to_json()
            if not (is_fork_same and is_original_same):
                _check_no_global_random(episodes, seed)
            if not is_original_same:
                found = difference(whole, original)
                raise CheckFailure(f"the original does not continue as it does without forks: {found}; {_OWN}")
            if not is_fork_same:
                raise CheckFailure(f"a fork does not continue like its original: {difference(whole, fork)}; {_OWN}")
    return f"{len(episodes.few_seeds)} seeds"


def step_and_rollout(episodes: Episodes) -> str:
    """Check that `step` and `rollout` give the same episode, although `rollout` runs sub-agents concurrently."""
    for seed in episodes.few_seeds:
        expected, stepped = episodes.reproducible(seed), episodes.reproducible(seed, "step")
        if stepped.to_json() != expected.to_json():
            raise CheckFailure(f"rollout() and step() give different episodes: {difference(expected, stepped)}", seed)
    return f"{len(episodes.few_seeds)} seeds"


def specification(episodes: Episodes) -> str:
    """Check that the specification can be written as JSON and pickled, and creates the same environment again."""
    spec = episodes.sample.spec
    if spec is None:
        raise NotPossible("it has no specification: it is not registered, or was not created by its id")
    for name in _OBJECTS:
        try:
            json.dumps(spec.kwargs.get(name))
        except (TypeError, ValueError):
            raise NotPossible(f"{name} is an object, which has no specification; use a name with options") from None
    form = "written as JSON"
    try:
        round_trips = {"JSON": EnvSpec.from_json(spec.to_json())}
        form = "pickled"
        round_trips["pickle"] = pickle.loads(pickle.dumps(spec))
    except Exception as error:  # pickle calls user code, which may raise anything
        raise CheckFailure(f"it cannot be {form}: {error}. Options must be JSON values or names") from error
    seed = episodes.seeds[0]
    expected = None if episodes.is_random else episodes.reproducible(seed)
    for name, again in round_trips.items():
        with episodes.attempt(seed):
            env: Env = again.make(disable_env_checker=True).unwrapped  # pyright: ignore[reportAssignmentType]
            with closing(env):
                trajectory = roll_out(env, episodes.policy, seed)
        if expected is not None and trajectory.to_json() != expected.to_json():
            raise CheckFailure(
                f"the specification from {name} gives another episode: {difference(expected, trajectory)}", seed
            )
    return "JSON and pickle"


# Episodes in another process, where strings have other hashes and the date is different.


RAISES = "raises "
_LIMIT_S = 600.0
_PROGRAM = "from envsdk.testing._env_determinism import main; main()"


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
        CheckFailure: If the process failed or timed out.
    """
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    hash_seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    # Of two time zones whose dates always differ, one has another date than here.
    is_today = time.gmtime(time.time() + 14 * 3600).tm_mday == time.localtime().tm_mday
    zone = "west+12" if is_today else "east-14"
    variables = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed, "TZ": zone}
    command = [sys.executable, "-c", _PROGRAM]
    episodes = [(policy, seed) for policy in policies for seed in seeds]
    job = pickle.dumps((pickled, episodes))
    try:
        done = subprocess.run(command, input=job, capture_output=True, env=variables, timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise CheckFailure(f"the episodes in another process did not end within {_LIMIT_S:g} s") from None
    if done.returncode or not done.stdout:
        stderr = done.stderr.decode(errors="replace").strip()
        raise CheckFailure(f"another process ended with status {done.returncode}: {stderr[-500:]}")
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
        played: list[str] = []
        for policy, seed in episodes:
            random.seed(seed)
            np.random.seed(seed % 2**32)
            try:
                with closing(make()) as env:
                    played.append(roll_out(env, policy, seed).to_json().decode())
            except Exception as error:
                played.append(f"{RAISES}{described(error)}")
        answer = {"played": played}
    out.write(json.dumps(answer))
    out.close()
