"""slime: samples as the dictionaries that its `Sample.from_dict` reads.

Source: the public definition, `slime.utils.types.Sample`, and the checks where slime makes its training data.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypedDict

import numpy as np

from ..credit.baselines import mean, normalised
from ..credit.values import finite
from ..errors import ConfigError, InvalidSample
from ..trajectories.samples import Sample
from .capability import Capability
from .checks import checked
from .rows import by_rollout, logprobs, response_start

CAPABILITY = Capability(
    "slime",
    several_samples=True,
    loss_weight="Left out: samples of a rollout share its rollout_id, within which slime averages over their tokens.",
)

# The `advantage_estimator`s whose rewards slime centers, and of those the ones that it may scale.
_CENTERED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
_SCALED = ("grpo", "gspo", "cispo")


class SlimeSample(TypedDict):
    """The fields of slime's `Sample` that are set; `loss_mask` and `rollout_log_probs` are of the response alone."""

    group_index: int
    index: int
    rollout_id: int
    tokens: list[int]
    response_length: int
    loss_mask: list[int]
    rollout_log_probs: list[float]
    reward: float
    status: Literal["completed", "truncated"]
    weight_versions: list[str]
    metadata: dict[str, Any]


def to_slime_samples(
    samples: Iterable[Sample], *, first_rollout_id: int, first_group_index: int, temperature: float | None = None
) -> list[SlimeSample]:
    """Convert the samples of any number of rollouts: `slime.utils.types.Sample.from_dict(record)`.

    Rollouts are numbered in the order in which they appear, and so are groups: those of the same `group_id`, or one
    rollout without. The response begins with the first trained token. No samples give no records.

    Args:
        samples: All samples of those rollouts, with log-probabilities.
        first_rollout_id: The number of the first rollout, and its `index`. Numbers are unique in slime's batch: where
            each rollout is converted by itself, it is `index` of the sample that slime gave.
        first_group_index: The number of the first group: `group_index` of that sample.
        temperature: The trainer's (`rollout_temperature`), which the samples' is compared with.

    Raises:
        InvalidSample: If a sample is not sound, lacks log-probabilities, was not scored, or was sampled at another
            temperature; or if those of one rollout have different rewards or one of them is missing.
        ConfigError: If a number is none.
    """
    for name, number in (("first_rollout_id", first_rollout_id), ("first_group_index", first_group_index)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"{name} is {number!r:.80}; expected an integer of at least 0, from slime's own sample")
    sound = checked(samples, scored=True, temperature=temperature)
    groups: dict[tuple[bool, str], int] = {}
    records: list[SlimeSample] = []
    for number, rollout in enumerate(by_rollout(sound), start=first_rollout_id):
        group, own = rollout[0].group_id, rollout[0].trajectory_id
        key = (False, own) if group is None else (True, group)
        index = groups.setdefault(key, first_group_index + len(groups))
        records += [_record(sample, number, index) for sample in rollout]
    return records


def _record(sample: Sample, rollout_id: int, group_index: int) -> SlimeSample:
    start = response_start(sample)
    return SlimeSample(
        group_index=group_index,
        index=rollout_id,
        rollout_id=rollout_id,
        tokens=sample.tokens.tolist(),
        response_length=len(sample) - start,
        loss_mask=[int(trained) for trained in sample.mask[start:]],
        rollout_log_probs=logprobs(sample)[start:].tolist(),
        reward=float(sample.reward),
        status="truncated" if sample.truncated else "completed",
        weight_versions=[str(version) for version in np.unique(sample.policy_version) if version >= 0],
        metadata={"trajectory_id": sample.trajectory_id, "context": sample.context, "segment": sample.segment_index},
    )


def post_process_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Center and scale the rewards of slime's samples over the rollouts of their group, not over its rows.

    Give slime the path of this function:
    `--custom-reward-post-process-path envsdk.trainers.slime.post_process_rewards`. Without it, as soon as rollouts have
    different numbers of rows, slime takes one baseline for its whole batch, in which a rollout counts once for each of
    its rows.

    A group is the samples of one `group_index`, and a rollout those of one `rollout_id` (`index`, where that is None).
    A rollout counts once in its group, and all its samples get its advantage. The arithmetic is slime's own: the mean
    is subtracted, and with `args.grpo_std_normalization` the result is divided by the standard deviation (of a sample
    of a population, as `torch.std`) plus 1e-6. A group of one rollout has advantage 0. Rewards stay as they are where
    slime does not center them, by `args.advantage_estimator` and `args.rewards_normalization`.

    Args:
        args: slime's arguments.
        samples: slime's samples (`slime.utils.types.Sample`) of whole groups.

    Returns:
        The rewards as they are and the centered ones, each in the order of the samples.

    Raises:
        InvalidSample: If a sample has no finite reward, no group or no rollout, if samples of one rollout have
            different rewards, or if they are in several groups.
    """
    given = [sample.get_reward_value(args) for sample in samples]
    if any(isinstance(reward, bool) for reward in given):
        raise InvalidSample("a reward of slime's samples is True or False; expected numbers")
    raw = finite("rewards of slime's samples", given, np.float32).tolist()
    if args.advantage_estimator not in _CENTERED or not args.rewards_normalization:
        return raw, raw
    is_scaled = args.advantage_estimator in _SCALED and args.grpo_std_normalization
    groups: dict[int, dict[int, float]] = {}
    rollouts = [_rollout(index, sample) for index, sample in enumerate(samples)]
    group_of: dict[int, int] = {}
    for index, ((group, rollout), reward) in enumerate(zip(rollouts, raw, strict=True)):
        if group_of.setdefault(rollout, group) != group:
            raise InvalidSample(f"sample {index} of rollout {rollout} is in group {group}, others of it in another one")
        known = groups.setdefault(group, {}).setdefault(rollout, reward)
        if known != reward:
            raise InvalidSample(
                f"sample {index} of rollout {rollout} has the reward {reward}, another one of it {known}; expected the "
                "rollout's reward in all its samples"
            )
    advantages: dict[int, float] = {}
    for rewards in groups.values():
        values = list(rewards.values())
        found = normalised(values, ddof=1) if is_scaled else mean(values)
        advantages.update(zip(rewards, found.tolist(), strict=True))
    return raw, [advantages[rollout] for _, rollout in rollouts]


def _rollout(index: int, sample: Any) -> tuple[int, int]:
    """The group and the rollout of a sample of slime's."""
    rollout = sample.index if sample.rollout_id is None else sample.rollout_id
    for name, number in (("group_index", sample.group_index), ("rollout_id", rollout)):
        if not isinstance(number, int) or isinstance(number, bool):
            raise InvalidSample(f"sample {index} has the {name} {number!r:.80}; expected an integer")
    return sample.group_index, rollout
