"""The adapter for slime: samples as the dictionaries that its `Sample.from_dict` reads.

Source: the public definition of `slime.utils.types.Sample`, and the checks with which slime builds its training data.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

import numpy as np

from .._arguments import explain_arguments
from .._visible import brief
from ..credit._baselines import mean, normalized
from ..credit._values import finite_array
from ..errors import ConfigError, InvalidSample
from ..rendering._vision import Vision
from ..trajectories._samples import Sample
from ._capability import Capability
from ._checks import check_samples
from ._image_inputs import NEEDS_VISION, image_arrays
from ._packages import load
from ._rows import group_by_rollout, split_response
from ._rows import routed_experts as experts_of
from ._rows import sampling_mask as ids_of

__all__ = ["SlimeSample", "post_process_rewards", "to_slime_samples"]

if TYPE_CHECKING:
    from numpy.typing import NDArray

CAPABILITY = Capability(
    "slime",
    several_samples=True,
    loss_weight="Left out: slime averages over the tokens of a rollout, whose samples share its rollout_id.",
    images="`multimodal_train_inputs`, tensors of the image processor, with `vision=renderer.vision`.",
)

# The values of `advantage_estimator` for which slime centers rewards, and those for which it may also scale them.
_CENTERED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
_SCALED = ("grpo", "gspo", "cispo")


class SlimeSample(TypedDict):
    """The fields of slime's `Sample` that are set. `loss_mask` and `rollout_log_probs` cover only the response."""

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
    rollout_routed_experts: "NotRequired[NDArray[np.int32]]"
    rollout_top_p_token_ids: NotRequired[list[int]]
    rollout_top_p_token_offsets: NotRequired[list[int]]
    multimodal_train_inputs: NotRequired[dict[str, Any]]


def to_slime_samples(
    samples: Iterable[Sample],
    *,
    first_rollout_id: int,
    first_group_index: int,
    temperature: float | None = None,
    routed_experts: bool = False,
    sampling_mask: bool = False,
    vision: Vision | None = None,
) -> list[SlimeSample]:
    """Convert the samples of rollouts to records: `slime.utils.types.Sample.from_dict(record)`.

    Rollouts and groups are numbered in the order in which they first appear. A rollout without a `group_id` is a
    separate group. The response begins with the first trained token.

    Args:
        samples: All samples of the rollouts, with log-probabilities.
        first_rollout_id: The number of the first rollout, which is also its `index`. It must be unique in slime's
            batch. If each rollout is converted separately, it is `index` of the sample that slime passed.
        first_group_index: The number of the first group. If each rollout is converted separately, it is `group_index`
            of the sample that slime passed.
        temperature: The trainer's temperature (`rollout_temperature`), which must be that of the samples. None skips
            the check.
        routed_experts: Whether to add the experts of the sampler, `extra["routed_experts"]`, for
            `--use-rollout-routing-replay`: `rollout_routed_experts`, int32 of shape (L - 1, layers, top_k).
        sampling_mask: Whether to add the ids that each token was sampled from, `extra["sampling_mask"]`, which slime
            0.3.1 needs if `--rollout-top-p` is not 1: `rollout_top_p_token_ids`, and for a response of m tokens m + 1
            `rollout_top_p_token_offsets`.
        vision: The image processor of the trained model, `renderer.vision`, for samples with images. They then have
            `multimodal_train_inputs`: a tensor for each array that the model gets, such as `pixel_values`.

    Raises:
        InvalidSample: If a sample is invalid, has no log-probabilities, was not scored, or was sampled at another
            temperature; if the samples of a rollout have different rewards, or one is missing; if experts are
            requested and a token has none; if sampling masks are requested and a trained token has none, or is not in
            its own; or if there are images, and `vision` is not given.
        MissingPackage: If there are images, and torch is not installed.
        ConfigError: If `first_rollout_id` or `first_group_index` is not an integer of at least 0.
    """
    for name, number in (("first_rollout_id", first_rollout_id), ("first_group_index", first_group_index)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"{name} is {brief(number)}; expected an integer of at least 0, such as slime's own sample has"
            )
    no_images = NEEDS_VISION if vision is None else None
    valid = check_samples(samples, scored=True, temperature=temperature, no_images=no_images)
    groups: dict[tuple[bool, str], int] = {}
    records: list[SlimeSample] = []
    for number, rollout in enumerate(group_by_rollout(valid), start=first_rollout_id):
        group, trajectory_id = rollout[0].group_id, rollout[0].trajectory_id
        key = (False, trajectory_id) if group is None else (True, group)
        index = groups.setdefault(key, first_group_index + len(groups))
        for sample in rollout:
            response = split_response(sample)
            record = SlimeSample(
                group_index=index,
                index=number,
                rollout_id=number,
                tokens=sample.tokens.tolist(),
                response_length=len(response.response_ids),
                loss_mask=response.mask,
                rollout_log_probs=response.logprobs,
                reward=float(sample.reward),
                status="truncated" if sample.truncated else "completed",
                weight_versions=[str(version) for version in np.unique(sample.policy_version) if version >= 0],
                metadata={
                    "trajectory_id": sample.trajectory_id,
                    "context": sample.context,
                    "segment": sample.segment_index,
                },
            )
            if routed_experts:
                record["rollout_routed_experts"] = experts_of(sample)
            if sampling_mask:
                ids = ids_of(sample)
                record["rollout_top_p_token_ids"] = ids.values.tolist()  # there are none before the response
                offsets = np.cumsum(ids.lengths[-len(response.response_ids) :])
                record["rollout_top_p_token_offsets"] = [0, *offsets.tolist()]
            if sample.media and vision is not None:
                torch, arrays = load("torch", "slime"), image_arrays(sample, vision)
                record["multimodal_train_inputs"] = {name: torch.from_numpy(arrays[name]) for name in arrays}
            records.append(record)
    return records


def post_process_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Center and scale the rewards of slime's samples so that each rollout, and not each sample, counts once.

    Pass the path of this function to slime:
    `--custom-reward-post-process-path envsdk.trainers.slime.post_process_rewards`. Without it, if rollouts have
    different numbers of samples, slime uses one baseline for the whole batch, in which a rollout counts once for each
    sample.

    A group holds the samples of one `group_index`. A rollout holds the samples of one `rollout_id` (of one `index`, if
    `rollout_id` is None). A rollout counts once in its group, and all its samples get its advantage. The arithmetic is
    that of slime: the mean is subtracted, and with `args.grpo_std_normalization` the result is divided by the standard
    deviation (unbiased, as in `torch.std`) plus 1e-6. A group of one rollout has advantage 0. The rewards stay
    unchanged if `args.advantage_estimator` or `args.rewards_normalization` specifies that slime does not center them.

    Args:
        args: slime's arguments.
        samples: slime's samples (`slime.utils.types.Sample`) of whole groups.

    Returns:
        The raw rewards and the processed rewards, both in the order of the samples.

    Raises:
        InvalidSample: If a sample has no finite reward, no group or no rollout, or if the samples of a rollout have
            different rewards or groups.
    """
    given = [sample.get_reward_value(args) for sample in samples]
    if any(isinstance(reward, bool) for reward in given):
        raise InvalidSample("a reward of slime's samples is True or False; expected a number")
    raw = finite_array("rewards of slime's samples", given, np.float32).tolist()
    if args.advantage_estimator not in _CENTERED or not args.rewards_normalization:
        return raw, raw
    is_scaled = args.advantage_estimator in _SCALED and args.grpo_std_normalization
    groups: dict[int, dict[int, float]] = {}
    rollouts = [(s.group_index, s.index if s.rollout_id is None else s.rollout_id) for s in samples]
    group_of: dict[int, int] = {}
    for index, ((group, rollout), reward) in enumerate(zip(rollouts, raw, strict=True)):
        for name, number in (("group_index", group), ("rollout_id", rollout)):
            if not isinstance(number, int) or isinstance(number, bool):
                raise InvalidSample(
                    f"sample {index} has the {name} {brief(number)}; expected an integer, which slime sets"
                )
        if group_of.setdefault(rollout, group) != group:
            raise InvalidSample(
                f"sample {index} of rollout {rollout} is in group {group}, but another sample of this rollout is in "
                f"group {group_of[rollout]}; expected one group for a rollout"
            )
        known = groups.setdefault(group, {}).setdefault(rollout, reward)
        if known != reward:
            raise InvalidSample(
                f"sample {index} of rollout {rollout} has the reward {reward}, but another sample of this rollout has "
                f"{known}; expected one reward for a rollout"
            )
    advantages: dict[int, float] = {}
    for rewards in groups.values():
        values = list(rewards.values())
        found = normalized(values, ddof=1) if is_scaled else mean(values)
        advantages.update(zip(rewards, found.tolist(), strict=True))
    return raw, [advantages[rollout] for _, rollout in rollouts]


explain_arguments(globals())
