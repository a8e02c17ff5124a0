"""Advantages in samples: one for each context or for each step, and a KL penalty that is added to them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from ..diagnostics.inputs import valid_samples
from ..diagnostics.logprobs import pair_logprobs
from ..errors import ConfigError, InvalidSample
from ..trajectories.samples import Sample
from .baselines import Baseline, apply_baseline
from .values import Values, finite_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Key: TypeAlias = tuple[str, str | int]
"""What a value belongs to: a trajectory id with the name of a context, or with the index of a step."""


def per_token(sample: Sample, values: "float | Values") -> "NDArray[np.float32]":
    """Spread advantages over the trained tokens: `A[i] = values[step_ids[i]]` where mask is True, else 0.0.

    Args:
        sample: A sample of L tokens.
        values: One advantage for the whole sample, or one for each of its steps, shape (n_steps,).

    Returns:
        float32, shape (L,).

    Raises:
        InvalidSample: If the number of values is not the number of steps, or a value is not a finite number.
    """
    if not isinstance(sample, Sample):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidSample(f"sample is a {type(sample).__name__}; expected a Sample")
    is_scalar = isinstance(values, Real) or getattr(values, "ndim", 1) == 0
    array = finite_array("advantages", [values] if is_scalar else values, np.float32)
    if is_scalar:
        array = np.broadcast_to(array, len(sample.step_rewards))
    if len(array) != len(sample.step_rewards):
        raise InvalidSample(
            f"there are {len(array)} advantages, but the sample has {len(sample.step_rewards)} steps; expected one "
            "advantage, or one for each step"
        )
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
    """Give all trained tokens of a sample one advantage: the reward of its context compared with its group.

    A group holds the samples of one `group_id` and, unless `by_role` is False, of one role. So a sub-agent never shares
    the baseline of its parent. A context of a trajectory counts once in its group, however many segments it has.

    Args:
        samples: The samples of whole groups.
        baseline: How the rewards of a group become advantages. `leave_one_out` leaves out all contexts of the same
            trajectory.
        rewards: For each trajectory id, the reward of each context: `{t.id: context_rewards(t) for t in
            trajectories}`. By default, `Sample.reward` is used.
        by_role: Whether samples of different roles are in different groups.

    Returns:
        New samples in the same order. Their `advantage` is float32 of shape (L,): 0.0 where mask is False.

    Raises:
        ConfigError: If a sample has no `group_id`, a trajectory or context has no reward, the baseline does not exist,
            or a group is too small for it.
        InvalidSample: If a sample is invalid or was not scored, samples of one context have different rewards, or two
            trajectories have the same id.
    """
    values: dict[_Key, float] = {}
    keys: list[list[_Key]] = []
    samples = valid_samples(samples)
    for sample in samples:
        name, context = sample.trajectory_id, sample.context
        if rewards is None and not sample.is_scored:
            raise InvalidSample(
                f"trajectory {name!r} was not scored, because no turn had a reward: leave it out, or return "
                "Turn(..., reward=0.0) where a turn earns nothing"
            )
        reward = sample.reward if rewards is None else _reward_of(rewards, name, context)
        known = values.setdefault((name, context), reward)
        if known != reward:
            raise InvalidSample(
                f"the samples of context {context!r} of trajectory {name!r} have the rewards {known} and {reward}; "
                "expected one reward for all of them"
            )
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
    """Give each step its own advantage: its return compared with the returns of all steps of its group.

    With `baseline="normalized"`, this is GRPO with process supervision (arXiv:2402.03300, section 4.1.3), except that
    the returns are normalized and not the rewards.

    Args:
        samples: The samples of whole groups; see `group_advantages`.
        returns: For each trajectory id, the returns of its steps, shape (n_steps,): `{t.id: step_returns(t, gamma) for
            t in trajectories}`.
        baseline: How the returns of a group become advantages. `leave_one_out` leaves out all steps of the same
            trajectory.
        by_role: Whether samples of different roles are in different groups.

    Returns:
        New samples in the same order. Their `advantage` is float32 of shape (L,): 0.0 where mask is False.

    Raises:
        ConfigError: If a sample has no `group_id`, a trajectory or step has no return, the baseline does not exist, or
            a group is too small for it.
        InvalidSample: If a sample is invalid or lacks `metadata["steps"]`, a return is not a finite number, or two
            trajectories have the same id.
    """
    samples = valid_samples(samples)
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
    """Add a penalty that keeps the policy close to its sampler.

    `A[i] += coef * mask[i] * (mean(d) - d[i])` with `d = lp_sampler - lp_trainer`. The mean runs over the trained
    tokens of all samples, so the penalty moves credit between tokens, and its sum is 0.

    Source: `incorporate_kl_penalty` of tinker-cookbook.

    Args:
        samples: Samples with log-probabilities and an advantage.
        trainer_logprobs: For each sample, the trainer's log-probabilities in nats, shape (L,). The value at i belongs
            to token i.
        coef: The penalty for one nat, in units of advantage; at least 0.

    Returns:
        New samples in the same order. Their `advantage` is float32 of shape (L,): 0.0 where mask is False.

    Raises:
        ConfigError: If `coef` is negative or not finite.
        InvalidSample: If a sample has no advantage, or the log-probabilities do not match it (see `diagnostics.kl`).
    """
    if not isinstance(coef, Real) or not 0 <= coef < np.inf:
        raise ConfigError(f"coef is {coef!r}; expected a finite number of at least 0")
    pairs = pair_logprobs(samples, trainer_logprobs)
    differences = [pair.sampler - pair.trainer for pair in pairs]
    joined = np.concatenate([np.empty(0), *differences])
    center = float(joined.mean()) if len(joined) else 0.0
    penalized: list[Sample] = []
    for index, (pair, difference) in enumerate(zip(pairs, differences, strict=True)):
        if pair.sample.advantage is None:
            raise InvalidSample(f"sample {index} has no advantage: compute it first, for example with group_advantages")
        advantage = np.where(pair.sample.mask, pair.sample.advantage, 0.0)
        advantage[pair.positions] += coef * (center - difference)
        finite_array(f"the advantages of sample {index}", advantage, np.float32)
        penalized.append(replace(pair.sample, advantage=advantage.astype(np.float32)))
    return penalized


def _over_groups(
    samples: Sequence[Sample],
    keys: Sequence[Sequence[_Key]],
    values: Mapping[_Key, float],
    baseline: Baseline,
    *,
    by_role: bool,
) -> dict[_Key, float]:
    """Return the advantage of each value within its group. `keys` has the keys of the values of each sample."""
    groups: dict[str, dict[_Key, None]] = {}
    seen: set[tuple[str, str, int]] = set()
    for index, (sample, own) in enumerate(zip(samples, keys, strict=True)):
        segment = (sample.trajectory_id, sample.context, sample.segment_index)
        if segment in seen:
            raise InvalidSample(
                f"sample {index} is segment {sample.segment_index} of context {sample.context!r} of trajectory "
                f"{sample.trajectory_id!r} for the second time: give each trajectory a unique id (reset option "
                "`episode_id`)"
            )
        seen.add(segment)
        groups.setdefault(_group_of(index, sample, by_role), {}).update(dict.fromkeys(own))
    advantages: dict[_Key, float] = {}
    for group, members in groups.items():
        found = apply_baseline(baseline, group, [values[key] for key in members], [owner for owner, _ in members])
        advantages.update(zip(members, found.tolist(), strict=True))
    return advantages


def _group_of(index: int, sample: Sample, by_role: bool) -> str:
    if sample.group_id is None:
        raise ConfigError(
            f"sample {index}, of trajectory {sample.trajectory_id!r}, has no group_id, so it cannot be compared with "
            "other samples: roll out several episodes of each task with the same group_id (reset option `group_id`)"
        )
    return f"group {sample.group_id!r}" + (f", role {sample.role!r}" if by_role else "")


def _reward_of(rewards: Any, trajectory: str, context: str) -> float:
    of_contexts: Any = _entry("rewards", rewards, trajectory)
    reward: Any = _entry(f"rewards[{trajectory!r}]", of_contexts, context)
    return finite_array(f"the rewards of {(trajectory, context)}", [reward]).tolist()[0]


def _returns_of(returns: "Mapping[str, Values]", trajectory: str, steps: Sequence[int]) -> list[float]:
    found = finite_array(f"the returns of {trajectory!r}", _entry("returns", returns, trajectory))
    missing = [step for step in steps if not 0 <= step < len(found)]
    if missing:
        raise ConfigError(
            f"returns has no value for step {missing[0]} of trajectory {trajectory!r}; expected one for each step: "
            "step_returns(trajectory)"
        )
    return found[list(steps)].tolist()


def _entry(name: str, mapping: Any, key: str) -> Any:
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{name} is {mapping!r:.80}; expected a mapping with the key {key!r}")
    if key not in mapping:
        raise ConfigError(f"{name} has no key {key!r}; it has {list(cast('Mapping[str, Any]', mapping))!r:.200}")
    return cast("Mapping[str, Any]", mapping)[key]


def _steps_of(index: int, sample: Sample) -> list[int]:
    steps: Any = sample.metadata.get("steps")
    if not isinstance(steps, list) or len(cast("list[Any]", steps)) != len(sample.step_rewards):
        raise InvalidSample(
            f"metadata['steps'] of sample {index} is {steps!r:.80}; expected the index of each of its "
            f"{len(sample.step_rewards)} steps in the trajectory"
        )
    return cast("list[int]", steps)
