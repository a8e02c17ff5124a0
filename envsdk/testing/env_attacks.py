"""Whatever is replied, the environment answers: it raises nothing, ends in time, and pays what it may."""

import contextlib
import time
from collections.abc import Generator, Iterable

import numpy as np

from ..authoring.env import Env
from ..contexts.protocol import Action
from ..errors import RenderError
from .env_differences import told
from .env_plays import Plays, closed, refuse_failed, sampler, step_on
from .env_replies import NothingDue, Reply, Scene, cut, enormous, garbage, injected
from .env_rewards import refuse_outside
from .env_soundness import refuse_unsound
from .env_time import Overtime
from .reports import Failure

_BEFORE = 12
"""In a long episode an odd reply comes after so many others at most."""
_AFTERWARDS = 16
"""After an odd reply the null policy goes on for so many replies."""


def garbage_replies(plays: Plays) -> str:
    """See `env_replies.garbage`."""
    return _answer_all(plays, garbage())


def injected_text(plays: Plays) -> str:
    """See `env_replies.injected`."""
    return _answer_all(plays, injected())


def enormous_replies(plays: Plays) -> str:
    """See `env_replies.enormous`."""
    return _answer_all(plays, enormous(), times=1)


def cut_replies(plays: Plays) -> str:
    """See `env_replies.cut`."""
    return _answer_all(plays, cut())


def _answer_all(plays: Plays, replies: Iterable[Reply], times: int = 2) -> str:
    """Give each reply in an episode of its own, somewhere in it, so many times in a row.

    Its place depends on its number and its seed alone, so that one seed repeats a failure.
    """
    slowest_s, slowest, said = 0.0, "", 0
    for number, reply in enumerate(replies, start=1):
        seed = plays.seeds[number % len(plays.seeds)]
        started = time.monotonic()
        said += _answer(plays, reply, seed, number, times)
        taken_s = time.monotonic() - started
        slowest_s, slowest = max((slowest_s, slowest), (taken_s, reply.name))
    return f"{said} replies; the slowest episode took {slowest_s:.2f} s: {slowest}"


def _answer(plays: Plays, reply: Reply, seed: int, number: int, times: int) -> bool:
    """Give a reply in an episode; returns whether it can be said there."""
    what = f"{reply.name}: "
    place = _place(plays, seed, number)
    with plays.episode(seed, f"the episode with {reply.name}"), closed(plays.subject.make()) as env:
        env.reset(seed=seed)
        step_on(env, plays.policy, seed, place)
        said = 0
        while env.trajectory is None and said < times:
            action = _built(plays, reply, env, seed, number)
            if action is None:
                return said > 0
            with _answering(what, seed):
                env.step(action)
            said += 1
        with _answering(what, seed):
            step_on(env, "null", seed, _AFTERWARDS)
        trajectory = env.trajectory
    if trajectory is not None:
        refuse_failed(trajectory, seed, what)
        refuse_unsound(trajectory, seed, what)
        refuse_outside(plays, trajectory.reward, seed, what)
    return said > 0


@contextlib.contextmanager
def _answering(what: str, seed: int) -> Generator[None]:
    """Whatever the environment raises inside is a failure."""
    try:
        yield
    except (KeyboardInterrupt, Overtime):
        raise
    except BaseException as error:  # an environment is anybody's code
        raise Failure(f"{what}it raises {told(error)}. Any reply is legal: answer it", seed) from error


def _built(plays: Plays, reply: Reply, env: Env, seed: int, number: int) -> Action | None:
    """The reply as tokens; None if the family cannot express it, or no reply is due that it could be made of."""
    context = env.episode.agent.context
    sample = sampler(env, plays.policy, seed)

    def due() -> Action:
        try:
            return sample()
        except Exception as error:  # after odd replies the reference policy may know nothing to say
            raise NothingDue from error

    try:
        return reply.build(Scene(context.renderer, context.tools, due, np.random.default_rng([seed, number])))
    except (RenderError, NothingDue):
        return None


def _place(plays: Plays, seed: int, number: int) -> int:
    """How many replies come before: none, one, half of them, all but one; in a long episode a few."""
    last = len(plays.play(plays.policy, seed).steps) - 1
    return min((0, 1, (last + 1) // 2, last)[number % 4], last, _BEFORE)
