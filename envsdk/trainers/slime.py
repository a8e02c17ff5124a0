"""slime: samples as the dictionaries that its `Sample.from_dict` reads.

Source: the public definition, `slime.utils.types.Sample`, and the checks where slime makes its training data.
"""

from collections.abc import Iterable
from typing import Any, Literal, TypedDict

import numpy as np

from ..errors import ConfigError
from ..samples import Sample
from .capability import Capability
from .checks import checked
from .rows import by_rollout, logprobs, response_start

CAPABILITY = Capability(
    "slime",
    several_samples=True,
    loss_weight="Left out: samples of a rollout share its rollout_id, within which slime averages over their tokens.",
)


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
