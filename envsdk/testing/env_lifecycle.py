"""What environments promise of their life: gymnasium's own checks, an end of each episode, and calls out of order."""

import warnings

from gymnasium.utils.env_checker import check_env as check_gymnasium

from ..authoring.env import Env
from ..errors import EpisodeError
from .env_plays import Plays, closed, ended, step_on
from .reports import Failure

_IRRELEVANT = ("without a render mode", "not having a spec")
"""What gymnasium warns of that holds for every environment here."""


def gymnasium_checker(plays: Plays) -> None:
    """Gymnasium's own checker accepts it, without warnings."""
    with (
        plays.episode(plays.seeds[0]),
        warnings.catch_warnings(record=True) as caught,
        closed(plays.subject.make()) as env,
    ):
        warnings.simplefilter("always")
        try:
            check_gymnasium(env)
        except AssertionError as error:
            raise Failure(str(error)) from error
    said = [str(warning.message) for warning in caught if "WARN: " in str(warning.message)]
    said = [text for text in said if not any(words in text for words in _IRRELEVANT)]
    if said:
        raise Failure(said[0].partition("WARN: ")[2].removesuffix("\x1b[0m"))


def episodes_end(plays: Plays) -> str:
    """Whoever never gives a good reply comes to an end, too."""
    played = [plays.play(policy, seed) for policy in ("null", "random") for seed in plays.few]
    return f"after {max(len(trajectory.steps) for trajectory in played)} replies at most"


def calls_out_of_order(plays: Plays) -> str:
    """Steps before the first reset and after the end are refused; close may be called at any time, and twice."""
    seed = plays.seeds[0]
    with plays.episode(seed):
        env = plays.subject.make()
        _refuse_step(env, "before the first reset")
        env.reset(seed=seed)
        env.reset(seed=seed)
        step_on(env, plays.policy, seed)
        record = ended(env).to_json()
        _refuse_step(env, "after the end")
        if ended(env).to_json() != record:
            raise Failure("the record of the episode is another one after a step behind its end")
        env.close()
        env.close()
        plays.subject.make().close()
    return "step, reset, close"


def _refuse_step(env: Env, when: str) -> None:
    try:
        env.step([])
    except EpisodeError:
        return
    raise Failure(f"step() {when} is not refused: step() and reset() are the SDK's; write start() and respond()")
