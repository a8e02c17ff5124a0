"""Checks of the life cycle: gymnasium's own checks, the end of each episode, and calls in the wrong order."""

import warnings

from gymnasium.utils.env_checker import check_env as check_gymnasium

from ..authoring._env import Env
from ..errors import EpisodeError
from ._env_episodes import Episodes, closing, step_with, trajectory_of
from ._reports import Failure

_IRRELEVANT = ("without a render mode", "not having a spec")
"""Warnings of gymnasium that apply to every envsdk environment."""


def gymnasium_checker(episodes: Episodes) -> None:
    """Check that gymnasium's own checker accepts the environment without warnings."""
    with (
        episodes.attempt(episodes.seeds[0]),
        warnings.catch_warnings(record=True) as caught,
        closing(episodes.subject.make()) as env,
    ):
        warnings.simplefilter("always")
        try:
            check_gymnasium(env)
        except AssertionError as error:
            raise Failure(str(error)) from error
    texts = [str(warning.message) for warning in caught if "WARN: " in str(warning.message)]
    texts = [text for text in texts if not any(words in text for words in _IRRELEVANT)]
    if texts:
        raise Failure(texts[0].partition("WARN: ")[2].removesuffix("\x1b[0m"))


def episodes_end(episodes: Episodes) -> str:
    """Check that episodes end under the null and the random policy."""
    played = [episodes.play(policy, seed) for policy in ("null", "random") for seed in episodes.few_seeds]
    return f"after at most {max(len(trajectory.steps) for trajectory in played)} replies"


def calls_out_of_order(episodes: Episodes) -> str:
    """Check that `step` raises before the first reset and after the end, and that `close` may be called twice."""
    seed = episodes.seeds[0]
    with episodes.attempt(seed):
        env = episodes.subject.make()
        _expect_step_error(env, "before the first reset")
        env.reset(seed=seed)
        env.reset(seed=seed)
        step_with(env, episodes.policy, seed)
        record = trajectory_of(env).to_json()
        _expect_step_error(env, "after the end")
        if trajectory_of(env).to_json() != record:
            raise Failure("the record of the episode changes with a step() after its end")
        env.close()
        env.close()
        episodes.subject.make().close()
    return "step, reset, close"


def _expect_step_error(env: Env, when: str) -> None:
    try:
        env.step([])
    except EpisodeError:
        return
    raise Failure(f"step() {when} does not raise EpisodeError: override start() and respond(), not step() or reset()")
