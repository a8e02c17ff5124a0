"""What several records are made of: values for each token, the response of a sample, the samples of a rollout."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InvalidSample
from ..trajectories.samples import Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray


def temperatures(sample: Sample) -> "NDArray[np.float32]":
    """The temperature that each token was sampled with: shape (L,), 1.0 where mask is False."""
    values = np.ones(len(sample), dtype=np.float32)
    values[sample.mask] = sample.temperature[sample.part_ids[sample.mask]]
    return values


def advantages(sample: Sample) -> "NDArray[np.float32]":
    """The advantage of each token: shape (L,), 0.0 where mask is False. The sample has one."""
    return np.where(sample.mask, np.asarray(sample.advantage, dtype=np.float32), np.float32(0))


def logprobs(sample: Sample) -> "NDArray[np.float32]":
    """The sampler's log-probability of each token: shape (L,), 0.0 where mask is False, a copy.

    Raises:
        InvalidSample: If there are none.
    """
    if sample.logprobs is None:
        raise InvalidSample(f"a sample of {sample.trajectory_id!r} has no log-probabilities")
    return sample.logprobs.copy()


def response_start(sample: Sample) -> int:
    """How many tokens are the prompt, for trainers that split: all before the first one that is trained."""
    return int(np.argmax(sample.mask))


def by_rollout(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The samples of each rollout, rollouts in the order in which they appear.

    Raises:
        InvalidSample: If those of one rollout have different rewards: the trainer would give all the same advantage. Or
            if one is there twice: two rollouts have the same id. Or if one is missing, or they are in several groups.
    """
    rollouts: dict[str, dict[tuple[str, int], Sample]] = {}
    for index, sample in enumerate(samples):
        rollout, segment = rollouts.setdefault(sample.trajectory_id, {}), (sample.context, sample.segment_index)
        if segment in rollout:
            raise InvalidSample(
                f"sample {index} is segment {segment[1]} of {segment[0]!r} in {sample.trajectory_id!r} a second time: "
                "rollouts need ids of their own (reset option `episode_id`)"
            )
        rollout[segment] = sample
    for name, rollout in rollouts.items():
        _check_rollout(name, list(rollout.values()))
    return [list(rollout.values()) for rollout in rollouts.values()]


def _check_rollout(name: str, rollout: Sequence[Sample]) -> None:
    rewards = {sample.context: sample.reward for sample in rollout}
    if len(set(rewards.values())) > 1:
        raise InvalidSample(
            f"the samples of {name!r} have rewards of their own ({rewards}), and the trainer knows one for all of "
            "a rollout: convert those of each context (each player) by themselves, as rollouts of their own"
        )
    groups = {sample.group_id for sample in rollout}
    if len(groups) > 1:
        raise InvalidSample(f"the samples of {name!r} are in several groups: {', '.join(sorted(map(repr, groups)))}")
    for context in rewards:
        own = [sample for sample in rollout if sample.context == context]
        if any(sample.n_segments != len(own) or not 0 <= sample.segment_index < len(own) for sample in own):
            raise InvalidSample(
                f"of {context!r} in {name!r} there are the segments {sorted(s.segment_index for s in own)}, but it has "
                f"{max(s.n_segments for s in own)}: convert all samples of a rollout together"
            )
