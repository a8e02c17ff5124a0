"""Advantages written to samples: one for each context, one for each step, and the penalty that is added to them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from ..diagnostics.given import sound_samples
from ..diagnostics.logprobs import paired
from ..errors import ConfigError, InvalidSample
from ..trajectories.samples import Sample
from .baselines import Baseline, over_group
from .values import Values, finite

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Key: TypeAlias = tuple[str, str | int]
"""What has a value: a trajectory's id with the name of a context, or with the index of a step."""


def per_token(sample: Sample, values: "float | Values") -> "NDArray[np.float32]":
    """Write an advantage at each trained token: `A[i] = values[step_ids[i]]` where mask is True, else 0.0.

    Args:
        sample: The sample.
        values: One for all of it, or one for each of its steps, shape (n_steps,).

    Returns:
        float32, shape (L,).

    Raises:
        InvalidSample: If there are not as many values as steps, or one is not finite.
    """
    if not isinstance(sample, Sample):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidSample(f"sample is a {type(sample).__name__}; expected a Sample")
    is_one = isinstance(values, Real) or getattr(values, "ndim", 1) == 0
    array = finite("advantages", [values] if is_one else values, np.float32)
    if is_one:
        array = np.broadcast_to(array, len(sample.step_rewards))
    if len(array) != len(sample.step_rewards):
        raise InvalidSample(f"there are {len(array)} advantages, but the sample has {len(sample.step_rewards)} steps")
    advantage = np.zeros(len(sample), dtype=np.float32)
    advantage[sample.mask] = array[sample.step_ids[sample.mask]]
    return advantage


def group_advantages(
    samples: Sequence[Sample],
    baseline: Baseline = "mean",
    *,
    rewards: Mapping[str, Mapping[str, float]] | None = None,
    by_role: bool = True,
) -> list[Sample]:
    """Give each sample the advantage of its context's reward over its group: the same for all its trained tokens.

    A group is the samples of one `group_id` and, unless asked otherwise, of one role: so a sub-agent never shares its
    parent's baseline. A context of a trajectory counts once in it, however many segments it has.

    Args:
        samples: Samples of whole groups.
        baseline: How a group's rewards become advantages. `leave_one_out` leaves out all contexts of the trajectory.
        rewards: For each trajectory's id the reward of each context, `{t.id: context_rewards(t) for t in
            trajectories}`. Without it, `Sample.reward` is taken.
        by_role: Whether another role is another group.

    Returns:
        New samples in the same order, with `advantage` float32 (L,): 0.0 where mask is False.

    Raises:
        ConfigError: If a sample has no `group_id`, a trajectory or context has no reward, the baseline is not known,
            or a group is too small for it.
        InvalidSample: If a sample is not sound or was not scored, samples of one context have several rewards, or
            trajectories share an id.
    """
    values: dict[_Key, float] = {}
    keys: list[list[_Key]] = []
    samples = sound_samples(samples)
    for sample in samples:
        name, context = sample.trajectory_id, sample.context
        if rewards is None and not sample.is_scored:
            raise InvalidSample(
                f"{name!r} ended without a reward in any turn, so it was not scored: leave it out, or give a turn that "
                "earns nothing reward=0.0"
            )
        reward = sample.reward if rewards is None else _reward_of(rewards, name, context)
        known = values.setdefault((name, context), reward)
        if known != reward:
            raise InvalidSample(f"the samples of {(name, context)} have the rewards {known} and {reward}; expected one")
        keys.append([(name, context)])
    advantages = _over_groups(samples, keys, values, baseline, by_role=by_role)
    return [
        replace(sample, advantage=per_token(sample, advantages[sample.trajectory_id, sample.context]))
        for sample in samples
    ]


def step_advantages(
    samples: Sequence[Sample],
    returns: Mapping[str, Values],
    baseline: Baseline = "mean",
    *,
    by_role: bool = True,
) -> list[Sample]:
    """Give each step the advantage of its return over the returns of all steps of its group.

    With `baseline="normalised"` this is GRPO with process supervision (arXiv:2402.03300, section 4.1.3), but that here
    the returns are normalised and not the rewards.

    Args:
        samples: Samples of whole groups; see `group_advantages`.
        returns: For each trajectory's id the returns of its steps: `{t.id: step_returns(t, gamma) for t in
            trajectories}`.
        baseline: How the returns become advantages. `leave_one_out` leaves out all steps of the trajectory.
        by_role: Whether another role is another group.

    Returns:
        New samples in the same order, with `advantage` float32 (L,): 0.0 where mask is False.

    Raises:
        ConfigError: If a sample has no `group_id`, a trajectory has no returns, or a group is too small.
        InvalidSample: If a sample is not sound or does not say which steps it has, a return is not finite, or
            trajectories share an id.
    """
    samples = sound_samples(samples)
    values: dict[_Key, float] = {}
    keys: list[list[_Key]] = []
    for index, sample in enumerate(samples):
        steps = _steps_of(index, sample)
        keys.append([(sample.trajectory_id, step) for step in steps])
        values.update(zip(keys[-1], _returns_of(returns, sample.trajectory_id, steps), strict=True))
    advantages = _over_groups(samples, keys, values, baseline, by_role=by_role)
    return [
        replace(sample, advantage=per_token(sample, [advantages[key] for key in own]))
        for sample, own in zip(samples, keys, strict=True)
    ]


def add_kl_penalty(samples: Sequence[Sample], trainer_logprobs: Sequence[Any], coef: float) -> list[Sample]:
    """Keep the policy near its sampler: `A[i] += coef * mask[i] * (mean(d) - d[i])`, `d = lp_sampler - lp_trainer`.

    The mean runs over the trained tokens of all samples, so the penalty moves credit between tokens and adds none: its
    sum is 0.

    Source: `incorporate_kl_penalty` of tinker-cookbook.

    Args:
        samples: Samples with log-probabilities and an advantage.
        trainer_logprobs: For each sample an array of shape (L,), natural logarithms: the value at i is that of token i.
        coef: How much a nat weighs, in units of advantage; at least 0.

    Returns:
        New samples, with `advantage` float32 (L,).

    Raises:
        ConfigError: If `coef` is negative or not finite.
        InvalidSample: If a sample has no advantage, or the log-probabilities do not fit (`diagnostics.kl`).
    """
    if not isinstance(coef, Real) or not 0 <= coef < np.inf:
        raise ConfigError(f"coef is {coef!r}; expected a finite number of at least 0")
    pairs = paired(samples, trainer_logprobs)
    differences = [pair.sampler - pair.trainer for pair in pairs]
    joined = np.concatenate([np.empty(0), *differences])
    centre = float(joined.mean()) if len(joined) else 0.0
    penalised: list[Sample] = []
    for index, (pair, difference) in enumerate(zip(pairs, differences, strict=True)):
        if pair.sample.advantage is None:
            raise InvalidSample(f"sample {index} has no advantage: give it one first, such as by group_advantages()")
        advantage = np.where(pair.sample.mask, pair.sample.advantage, 0.0)
        advantage[pair.positions] += coef * (centre - difference)
        finite(f"advantage of sample {index}", advantage, np.float32)
        penalised.append(replace(pair.sample, advantage=advantage.astype(np.float32)))
    return penalised


# Groups.


def _over_groups(
    samples: Sequence[Sample],
    keys: Sequence[Sequence[_Key]],
    values: Mapping[_Key, float],
    baseline: Baseline,
    *,
    by_role: bool,
) -> dict[_Key, float]:
    """The advantage of each value over those of its group; of each sample `keys` has those of its values."""
    groups: dict[str, dict[_Key, None]] = {}
    seen: set[tuple[str, str, int]] = set()
    for index, (sample, own) in enumerate(zip(samples, keys, strict=True)):
        segment = (sample.trajectory_id, sample.context, sample.segment_index)
        if segment in seen:
            raise InvalidSample(
                f"sample {index} is the segment {segment} a second time: trajectories of a group need ids of their "
                "own (reset option `episode_id`)"
            )
        seen.add(segment)
        groups.setdefault(_group(index, sample, by_role), {}).update(dict.fromkeys(own))
    advantages: dict[_Key, float] = {}
    for group, members in groups.items():
        found = over_group(baseline, group, [values[key] for key in members], [owner for owner, _ in members])
        advantages.update(zip(members, found.tolist(), strict=True))
    return advantages


def _group(index: int, sample: Sample, by_role: bool) -> str:
    if sample.group_id is None:
        raise ConfigError(
            f"sample {index}, of trajectory {sample.trajectory_id!r}, has no group_id, so there is nothing to compare "
            "it with: roll out several episodes of a task with the same group_id (reset option `group_id`)"
        )
    return f"group {sample.group_id!r}" + (f", role {sample.role!r}" if by_role else "")


def _reward_of(rewards: Any, trajectory: str, context: str) -> float:
    of_contexts: Any = _entry("rewards", rewards, trajectory)
    reward: Any = _entry(f"rewards[{trajectory!r}]", of_contexts, context)
    return finite(f"rewards of {(trajectory, context)}", [reward]).tolist()[0]


def _returns_of(returns: "Mapping[str, Values]", trajectory: str, steps: Sequence[int]) -> list[float]:
    found = finite(f"returns of {trajectory!r}", _entry("returns", returns, trajectory))
    missing = [step for step in steps if not 0 <= step < len(found)]
    if missing:
        raise ConfigError(f"returns has nothing for step {missing[0]} of trajectory {trajectory!r}")
    return found[list(steps)].tolist()


def _entry(name: str, mapping: Any, key: str) -> Any:
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{name} is {mapping!r:.80}; expected a mapping, with an entry for {key!r}")
    if key not in mapping:
        raise ConfigError(f"{name} has nothing for {key!r}; it has {list(cast('Mapping[str, Any]', mapping))!r:.200}")
    return cast("Mapping[str, Any]", mapping)[key]


def _steps_of(index: int, sample: Sample) -> list[int]:
    steps: Any = sample.metadata.get("steps")
    if not isinstance(steps, list) or len(cast("list[Any]", steps)) != len(sample.step_rewards):
        raise InvalidSample(f"sample {index} does not say which steps it has: metadata['steps'] is {steps!r:.80}")
    return cast("list[int]", steps)
