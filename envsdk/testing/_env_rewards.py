"""Checks of rewards: the declared range, and that the null and the reference policy get its minimum and maximum."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from ..errors import ConfigError, SandboxUnavailable
from ._env_episodes import Episodes, closing, roll_out
from ._reports import Failure, NotPossible

_TOLERANCE = 1e-6
"""The tolerance for rounding errors in summed rewards."""
_LUCK = 0.1
"""The fraction of the range by which the null policy's average reward may exceed the minimum."""
_TRIES = 2
"""The number of seeds for each value of an option."""
_DECLARE = "declare it in the class: reward_range: ClassVar[tuple[float, float]] = (minimum, maximum)"


def reward_range(episodes: Episodes) -> str:
    """Check that the reward range is declared and finite."""
    least, most = episodes.sample.reward_range
    if not (math.isfinite(least) and math.isfinite(most)):
        raise Failure(f"the reward range of an episode is not declared: {_DECLARE}")
    if least >= most:
        raise Failure(f"reward_range is ({least:g}, {most:g}); expected a maximum above the minimum")
    return f"{least:g} to {most:g}"


def reference_policy(episodes: Episodes) -> str:
    """Check that the reference policy gets the maximum reward with each seed, and that none of its tool calls fails."""
    if not episodes.has_reference:
        raise NotPossible(
            "there is no reference policy: write reference_reply(), which returns the next reply of a solution; then "
            "this check and others can run whole episodes"
        )
    for seed in episodes.seeds:
        trajectory = episodes.play("reference", seed)
        errors = sum(step.metrics.get("tool_errors", 0) for step in trajectory.steps)
        if errors:
            raise Failure(f"{errors:g} of its tool calls failed", seed)
        _expect(trajectory.reward, declared_range(episodes)[1], "maximum", seed)
    return f"{len(episodes.seeds)} episodes"


def null_policy(episodes: Episodes) -> str:
    """Check that the null policy gets about the minimum reward, on average over the seeds."""
    rewards: dict[int, float] = {}
    for seed in episodes.seeds:
        rewards[seed] = episodes.play("null", seed).reward
        check_in_range(episodes, rewards[seed], seed)
    average = sum(rewards.values()) / len(rewards)
    if not _is_near_minimum(average, declared_range(episodes)):
        most = max(rewards, key=lambda seed: rewards[seed])
        raise Failure(
            f"on average over {len(rewards)} seeds it got {average:g}, but the minimum of reward_range is "
            f"{declared_range(episodes)[0]:g}; it got {rewards[most]:g} with this seed",
            most,
        )
    return f"{len(rewards)} episodes, {average:g} on average"


def random_policy(episodes: Episodes) -> str:
    """Check that the rewards of random tokens are in the declared range."""
    for seed in episodes.seeds:
        check_in_range(episodes, episodes.play("random", seed).reward, seed)
    return f"{len(episodes.seeds)} episodes"


def every_option(episodes: Episodes) -> str:
    """Check the rewards of both policies with each value of each `Literal` option, such as a split or a difficulty.

    The reference policy must get the maximum with each seed, the null policy the minimum with at least one seed.
    """
    fields = episodes.sample.Config.model_fields.items()
    choices = {name: get_args(field.annotation) for name, field in fields if get_origin(field.annotation) is Literal}
    if not choices:
        raise NotPossible("its Config has no option with a Literal type, such as a split or a difficulty")
    least, most = declared_range(episodes)
    ends = {"null": least, episodes.policy: most if episodes.has_reference else least}
    for policy in ends:
        rewards = [episodes.play(policy, seed).reward for seed in episodes.few_seeds[:_TRIES]]
        if not _holds(policy, [_is(reward, ends[policy]) for reward in rewards]):
            raise NotPossible(f'the check already fails with the default options: see "{policy} policy"')
    results = [_option(episodes, name, value, ends) for name, values in choices.items() for value in values]
    return "; ".join(results)


def _option(episodes: Episodes, name: str, value: Any, ends: Mapping[str, float]) -> str:
    """Check one value of an option. Return the option, with the error if this machine cannot create the environment."""
    for policy in ends:
        rewards: dict[int, float] = {}
        for seed in episodes.few_seeds[:_TRIES]:
            with episodes.attempt(seed, f"the {policy} policy with {name}={value!r}"):
                try:
                    env = episodes.subject.make_with(**{name: value})
                except (ConfigError, ImportError) as error:  # such as a package that is not installed
                    return f"{name}={value!r} is not available here ({error})"
                with closing(env):
                    try:
                        rewards[seed] = roll_out(env, policy, seed).reward
                    except SandboxUnavailable as error:
                        return f"{name}={value!r} is not available here ({error})"
        wrong = {seed: reward for seed, reward in rewards.items() if not _is(reward, ends[policy])}
        if not _holds(policy, [seed not in wrong for seed in rewards]):
            seed, reward = next(iter(wrong.items()))
            raise Failure(f"with {name}={value!r} the {policy} policy gets {reward:g}; expected {ends[policy]:g}", seed)
    return f"{name}={value!r}"


def _holds(policy: str, right: Sequence[bool]) -> bool:
    """Return whether enough rewards are right: all of the reference policy, one of the null policy."""
    return any(right) if policy == "null" else all(right)


def declared_range(episodes: Episodes) -> tuple[float, float]:
    """Return the declared reward range.

    Raises:
        NotPossible: If it is not declared.
    """
    try:
        reward_range(episodes)
    except Failure:
        raise NotPossible('the reward range is not declared: see "reward range"') from None
    return episodes.sample.reward_range


def check_in_range(episodes: Episodes, reward: float, seed: int, what: str = "") -> None:
    """Check that a reward is in the declared range.

    Raises:
        Failure: If it is not.
    """
    least, most = episodes.sample.reward_range
    if not least - _TOLERANCE <= reward <= most + _TOLERANCE:
        raise Failure(f"{what}the reward is {reward:g}; expected the declared range, {least:g} to {most:g}", seed)


def _expect(reward: float, end: float, name: str, seed: int) -> None:
    if not _is(reward, end):
        raise Failure(f"the reward is {reward:g}; expected the {name} of reward_range, {end:g}", seed)


def _is_near_minimum(average: float, ends: tuple[float, float]) -> bool:
    least, most = ends
    return average <= least + _LUCK * (most - least) + _TOLERANCE


def _is(reward: float, end: float) -> bool:
    return abs(reward - end) <= _TOLERANCE
