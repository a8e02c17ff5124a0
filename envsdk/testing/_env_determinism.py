"""Checks of determinism: the same seed gives the same bytes.

Each check changes one thing: the environment object, the process, the global random state, or the earlier episodes.
"""

import copy
import json
import pickle
import random
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec

from ..authoring._driver import driver_of
from ..authoring._env import Env
from ..trajectories._trajectory import Trajectory
from ._env_differences import difference, transcript
from ._env_episodes import NONDETERMINISTIC, NOT_REPRODUCIBLE, Episodes, closing, roll_out, step_with, trajectory_of
from ._env_process import RAISES, run_elsewhere
from ._reports import Failure, NotPossible

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
                raise Failure(
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
            raise Failure(f"the {policy} policy works in this process, but in another process it {found}", seed)
        if found.encode() == here[policy, seed].to_json():
            continue
        if not episodes.is_reproducible(policy, seed):
            raise NotPossible(NOT_REPRODUCIBLE)
        raise Failure(
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
                raise Failure(
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
        before = _global_states()
        with closing(episodes.subject.make()) as env:
            trajectory = roll_out(env, policy, seed)
        changed = [name for name, state in _global_states().items() if before[name] != state]
    if changed:
        raise Failure(f"the episode changes the global state of `{'` and `'.join(changed)}`; {_USE}", seed)
    return trajectory


def _global_states() -> dict[str, Any]:
    name, keys, *rest = np.random.get_state()
    return {"random": random.getstate(), "numpy.random": (name, np.asarray(keys).tolist(), *rest)}


def _check_no_global_random(episodes: Episodes, seed: int) -> None:
    """Raise NotPossible if the environment uses the global random state, which a different check reports."""
    try:
        _with_other_global_state(episodes, episodes.policy, seed)
    except Failure:
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
                raise Failure(
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
                raise Failure(f"{name} gives another episode: {difference(expected, trajectory)}; {_OWN}", seed)
    return f"{len(episodes.few_seeds)} seeds"


def forks(episodes: Episodes) -> str:
    """Check that a running episode and its forks do not affect each other."""
    driver = driver_of(episodes.sample)
    if driver.why_no_fork is not None:
        raise NotPossible(f"a running episode cannot be copied: {driver.why_no_fork}")
    for seed in episodes.few_seeds:
        episodes.reproducible(seed)
        with episodes.attempt(seed):
            _fork(episodes, seed)
    return f"{len(episodes.few_seeds)} seeds"


def _fork(episodes: Episodes, seed: int) -> None:
    """Fork twice in the middle of an episode. Run one fork with garbage, then the original, then the other fork."""
    policy = episodes.policy
    whole = episodes.play(policy, seed, "step")
    with closing(episodes.subject.make()) as env:
        env.reset(seed=seed)
        step_with(env, policy, seed, len(whole.steps) // 2)
        with closing(env.fork()) as spoiled, closing(env.fork()) as sound:
            step_with(spoiled, "random", seed, _GARBAGE)
            step_with(env, policy, seed)
            step_with(sound, policy, seed)
    fork = trajectory_of(sound)
    is_same = transcript(fork) == transcript(whole) and fork.reward == whole.reward
    if not is_same or trajectory_of(env).to_json() != whole.to_json():
        _check_no_global_random(episodes, seed)
    if trajectory_of(env).to_json() != whole.to_json():
        found = difference(whole, trajectory_of(env))
        raise Failure(f"the original does not continue as it does without forks: {found}; {_OWN}")
    if not is_same:
        raise Failure(f"a fork does not continue like its original: {difference(whole, fork)}; {_OWN}")


def step_and_rollout(episodes: Episodes) -> str:
    """Check that `step` and `rollout` give the same episode, although `rollout` runs sub-agents concurrently."""
    for seed in episodes.few_seeds:
        expected, stepped = episodes.reproducible(seed), episodes.reproducible(seed, "step")
        if stepped.to_json() != expected.to_json():
            raise Failure(f"rollout() and step() give different episodes: {difference(expected, stepped)}", seed)
    return f"{len(episodes.few_seeds)} seeds"


def specification(episodes: Episodes) -> str:
    """Check that the specification can be written as JSON and pickled, and creates the same environment again."""
    spec = episodes.sample.spec
    if spec is None:
        raise NotPossible("it has no specification: it is not registered, or was not created by its id")
    objects = [name for name in _OBJECTS if not _is_json(spec.kwargs.get(name))]
    if objects:
        raise NotPossible(f"{', '.join(objects)} is an object, which has no specification; use a name with options")
    seed = episodes.seeds[0]
    expected = None if episodes.is_random else episodes.reproducible(seed)
    for name, again in _round_trips(spec).items():
        with episodes.attempt(seed):
            env: Env = again.make(disable_env_checker=True).unwrapped  # pyright: ignore[reportAssignmentType]
            with closing(env):
                trajectory = roll_out(env, episodes.policy, seed)
        if expected is not None and trajectory.to_json() != expected.to_json():
            raise Failure(
                f"the specification from {name} gives another episode: {difference(expected, trajectory)}", seed
            )
    return "JSON and pickle"


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _round_trips(spec: EnvSpec) -> dict[str, EnvSpec]:
    """Return the specification after a round trip through JSON, and through pickle."""
    try:
        again = {"JSON": EnvSpec.from_json(spec.to_json())}
    except (TypeError, ValueError) as error:
        raise Failure(f"it cannot be written as JSON: {error}. Options must be JSON values or names") from error
    try:
        again["pickle"] = pickle.loads(pickle.dumps(spec))
    except Exception as error:  # pickle calls user code, which may raise anything
        raise Failure(f"it cannot be pickled: {error}. Options must be JSON values or names") from error
    return again
