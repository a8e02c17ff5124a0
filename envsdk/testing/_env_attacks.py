"""Checks that an environment handles unusual replies: it does not raise, ends in time, and its rewards are in range."""

import contextlib
import time
from collections.abc import Generator, Iterable

import numpy as np

from ..authoring._env import Env
from ..contexts._protocol import Action
from ..errors import RenderError
from ._env_differences import described
from ._env_episodes import Episodes, check_not_failed, closing, sampler, step_with
from ._env_replies import NoPolicyReply, Reply, Scene, cut, enormous, garbage, injected
from ._env_rewards import check_in_range
from ._env_soundness import check_sound
from ._env_time import TimeLimitExceeded
from ._reports import Failure

_BEFORE = 12
"""The maximum number of ordinary replies before the unusual one, for long episodes."""
_AFTERWARDS = 16
"""The maximum number of replies of the null policy after the unusual one."""


def garbage_replies(episodes: Episodes) -> str:
    """Check garbage replies; see `env_replies.garbage`."""
    return _answer_all(episodes, garbage())


def injected_text(episodes: Episodes) -> str:
    """Check injected text; see `env_replies.injected`."""
    return _answer_all(episodes, injected())


def enormous_replies(episodes: Episodes) -> str:
    """Check enormous replies; see `env_replies.enormous`."""
    return _answer_all(episodes, enormous(), times=1)


def cut_replies(episodes: Episodes) -> str:
    """Check replies that were cut; see `env_replies.cut`."""
    return _answer_all(episodes, cut())


def _answer_all(episodes: Episodes, replies: Iterable[Reply], times: int = 2) -> str:
    """Give each reply in a separate episode, up to `times` times in a row.

    Its position in the episode depends only on its number and its seed, so one seed repeats a failure.
    """
    slowest_s, slowest, count = 0.0, "", 0
    for number, reply in enumerate(replies, start=1):
        seed = episodes.seeds[number % len(episodes.seeds)]
        started = time.monotonic()
        count += _answer(episodes, reply, seed, number, times)
        taken_s = time.monotonic() - started
        slowest_s, slowest = max((slowest_s, slowest), (taken_s, reply.name))
    return f"{count} replies; the slowest episode took {slowest_s:.2f} s: {slowest}"


def _answer(episodes: Episodes, reply: Reply, seed: int, number: int, times: int) -> bool:
    """Give a reply in an episode. Return whether it can be expressed there."""
    what = f"{reply.name}: "
    place = _place(episodes, seed, number)
    with episodes.attempt(seed, f"the episode with {reply.name}"), closing(episodes.subject.make()) as env:
        env.reset(seed=seed)
        step_with(env, episodes.policy, seed, place)
        given = 0
        while env.trajectory is None and given < times:
            action = _built(episodes, reply, env, seed, number)
            if action is None:
                return given > 0
            with _answering(what, seed):
                env.step(action)
            given += 1
        with _answering(what, seed):
            step_with(env, "null", seed, _AFTERWARDS)
        trajectory = env.trajectory
    if trajectory is not None:
        check_not_failed(trajectory, seed, what)
        check_sound(trajectory, seed, what)
        check_in_range(episodes, trajectory.reward, seed, what)
    return given > 0


@contextlib.contextmanager
def _answering(what: str, seed: int) -> Generator[None]:
    """Convert any exception of the environment to a failure."""
    try:
        yield
    except (KeyboardInterrupt, TimeLimitExceeded):
        raise
    except BaseException as error:  # an environment may raise anything
        raise Failure(f"{what}it raises {described(error)}. A model may give any reply", seed) from error


def _built(episodes: Episodes, reply: Reply, env: Env, seed: int, number: int) -> Action | None:
    """Return the reply as tokens; None if the family cannot express it, or it needs a reply that the policy lacks."""
    context = env.episode.agent.context
    sample = sampler(env, episodes.policy, seed)

    def policy_reply() -> Action:
        try:
            return sample()
        except Exception as error:  # after unusual replies, the reference policy may have no reply
            raise NoPolicyReply from error

    try:
        return reply.build(Scene(context.renderer, context.tools, policy_reply, np.random.default_rng([seed, number])))
    except (RenderError, NoPolicyReply):
        return None


def _place(episodes: Episodes, seed: int, number: int) -> int:
    """Return the number of replies before this one: none, one, half of them, or all but one, up to `_BEFORE`."""
    last = len(episodes.play(episodes.policy, seed).steps) - 1
    return min((0, 1, (last + 1) // 2, last)[number % 4], last, _BEFORE)
