"""The adapter for SkyRL: rollouts as a step-wise `GeneratorOutput`, in which a rollout may have several rows.

Source: the public rules of `validate_generator_output(..., step_wise=True)`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NotRequired, TypedDict

import numpy as np

from .._arguments import explain_arguments
from ..errors import InvalidSample
from ..rendering._vision import Vision
from ..trajectories._samples import Sample
from ._capability import Capability
from ._checks import check_samples
from ._image_inputs import NEEDS_VISION, image_arrays
from ._packages import load
from ._rows import group_by_rollout, split_response
from ._rows import routed_experts as experts_of
from ._rows import sampling_mask as ids_of

__all__ = ["GeneratorOutput", "to_generator_output"]

if TYPE_CHECKING:
    from numpy.typing import NDArray

CAPABILITY = Capability(
    "SkyRL",
    several_samples=True,
    loss_weight="Left out: loss_reduction=token_mean averages over tokens. The other reductions average over rows.",
    images="`pixel_values` and `image_grid_thw` of each row, with `vision=renderer.vision`.",
)

_IMAGES: tuple[Literal["pixel_values"], Literal["image_grid_thw"]] = ("pixel_values", "image_grid_thw")


class TrajectoryID(NamedTuple):
    """The id of a rollout, with the fields of SkyRL's class of this name.

    Attributes:
        instance_id: The id of the task, which the rollouts of a group share.
        repetition_id: The index of the rollout in its group.
    """

    instance_id: str
    repetition_id: int

    def to_string(self) -> str:
        """Return the id in the form that SkyRL's checks compare."""
        return f"{self.instance_id}_{self.repetition_id}"


class GeneratorOutput(TypedDict):
    """The fields of SkyRL's `GeneratorOutput` that step-wise training reads. Each list has one item for each row."""

    prompt_token_ids: list[list[int]]
    response_ids: list[list[int]]
    rewards: list[float]
    loss_masks: list[list[int]]
    stop_reasons: list[str]
    rollout_logprobs: list[list[float]]
    trajectory_ids: list[TrajectoryID]
    is_last_step: list[bool]
    rollout_expert_indices: "NotRequired[list[NDArray[np.int32]]]"
    rollout_sample_support: "NotRequired[list[NDArray[np.int32]]]"
    pixel_values: NotRequired[list[Any]]
    image_grid_thw: NotRequired[list[Any]]


def to_generator_output(
    samples: Iterable[Sample],
    *,
    temperature: float | None = None,
    routed_experts: bool = False,
    sampling_top_k: int | None = None,
    vision: Vision | None = None,
) -> GeneratorOutput:
    """Convert the samples of rollouts to rows, for `generator.step_wise_trajectories=true`.

    The rows of a rollout are consecutive. Only the last one has `is_last_step` True and the reward, from which SkyRL
    computes the advantage of all rows of the rollout. The prompt of a row ends before its first trained token.
    `stop_reasons` has `length` for a truncated rollout, and `stop` for any other.

    Args:
        samples: All samples of the rollouts, with log-probabilities.
        temperature: The trainer's temperature (`generator.sampling_params.temperature`), which must be that of the
            samples. None skips the check.
        routed_experts: Whether to add the experts of the sampler, `extra["routed_experts"]`, for router replay:
            `rollout_expert_indices`, for each row int32 of shape (L - 1, layers, top_k).
        sampling_top_k: The `top_k` of the sampler, to add the ids that each token was sampled from,
            `extra["sampling_mask"]`, for SkyRL 0.4 with `trainer.algorithm.enable_sample_support_replay`:
            `rollout_sample_support`, for each row int32 of shape (m, top_k) for a response of m tokens, padded with -1.
        vision: The image processor of the trained model, `renderer.vision`, for samples with images. The output then
            has tensors for each row: `pixel_values` and `image_grid_thw`.

    Raises:
        InvalidSample: If a sample is invalid, has no log-probabilities, was not scored, or was sampled at another
            temperature; if the samples of a rollout have different rewards, or one is missing; if a rollout without
            a group has the id of a group; if experts are requested and a token has none; if sampling masks are
            requested and a trained token has none, is not in its own, or has more than `top_k` ids; or if there are
            images, and `vision` is not given, makes arrays that SkyRL has no fields for, or a sample has no image:
            SkyRL takes images in all rows or in none.
        MissingPackage: If there are images, and torch is not installed.
    """
    no_images = NEEDS_VISION if vision is None else None
    valid = check_samples(samples, scored=True, temperature=temperature, no_images=no_images)
    output = GeneratorOutput(
        prompt_token_ids=[],
        response_ids=[],
        rewards=[],
        loss_masks=[],
        stop_reasons=[],
        rollout_logprobs=[],
        trajectory_ids=[],
        is_last_step=[],
    )
    repetitions: dict[str, int] = {}
    groups = {sample.group_id for sample in valid}
    for rollout in group_by_rollout(valid):
        instance = rollout[0].trajectory_id if rollout[0].group_id is None else rollout[0].group_id
        if rollout[0].group_id is None and instance in groups:
            raise InvalidSample(
                f"trajectory {instance!r} has no group_id, and its id is that of a group, so SkyRL would add it to "
                "that group: give it another id (reset option `episode_id`) or a group (reset option `group_id`)"
            )
        name = TrajectoryID(instance, repetitions.get(instance, 0))
        repetitions[instance] = name.repetition_id + 1
        for sample in rollout:
            response, is_last = split_response(sample), sample is rollout[-1]
            output["prompt_token_ids"].append(response.prompt_ids)
            output["response_ids"].append(response.response_ids)
            output["rewards"].append(float(sample.reward) if is_last else 0.0)
            output["loss_masks"].append(response.mask)
            output["stop_reasons"].append("length" if sample.truncated else "stop")
            output["rollout_logprobs"].append(response.logprobs)
            output["trajectory_ids"].append(name)
            output["is_last_step"].append(is_last)
            if routed_experts:
                output.setdefault("rollout_expert_indices", []).append(experts_of(sample))
            if sampling_top_k is not None:
                rows = _support(sample, sampling_top_k)[-len(response.response_ids) :]
                output.setdefault("rollout_sample_support", []).append(rows)
            if vision is None or not any(other.media for other in valid):
                continue
            if not sample.media:
                raise InvalidSample(
                    f"a sample of trajectory {sample.trajectory_id!r} has no images, but others of the batch do, and "
                    "SkyRL takes images in all rows or in none: convert them separately"
                )
            torch, arrays = load("torch", "skyrl"), image_arrays(sample, vision)
            if set(arrays) != set(_IMAGES):
                raise InvalidSample(
                    f"the image processor makes {', '.join(sorted(arrays))}, but SkyRL has fields for "
                    f"{', '.join(_IMAGES)}"
                )
            for field in _IMAGES:
                output.setdefault(field, []).append(torch.from_numpy(arrays[field]))
    return output


def _support(sample: Sample, top_k: int) -> "NDArray[np.int32]":
    """Return the ids that each trained token was sampled from, padded with -1: int32, shape (L, top_k)."""
    ids = ids_of(sample)
    if (ids.lengths > top_k).any():
        raise InvalidSample(
            f"a sample of trajectory {sample.trajectory_id!r} has a token that was sampled from {ids.lengths.max()} "
            f"ids, but sampling_top_k is {top_k}: expected the top_k of the sampler"
        )
    rows = np.full((len(sample), top_k), -1, dtype=np.int32)
    rows[np.arange(top_k) < ids.lengths[:, None]] = ids.values
    return rows


explain_arguments(globals())
