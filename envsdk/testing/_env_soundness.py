"""Checks of observations and records: breaks are declared, prompts can be replayed, and samples are valid."""

from typing import TYPE_CHECKING

import numpy as np

from ..authoring._env import Env
from ..contexts._history import get_history
from ..errors import EnvsdkError
from ..trajectories._trajectory import Trajectory
from ._env_episodes import MAX_REPLIES, Episodes, NoEnd, closing, sampler, trajectory_of
from ._env_rewards import declared_range
from ._reports import Failure, NotPossible

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HISTORIES = {"strip": "strip", "compact": {"name": "compact", "every": 2}}


def declared_observations(episodes: Episodes) -> str:
    """Check that replaying the deltas gives the prompts, live and from the record, and that each break is declared."""
    for policy in (episodes.policy, "null", "random"):
        for seed in episodes.few_seeds:
            _run_and_check(episodes, policy, seed)
    return f"{len(episodes.few_seeds)} seeds"


def history_policies(episodes: Episodes) -> str:
    """Check the same under history policies that rewrite the past, where the reference reward must not change."""
    for name, history in _HISTORIES.items():
        for policy in (episodes.policy, "random"):
            for seed in episodes.few_seeds[:2]:
                trajectory = _run_and_check(episodes, policy, seed, history)
                if policy == "reference" and not episodes.is_random:
                    _expect_the_most(episodes, trajectory.reward, f"with history={name!r}", seed)
    return ", ".join(_HISTORIES)


def _expect_the_most(episodes: Episodes, reward: float, where: str, seed: int) -> None:
    try:
        most = declared_range(episodes)[1]
    except NotPossible:
        return
    if episodes.play("reference", seed).reward == most and reward != most:
        raise Failure(f"{where} the reference policy gets {reward:g}; without, it gets {most:g}", seed)


def _run_and_check(episodes: Episodes, policy: str, seed: int, history: object = None) -> Trajectory:
    """Run an episode with `step`, and check each observation and the trajectory."""
    episodes.play(policy, seed)  # an episode that fails is reported by another check
    with episodes.attempt(seed, f"the {policy} policy"), closing(episodes.subject.make()) as env:
        if history is not None:
            env._envsdk.history = get_history(history)  # pyright: ignore[reportArgumentType, reportPrivateUsage]
        prompts = _replayed(env, policy, seed)
        trajectory = trajectory_of(env)
    check_sound(trajectory, seed)
    for index, (seen, replayed) in enumerate(zip(prompts, trajectory.prompts(), strict=True)):
        if not np.array_equal(seen, replayed.prompt):
            raise Failure(f"the record of step {index + 1} gives a different prompt than the policy saw", seed)
    return trajectory


def _replayed(env: Env, policy: str, seed: int) -> "list[NDArray[np.int32]]":
    """Run an episode in a loop that maintains the contexts itself. Return the prompts."""
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
            raise Failure(f"an observation of {observation.context!r} has extends=True, but drops tokens")
        if not observation.extends and old is not None and "break" not in info:
            raise Failure(f"an observation of {observation.context!r} has extends=False, but declares no break")
        prompt = np.concatenate([before[: observation.keep], observation.tokens])
        if not np.array_equal(prompt, env.prompt()):
            raise Failure(f"an observation of {observation.context!r} does not give the prompt of the step")
        prompts.append(prompt)
        action = sample()
        contexts[observation.context] = np.concatenate([prompt, np.asarray(action.tokens, dtype=np.int32)])
        observation, *_, info = env.step(action)
    return prompts


def check_sound(trajectory: Trajectory, seed: int, what: str = "") -> None:
    """Check the samples and the JSON form of a trajectory.

    Raises:
        Failure: If one of them is not valid.
    """
    try:
        samples = [sample.validate() for sample in trajectory.samples(include_failed=True)]
        again = Trajectory.from_json(trajectory.to_json())
    except EnvsdkError as error:
        raise Failure(f"{what}{type(error).__name__}: {error}", seed) from error
    trained = sum(int(np.count_nonzero(sample.mask)) for sample in samples)
    if trained != trajectory.sampled_tokens:
        raise Failure(f"{what}{trained} tokens are trained, but {trajectory.sampled_tokens} were sampled", seed)
    if again.to_json() != trajectory.to_json():
        raise Failure(f"{what}the record changes when it is read and written again", seed)
