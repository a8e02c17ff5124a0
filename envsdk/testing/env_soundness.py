"""What holds for every episode: each observation is declared, prompts can be replayed, samples are sound."""

from typing import TYPE_CHECKING

import numpy as np

from ..authoring.env import Env
from ..errors import EnvsdkError
from ..history import get_history
from ..trajectories.trajectory import Trajectory
from .env_plays import MAX_REPLIES, NoEnd, Plays, closed, ended, sampler
from .env_rewards import declared
from .reports import Failure, NotPossible

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HISTORIES = {"strip": "strip", "compact": {"name": "compact", "every": 2}}


def declared_observations(plays: Plays) -> str:
    """The deltas give the prompts, in the episode as in its record, and whatever is dropped is declared."""
    for policy in (plays.policy, "null", "random"):
        for seed in plays.few:
            _play_declared(plays, policy, seed)
    return f"{len(plays.few)} seeds"


def history_policies(plays: Plays) -> str:
    """The same holds where the past is rewritten, and the reference policy earns what it earns without."""
    for name, history in _HISTORIES.items():
        for policy in (plays.policy, "random"):
            for seed in plays.few[:2]:
                trajectory = _play_declared(plays, policy, seed, history)
                if policy == "reference" and not plays.is_random:
                    _expect_the_most(plays, trajectory.reward, f"with history={name!r}", seed)
    return ", ".join(_HISTORIES)


def _expect_the_most(plays: Plays, reward: float, where: str, seed: int) -> None:
    try:
        most = declared(plays)[1]
    except NotPossible:
        return
    if plays.play("reference", seed).reward == most and reward != most:
        raise Failure(f"{where} the reference policy earns {reward:g}, and {most:g} without", seed)


def _play_declared(plays: Plays, policy: str, seed: int, history: object = None) -> Trajectory:
    """Play an episode with `step` and check it on the way and at the end."""
    plays.play(policy, seed)  # what fails without looking is another check's
    with plays.episode(seed, f"the {policy} policy"), closed(plays.subject.make()) as env:
        if history is not None:
            env._envsdk.history = get_history(history)  # pyright: ignore[reportArgumentType, reportPrivateUsage]
        prompts = _replayed(env, policy, seed)
        trajectory = ended(env)
    refuse_unsound(trajectory, seed)
    for index, (seen, replayed) in enumerate(zip(prompts, trajectory.prompts(), strict=True)):
        if not np.array_equal(seen, replayed.prompt):
            raise Failure(f"the record of step {index} gives another prompt than the policy saw", seed)
    return trajectory


def _replayed(env: Env, policy: str, seed: int) -> "list[NDArray[np.int32]]":
    """Play to the end as a loop that keeps contexts of its own; returns the prompts."""
    observation, info = env.reset(seed=seed)
    sample = sampler(env, policy, seed)
    contexts: dict[str, NDArray[np.int32]] = {}
    prompts: list[NDArray[np.int32]] = []
    while env.trajectory is None:
        if len(prompts) == MAX_REPLIES:
            raise NoEnd(MAX_REPLIES)
        before = contexts.get(observation.base, np.empty(0, dtype=np.int32))
        old = contexts.get(observation.context)
        only_grew = old is not None and observation.base == observation.context and observation.keep == len(old)
        if observation.extends and not only_grew:
            raise Failure(f"an observation of {observation.context!r} says that it extends, and drops something")
        if not observation.extends and old is not None and "break" not in info:
            raise Failure(f"an observation of {observation.context!r} does not extend, and declares no break")
        prompt = np.concatenate([before[: observation.keep], observation.tokens])
        if not np.array_equal(prompt, env.prompt()):
            raise Failure(f"an observation of {observation.context!r} does not lead to the prompt")
        prompts.append(prompt)
        action = sample()
        contexts[observation.context] = np.concatenate([prompt, np.asarray(action.tokens, dtype=np.int32)])
        observation, *_, info = env.step(action)
    return prompts


def refuse_unsound(trajectory: Trajectory, seed: int, what: str = "") -> None:
    """Check what can be seen from a trajectory alone.

    Raises:
        Failure: It says what does not hold.
    """
    try:
        samples = [sample.validate() for sample in trajectory.samples(include_failed=True)]
        again = Trajectory.from_json(trajectory.to_json())
    except EnvsdkError as error:
        raise Failure(f"{what}{type(error).__name__}: {error}", seed) from error
    trained = sum(int(np.count_nonzero(sample.mask)) for sample in samples)
    if trained != trajectory.sampled_tokens:
        raise Failure(f"{what}{trained} tokens are trained, and {trajectory.sampled_tokens} were sampled", seed)
    if again.to_json() != trajectory.to_json():
        raise Failure(f"{what}the record, read and written again, is another one", seed)
