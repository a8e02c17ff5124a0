"""SkyRL: rollouts as a step-wise `GeneratorOutput`, in which a rollout may have several rows.

Source: the public rules of `validate_generator_output(..., step_wise=True)`.
"""

from collections.abc import Iterable, Set
from typing import NamedTuple, TypedDict

from ..errors import InvalidSample
from ..trajectories.samples import Sample
from .capability import Capability
from .checks import checked
from .rows import by_rollout, logprobs, response_start

CAPABILITY = Capability(
    "SkyRL",
    several_samples=True,
    loss_weight="Left out: with loss_reduction=token_mean, tokens count. The other reductions count rows.",
)


class TrajectoryID(NamedTuple):
    """Names a rollout as SkyRL's class of that name does."""

    instance_id: str
    """The task: what a group shares."""
    repetition_id: int

    def to_string(self) -> str:
        """As SkyRL's checks compare it."""
        return f"{self.instance_id}_{self.repetition_id}"


class GeneratorOutput(TypedDict):
    """The fields of SkyRL's `GeneratorOutput` that step-wise training reads: each has an entry for each row."""

    prompt_token_ids: list[list[int]]
    response_ids: list[list[int]]
    rewards: list[float]
    loss_masks: list[list[int]]
    stop_reasons: list[str]
    rollout_logprobs: list[list[float]]
    trajectory_ids: list[TrajectoryID]
    is_last_step: list[bool]


def to_generator_output(samples: Iterable[Sample], *, temperature: float | None = None) -> GeneratorOutput:
    """Convert the samples of any number of rollouts, for `generator.step_wise_trajectories=true`.

    Those of a rollout stand side by side. The last one is marked and has the reward, from which SkyRL makes the
    advantage of all of them. A row's prompt is what comes before its first trained token. `stop_reasons` has `length`
    for a rollout that was truncated, else `stop`. No samples give an output without rows.

    Args:
        samples: All samples of those rollouts, with log-probabilities.
        temperature: The trainer's (`generator.sampling_params.temperature`), which the samples' is compared with.

    Raises:
        InvalidSample: If a sample is not sound, lacks log-probabilities, was not scored, or was sampled at another
            temperature; if those of one rollout have different rewards or one of them is missing; or if the id of a
            rollout without a group is another's `group_id`.
    """
    sound = checked(samples, scored=True, temperature=temperature)
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
    groups = {sample.group_id for sample in sound}
    for rollout in by_rollout(sound):
        instance = _instance(rollout[0], groups)
        name = TrajectoryID(instance, repetitions.get(instance, 0))
        repetitions[instance] = name.repetition_id + 1
        for sample in rollout:
            _add_row(output, sample, name, is_last=sample is rollout[-1])
    return output


def _instance(sample: Sample, groups: Set[str | None]) -> str:
    """What names the task: the group, or a rollout that is in none."""
    if sample.group_id is not None:
        return sample.group_id
    if sample.trajectory_id in groups:
        raise InvalidSample(
            f"the rollout {sample.trajectory_id!r} has no group_id, and its id is that of a group, into which SkyRL "
            "would put it: give it another id (reset option `episode_id`) or a group"
        )
    return sample.trajectory_id


def _add_row(output: GeneratorOutput, sample: Sample, name: TrajectoryID, *, is_last: bool) -> None:
    start = response_start(sample)
    output["prompt_token_ids"].append(sample.tokens[:start].tolist())
    output["response_ids"].append(sample.tokens[start:].tolist())
    output["rewards"].append(float(sample.reward) if is_last else 0.0)
    output["loss_masks"].append([int(trained) for trained in sample.mask[start:]])
    output["stop_reasons"].append("length" if sample.truncated else "stop")
    output["rollout_logprobs"].append(logprobs(sample)[start:].tolist())
    output["trajectory_ids"].append(name)
    output["is_last_step"].append(is_last)
