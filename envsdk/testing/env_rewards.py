"""What environments promise of their rewards: a range, whose ends the null policy and the reference policy earn."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from ..errors import ConfigError
from .env_plays import Plays, closed, roll_out
from .reports import Failure, NotPossible

_TOLERANCE = 1e-6
"""Rewards that add up differ in the last digits."""
_LUCK = 0.1
"""Which part of the range the null policy may earn on average, above the least."""
_TRIES = 2
"""With how many seeds each value of an option is tried."""
_DECLARE = "declare it in the class: reward_range: ClassVar[tuple[float, float]] = (least, most)"


def reward_range(plays: Plays) -> str:
    """The range is declared, and finite."""
    least, most = plays.sample.reward_range
    if not (math.isfinite(least) and math.isfinite(most)):
        raise Failure(f"what an episode earns is not declared: {_DECLARE}")
    if least >= most:
        raise Failure(f"reward_range is ({least:g}, {most:g}): the most is not more than the least")
    return f"{least:g} to {most:g}"


def reference_policy(plays: Plays) -> str:
    """The reference policy earns the most, on every seed, and none of its calls fails."""
    if not plays.has_reference:
        raise NotPossible(
            "there is none: write reference_reply(), which says what a player who solves the task would say now; "
            "then this and other checks play to the end"
        )
    for seed in plays.seeds:
        trajectory = plays.play("reference", seed)
        errors = sum(step.metrics.get("tool_errors", 0) for step in trajectory.steps)
        if errors:
            raise Failure(f"{errors:g} of its calls of tools failed", seed)
        _expect(trajectory.reward, declared(plays)[1], "most", seed)
    return f"{len(plays.seeds)} episodes"


def null_policy(plays: Plays) -> str:
    """The null policy earns the least, on average over the seeds: now and then it may be lucky."""
    rewards: dict[int, float] = {}
    for seed in plays.seeds:
        rewards[seed] = plays.play("null", seed).reward
        refuse_outside(plays, rewards[seed], seed)
    average = sum(rewards.values()) / len(rewards)
    if not _is_about_the_least(average, declared(plays)):
        most = max(rewards, key=lambda seed: rewards[seed])
        raise Failure(
            f"on average over {len(rewards)} seeds it earned {average:g}, and the least in reward_range is "
            f"{declared(plays)[0]:g}; {rewards[most]:g} on this one",
            most,
        )
    return f"{len(rewards)} episodes, {average:g} on average"


def random_policy(plays: Plays) -> str:
    """Random tokens earn no less and no more than anything else."""
    for seed in plays.seeds:
        refuse_outside(plays, plays.play("random", seed).reward, seed)
    return f"{len(plays.seeds)} episodes"


def every_option(plays: Plays) -> str:
    """With each value of each option that has a few, such as a split or a difficulty, both still earn that.

    The null policy does so on one of the seeds at least.
    """
    fields = plays.sample.Config.model_fields.items()
    choices = {name: get_args(field.annotation) for name, field in fields if get_origin(field.annotation) is Literal}
    if not choices:
        raise NotPossible("no option of its Config is a Literal, as a split or a difficulty is")
    ends = {"null": declared(plays)[0], plays.policy: declared(plays)[1 if plays.has_reference else 0]}
    for policy in ends:
        rewards = [plays.play(policy, seed).reward for seed in plays.few[:_TRIES]]
        if not _holds(policy, [_is(reward, ends[policy]) for reward in rewards]):
            raise NotPossible(f'without options it is not as it should be: see "{policy} policy"')
    said = [_option(plays, name, value, ends) for name, values in choices.items() for value in values]
    return "; ".join(said)


def _option(plays: Plays, name: str, value: Any, ends: Mapping[str, float]) -> str:
    """Play with a value of an option; says which it is, and if it cannot be had here, why."""
    for policy in ends:
        rewards: dict[int, float] = {}
        for seed in plays.few[:_TRIES]:
            with plays.episode(seed, f"the {policy} policy with {name}={value!r}"):
                try:
                    env = plays.subject.make_with(**{name: value})
                except (ConfigError, ImportError) as error:  # such as a package that is not installed
                    return f"{name}={value!r} is refused here ({error})"
                with closed(env):
                    rewards[seed] = roll_out(env, policy, seed).reward
        wrong = {seed: reward for seed, reward in rewards.items() if not _is(reward, ends[policy])}
        if not _holds(policy, [seed not in wrong for seed in rewards]):
            seed, reward = next(iter(wrong.items()))
            raise Failure(f"with {name}={value!r} the {policy} policy earns {reward:g}, not {ends[policy]:g}", seed)
    return f"{name}={value!r}"


def _holds(policy: str, right: Sequence[bool]) -> bool:
    """Whether a policy earns what it should: the reference policy each time, the null policy now and then."""
    return any(right) if policy == "null" else all(right)


def declared(plays: Plays) -> tuple[float, float]:
    """The range.

    Raises:
        NotPossible: If there is none.
    """
    try:
        reward_range(plays)
    except Failure:
        raise NotPossible('what is earned is not declared: see "reward range"') from None
    return plays.sample.reward_range


def refuse_outside(plays: Plays, reward: float, seed: int, what: str = "") -> None:
    """Refuse a reward that is not in the declared range; where none is declared, another check says so."""
    least, most = plays.sample.reward_range
    if not least - _TOLERANCE <= reward <= most + _TOLERANCE:
        raise Failure(f"{what}it earned {reward:g}, which is not in the declared range, {least:g} to {most:g}", seed)


def _expect(reward: float, end: float, name: str, seed: int) -> None:
    if not _is(reward, end):
        raise Failure(f"it earned {reward:g}, and the {name} in reward_range is {end:g}", seed)


def _is_about_the_least(average: float, ends: tuple[float, float]) -> bool:
    least, most = ends
    return average <= least + _LUCK * (most - least) + _TOLERANCE


def _is(reward: float, end: float) -> bool:
    return abs(reward - end) <= _TOLERANCE
