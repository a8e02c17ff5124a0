"""What environments promise of repetition: the same seed gives the same bytes, here and elsewhere.

Each check makes one thing different: the environment, the process, the global random state, what was played before.
"""

import copy
import json
import pickle
import random
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec

from ..authoring.env import Env
from ..trajectories.trajectory import Trajectory
from .env_differences import difference, transcript
from .env_plays import NONDETERMINISTIC, UNSTEADY, Plays, closed, ended, roll_out, step_on
from .env_process import RAISES, play_elsewhere
from .reports import Failure, NotPossible

_USE = "use self.np_random in its place"
_OWN = (
    "what an episode changes belongs to the object (self), and not to its class, its module, or a connection that "
    "both have"
)
_OBJECTS = ("renderer", "tokenizer", "history", "tasks")
"""Options of every environment that may be objects, though a specification then is no JSON."""
_GARBAGE = 20
"""So many replies of garbage are enough to spoil what is shared."""


def same_bytes(plays: Plays) -> str:
    """Two new environments do the same."""
    if plays.is_random:
        raise NotPossible(NONDETERMINISTIC)
    for policy in (plays.policy, "random"):
        for seed in plays.half:
            if not plays.is_steady(policy, seed):
                first, second = plays.play(policy, seed), plays.play(policy, seed, "another rollout")
                raise Failure(
                    f"two episodes of the {policy} policy differ: {difference(first, second)}. It depends on a clock, "
                    "on random numbers of its own, or on what was played before",
                    seed,
                )
    return f"{len(plays.half)} seeds, twice"


def same_bytes_elsewhere(plays: Plays) -> str:
    """A new environment in another process does the same."""
    if plays.is_random:
        raise NotPossible(NONDETERMINISTIC)
    pickled = plays.subject.pickled()
    policies = [plays.policy, "random"]
    here = {(policy, seed): plays.play(policy, seed) for policy in policies for seed in plays.half}
    there = play_elsewhere(pickled, policies, plays.half)
    for (policy, seed), found in there.items():
        if found.startswith(RAISES):
            raise Failure(f"the {policy} policy plays here, and in another process it {found}", seed)
        if found.encode() == here[policy, seed].to_json():
            continue
        if not plays.is_steady(policy, seed):
            raise NotPossible(UNSTEADY)
        raise Failure(
            f"an episode of the {policy} policy is another one in another process: "
            f"{difference(here[policy, seed], Trajectory.from_json(found))}. Texts have other hashes there, and it is "
            "another day: sort what comes out of a set, and do without hash() and the clock",
            seed,
        )
    return f"{len(plays.half)} seeds"


def no_global_random_state(plays: Plays) -> str:
    """Neither `random` nor `numpy.random` is used or changed."""
    for seed in plays.few:
        for policy in (plays.policy, "random"):
            expected = plays.play(policy, seed)
            found = _with_other_global_state(plays, policy, seed)
            if found.to_json() != expected.to_json() and plays.is_steady(policy, seed):
                raise Failure(
                    "with another state of `random` and `numpy.random` an episode is another one: "
                    f"{difference(expected, found)}; {_USE}",
                    seed,
                )
    return f"{len(plays.few)} seeds"


def _with_other_global_state(plays: Plays, policy: str, seed: int) -> Trajectory:
    """Play an episode with other global random states than ever, which it leaves as they are."""
    with plays.episode(seed):
        random.seed(f"not {seed}")
        np.random.seed((seed + 1) % 2**32)
        before = _global_states()
        with closed(plays.subject.make()) as env:
            trajectory = roll_out(env, policy, seed)
        changed = [name for name, state in _global_states().items() if before[name] != state]
    if changed:
        raise Failure(f"the episode changes the global state of `{'` and `'.join(changed)}`; {_USE}", seed)
    return trajectory


def _global_states() -> dict[str, Any]:
    name, keys, *rest = np.random.get_state()
    return {"random": random.getstate(), "numpy.random": (name, np.asarray(keys).tolist(), *rest)}


def _refuse_global_random(plays: Plays, seed: int) -> None:
    """Episodes that go on side by side may differ because of the global random state, which another check is about."""
    try:
        _with_other_global_state(plays, plays.policy, seed)
    except Failure:
        raise NotPossible('it uses the global random state: see "no global random state"') from None


def reset_starts_afresh(plays: Plays) -> str:
    """One environment that is reset again and again does what new ones do, and so it does after half an episode."""
    with closed(plays.subject.make()) as env:
        for seed in plays.few:
            expected = plays.steady(seed)
            with plays.episode(seed):
                env.reset(seed=seed + 1)
                step_on(env, "random", seed, 2)
                again = roll_out(env, plays.policy, seed)
            if again.to_json() != expected.to_json():
                raise Failure(
                    f"after another episode it differs: {difference(expected, again)}; start() sets all that an "
                    "episode changes",
                    seed,
                )
    return f"{len(plays.few)} seeds"


def copies(plays: Plays) -> str:
    """A copy that is made before the first reset does what its original does, and neither disturbs the other."""
    for seed in plays.few:
        expected = plays.steady(seed, "step")
        with plays.episode(seed), closed(plays.subject.make()) as env, closed(copy.deepcopy(env)) as other:
            env.reset(seed=seed)
            step_on(env, plays.policy, seed, 1)
            other.reset(seed=seed)
            step_on(other, plays.policy, seed)
            step_on(env, plays.policy, seed)
        for name, trajectory in {"the copy": ended(other), "the original": ended(env)}.items():
            if trajectory.to_json() != expected.to_json():
                _refuse_global_random(plays, seed)
                raise Failure(f"{name} does something else: {difference(expected, trajectory)}; {_OWN}", seed)
    return f"{len(plays.few)} seeds"


def forks(plays: Plays) -> str:
    """A running episode and its forks go on on their own."""
    for seed in plays.few:
        plays.steady(seed)
        with plays.episode(seed):
            _fork(plays, seed)
    return f"{len(plays.few)} seeds"


def _fork(plays: Plays, seed: int) -> None:
    """In the middle of an episode fork twice: one plays garbage, then the original goes on, then the other fork."""
    policy = plays.policy
    whole = plays.play(policy, seed, "step")
    with closed(plays.subject.make()) as env:
        env.reset(seed=seed)
        step_on(env, policy, seed, len(whole.steps) // 2)
        with closed(env.fork()) as spoiled, closed(env.fork()) as sound:
            step_on(spoiled, "random", seed, _GARBAGE)
            step_on(env, policy, seed)
            step_on(sound, policy, seed)
    fork = ended(sound)
    is_same = transcript(fork) == transcript(whole) and fork.reward == whole.reward
    if not is_same or ended(env).to_json() != whole.to_json():
        _refuse_global_random(plays, seed)
    if ended(env).to_json() != whole.to_json():
        raise Failure(f"the original does not go on as if it had no forks: {difference(whole, ended(env))}; {_OWN}")
    if not is_same:
        raise Failure(f"a fork does not go on as its original does: {difference(whole, fork)}; {_OWN}")


def step_and_rollout(plays: Plays) -> str:
    """`step` and `rollout` give the same episode, though a rollout runs sub-agents side by side."""
    for seed in plays.few:
        expected, stepped = plays.steady(seed), plays.steady(seed, "step")
        if stepped.to_json() != expected.to_json():
            raise Failure(f"a rollout and step() differ: {difference(expected, stepped)}", seed)
    return f"{len(plays.few)} seeds"


def specification(plays: Plays) -> str:
    """The specification survives JSON and pickle, and makes the same environment again."""
    spec = plays.sample.spec
    if spec is None:
        raise NotPossible("it has none: it is not registered, or was not made by its id")
    objects = [name for name in _OBJECTS if not _is_json(spec.kwargs.get(name))]
    if objects:
        raise NotPossible(f"{', '.join(objects)} of it is an object; a name with options has a specification")
    seed = plays.seeds[0]
    expected = None if plays.is_random else plays.steady(seed)
    for name, again in _written(spec).items():
        with plays.episode(seed):
            env: Env = again.make(disable_env_checker=True).unwrapped  # pyright: ignore[reportAssignmentType]
            with closed(env):
                trajectory = roll_out(env, plays.policy, seed)
        if expected is not None and trajectory.to_json() != expected.to_json():
            raise Failure(f"what {name} makes of it is another environment: {difference(expected, trajectory)}", seed)
    return "JSON and pickle"


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _written(spec: EnvSpec) -> dict[str, EnvSpec]:
    """The specification, written and read again in two ways."""
    try:
        again = {"JSON": EnvSpec.from_json(spec.to_json())}
    except (TypeError, ValueError) as error:
        raise Failure(f"it cannot be written as JSON: {error}. Options are values of JSON, or names") from error
    try:
        again["pickle"] = pickle.loads(pickle.dumps(spec))
    except Exception as error:  # pickle calls anybody's code
        raise Failure(f"it cannot be pickled: {error}. Options are values of JSON, or names") from error
    return again
