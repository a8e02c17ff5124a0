"""Advantages in samples: one for each context or for each step, and a KL penalty that is added to them."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np

from .._visible import brief, type_of
from ..diagnostics._inputs import check_clip, pair_logprobs, valid_samples
from ..errors import ConfigError, InvalidSample
from ..trajectories._samples import Sample
from ._baselines import Baseline, apply_baseline
from ._values import Values, finite_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Key: TypeAlias = tuple[str, str | int]
"""The owner of a value: a trajectory id with the name of a context, or with the index of a step."""


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
        raise InvalidSample(f"sample is {type_of(sample)}; expected a Sample")
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
        baseline: How the rewards of a group become advantages: `"mean"`, `"leave_one_out"`, which leaves out all
            contexts of the same trajectory, `"normalized"`, `"none"`, or a function from the values of a group and
            their owners (trajectory ids) to advantages.
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
    samples = valid_samples(samples)
    values = _rewards_of_contexts(samples, rewards)
    keys: list[list[_Key]] = [[(sample.trajectory_id, sample.context)] for sample in samples]
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
    values, keys = _returns_of_steps(samples, returns)
    advantages = _over_groups(samples, keys, values, baseline, by_role=by_role)
    return [
        replace(sample, advantage=per_token(sample, [advantages[key] for key in own]))
        for sample, own in zip(samples, keys, strict=True)
    ]


def anchor_advantages(
    samples: Sequence[Sample],
    returns: Mapping[str, Values],
    anchors: Mapping[str, Sequence[Hashable]],
    baseline: Baseline = "normalized",
    *,
    weight: float = 1.0,
    rewards: Mapping[str, Mapping[str, float]] | None = None,
    by_role: bool = True,
) -> list[Sample]:
    """Add to the advantage of a context that of each step among the steps of its group that began in the same state.

    `A[t] = A_context + weight * A_step[t]`: the first is that of `group_advantages`, the second compares the step's
    return with those of all steps of the group with the same anchor. A step whose anchor no other trajectory has gets
    0 as its second part.

    Source: L. Feng et al., "Group-in-Group Policy Optimization" (GiGPO), 2025, arXiv:2505.10978.

    Args:
        samples: The samples of whole groups; see `group_advantages`.
        returns: For each trajectory id, the returns of its steps; see `step_advantages`.
        anchors: For each trajectory id, what identifies the state in which each step began, such as
            `{t.id: observation_anchors(t) for t in trajectories}`.
        baseline: How the values of a group become advantages, for both parts.
        weight: How much the advantages of steps count; at least 0.
        rewards: See `group_advantages`.
        by_role: Whether samples of different roles are in different groups.

    Returns:
        New samples in the same order. Their `advantage` is float32 of shape (L,): 0.0 where mask is False.

    Raises:
        ConfigError: As `group_advantages` and `step_advantages`; or if a step has no anchor, or `weight` is negative.
        InvalidSample: As `group_advantages` and `step_advantages`.
    """
    if not isinstance(weight, Real) or not 0 <= weight < np.inf:
        raise ConfigError(f"weight is {weight!r}; expected a finite number of at least 0")
    of_contexts = group_advantages(samples, baseline, rewards=rewards, by_role=by_role)
    values, keys = _returns_of_steps(of_contexts, returns)
    states: dict[_Key, Hashable] = {}
    for name, step in (key for own in keys for key in own):
        given: Any = _entry("anchors", anchors, name)
        is_list = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
        found = cast("Sequence[Any]", given) if is_list else ()
        if cast("int", step) >= len(found):
            raise ConfigError(
                f"anchors[{name!r}] is {brief(given)}; expected one for each step: observation_anchors(trajectory)"
            )
        try:
            hash(found[cast("int", step)])
        except TypeError as error:
            raise ConfigError(f"anchors[{name!r}][{step}] is {brief(found[cast('int', step)])}: {error}") from error
        states[name, step] = (found[cast("int", step)],)
    of_steps = _over_groups(of_contexts, keys, values, baseline, by_role=by_role, states=states)
    added: list[Sample] = []
    for sample, own in zip(of_contexts, keys, strict=True):
        of_sample = np.asarray(sample.advantage, dtype=np.float64)
        advantage = of_sample + weight * per_token(sample, [of_steps[key] for key in own]).astype(np.float64)
        added.append(replace(sample, advantage=advantage.astype(np.float32)))
    return added


def role_advantages(
    samples: Sequence[Sample],
    baselines: Mapping[str, Mapping[str, float]] | None = None,
    *,
    decay: float = 0.95,
) -> tuple[list[Sample], dict[str, dict[str, float]]]:
    """Compare the reward of each context with a running mean of its environment and role: for self-play.

    For each context, in order: `A = R - b`, then `b = decay * b + (1 - decay) * R`. In self-play a role's rewards
    depend on the game (the first player may win more often), and there is no group of the same task. A context counts
    once, however many samples it has.

    Source: B. Liu et al., "SPIRAL", 2025, arXiv:2506.24119 (role-conditioned advantage estimation, RAE). There the
    baseline is updated first, which multiplies all advantages by `decay`.

    Args:
        samples: Samples of any trajectories. `metadata["env"]` and `role` identify the baseline.
        baselines: What the last call returned; by default all baselines are 0. It is not changed.
        decay: How much of a baseline stays after a context, from 0 to 1.

    Returns:
        New samples in the same order, and the baselines by environment and role, for the next call. `advantage` is
        float32 of shape (L,): 0.0 where mask is False.

    Raises:
        ConfigError: If `decay` is not a number from 0 to 1, or `baselines` is not a mapping of mappings.
        InvalidSample: If a sample is invalid or was not scored, or a baseline is not a finite number.
    """
    if not isinstance(decay, Real) or not 0 <= decay <= 1:
        raise ConfigError(f"decay is {decay!r}; expected a number from 0 to 1")
    samples = valid_samples(samples)
    rewards = _rewards_of_contexts(samples, None)
    known: Any = {} if baselines is None else baselines
    if not isinstance(known, Mapping) or not all(isinstance(roles, Mapping) for roles in known.values()):  # pyright: ignore[reportUnknownVariableType]
        raise ConfigError(f"baselines is {brief(known)}; expected what role_advantages returned before")
    means: dict[str, dict[str, float]] = {env: {**roles} for env, roles in cast("Any", known).items()}
    found: dict[_Key, float] = {}
    for sample in samples:
        key = (sample.trajectory_id, sample.context)
        if key not in found:
            roles, reward = means.setdefault(str(sample.metadata.get("env", "")), {}), rewards[key]
            (mean,) = finite_array("baselines", [roles.get(sample.role, 0.0)]).tolist()
            found[key] = reward - mean
            roles[sample.role] = float(decay) * mean + (1 - float(decay)) * reward
    keys = [(sample.trajectory_id, sample.context) for sample in samples]
    return [replace(one, advantage=per_token(one, found[key])) for one, key in zip(samples, keys, strict=True)], means


def add_kl_penalty(
    samples: Sequence[Sample],
    logprobs: Sequence[Any],
    coef: float,
    *,
    near: Literal["reference", "sampler"] = "reference",
    clip: float | None = None,
) -> list[Sample]:
    """Add a penalty on the divergence between the policy that sampled and another model to the advantages.

    `A[i] += coef * mask[i] * (mean(d) - d[i])`, where the mean runs over the trained tokens of all samples. So the
    penalty moves credit between tokens, and its sum is 0. `near` specifies d, and with it what is kept near what:

    - `"reference"`: `d = lp_sampler - lp`. The policy is kept near the model with these log-probabilities, such as the
      one it began as.
    - `"sampler"`: `d = lp - lp_sampler`. `logprobs` are those of the weights that are trained, which a forward pass
      before the one with the gradient computes. They are kept near their sampler, from which they move away where
      samples are trained on more than once. Under `"reference"`, the penalty would drive the two apart.

    Source: `incorporate_kl_penalty` of tinker-cookbook.

    Args:
        samples: Samples with log-probabilities and an advantage.
        logprobs: For each sample, log-probabilities in nats, shape (L,). The value at i belongs to token i.
        coef: The penalty for one nat, in units of advantage; at least 0.
        near: The model that the policy is kept near.
        clip: The largest `|d|` of a token that counts, in nats; None for no bound. `diagnostics.kl(clip=)` reports the
            share of tokens beyond it.

    Returns:
        New samples in the same order. Their `advantage` is float32 of shape (L,): 0.0 where mask is False.

    Raises:
        ConfigError: If `coef` is negative or not finite, `near` is unknown, or `clip` is not a positive number.
        InvalidSample: If a sample has no advantage, or the log-probabilities do not match it (see `diagnostics.kl`).
    """
    if not isinstance(coef, Real) or not 0 <= coef < np.inf:
        raise ConfigError(f"coef is {coef!r}; expected a finite number of at least 0")
    if near not in ("reference", "sampler"):
        raise ConfigError(f"near is {brief(near)}; expected 'reference' or 'sampler'")
    bound = np.inf if clip is None else check_clip(clip)
    sign = 1 if near == "reference" else -1
    pairs = pair_logprobs(samples, logprobs)
    differences = [np.clip(sign * (pair.sampler - pair.trainer), -bound, bound) for pair in pairs]
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
    states: Mapping[_Key, Hashable] | None = None,
) -> dict[_Key, float]:
    """Return the advantage of each value within its group. `keys` has the keys of the values of each sample.

    With `states`, only values of one state are compared, and a value that no other trajectory has one for is 0.
    """
    groups: dict[tuple[str, Hashable], dict[_Key, None]] = {}
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
        if sample.group_id is None:
            raise ConfigError(
                f"sample {index}, of trajectory {sample.trajectory_id!r}, has no group_id, so it cannot be compared "
                "with other samples: roll out several episodes of each task with the same group_id (reset option "
                "`group_id`)"
            )
        group = f"group {sample.group_id!r}" + (f", role {sample.role!r}" if by_role else "")
        for key in own:
            groups.setdefault((group, None if states is None else states[key]), {})[key] = None
    advantages: dict[_Key, float] = {}
    for (group, _), members in groups.items():
        owners = [owner for owner, _ in members]
        if states is not None and len(set(owners)) == 1:
            advantages.update(dict.fromkeys(members, 0.0))
            continue
        found = apply_baseline(baseline, group, [values[key] for key in members], owners)
        advantages.update(zip(members, found.tolist(), strict=True))
    return advantages


def _rewards_of_contexts(
    samples: Sequence[Sample], rewards: Mapping[str, Mapping[str, float]] | None
) -> dict[_Key, float]:
    """Return the reward of each context; see `group_advantages`."""
    values: dict[_Key, float] = {}
    for sample in samples:
        name, context = sample.trajectory_id, sample.context
        if rewards is None and not sample.is_scored:
            raise InvalidSample(
                f"trajectory {name!r} was not scored, because no turn had a reward: leave it out, or return "
                "Turn(..., reward=0.0) where a turn earns nothing"
            )
        reward = sample.reward
        if rewards is not None:
            given = _entry(f"rewards[{name!r}]", _entry("rewards", rewards, name), context)
            reward = finite_array(f"the rewards of {(name, context)}", [given]).tolist()[0]
        known = values.setdefault((name, context), reward)
        if known != reward:
            raise InvalidSample(
                f"the samples of context {context!r} of trajectory {name!r} have the rewards {known} and {reward}; "
                "expected one reward for all of them"
            )
    return values


def _returns_of_steps(
    samples: Sequence[Sample], returns: Mapping[str, Values]
) -> tuple[dict[_Key, float], list[list[_Key]]]:
    """Return the return of each step, and the keys of the steps of each sample."""
    values: dict[_Key, float] = {}
    keys: list[list[_Key]] = []
    for index, sample in enumerate(samples):
        name, steps = sample.trajectory_id, cast("list[int]", sample.metadata.get("steps"))
        if not isinstance(steps, list) or len(steps) != len(sample.step_rewards):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidSample(
                f"metadata['steps'] of sample {index} is {brief(steps)}; expected the index of each of its "
                f"{len(sample.step_rewards)} steps in the trajectory"
            )
        found = finite_array(f"the returns of {name!r}", _entry("returns", returns, name))
        missing = [step for step in steps if not 0 <= step < len(found)]
        if missing:
            raise ConfigError(
                f"returns has no value for step {missing[0] + 1} of trajectory {name!r}; expected one for each step: "
                "step_returns(trajectory)"
            )
        keys.append([(name, step) for step in steps])
        values.update(zip(keys[-1], found[steps].tolist(), strict=True))
    return values, keys


def _entry(name: str, mapping: Any, key: str) -> Any:
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{name} is {brief(mapping)}; expected a mapping with the key {key!r}")
    if key not in mapping:
        raise ConfigError(f"{name} has no key {key!r}; it has {brief(list(cast('Mapping[str, Any]', mapping)), 200)}")
    return cast("Mapping[str, Any]", mapping)[key]
