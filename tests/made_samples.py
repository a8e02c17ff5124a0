"""Small samples with log-probabilities that a test chooses."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from envsdk import Sample


def sample(logprobs: Sequence[float] | None, *, mask: Sequence[bool], step_ids: Sequence[int], **more: Any) -> Sample:
    length = len(mask)
    steps = max(step_ids) + 1
    return Sample(
        tokens=np.arange(length, dtype=np.int32),
        mask=np.array(mask),
        logprobs=None if logprobs is None else np.array(logprobs, dtype=np.float32),
        step_ids=np.array(step_ids, dtype=np.int32),
        reward=0.0,
        step_rewards=np.zeros(steps, dtype=np.float32),
        temperature=np.ones(steps, dtype=np.float32),
        policy_version=np.full(steps, -1, dtype=np.int32),
        part_ids=np.array(step_ids, dtype=np.int32),
        context="main",
        role="main",
        parent=None,
        trajectory_id="t",
        segment_index=0,
        n_segments=1,
        loss_weight=1.0,
        stop_reason="terminated",
        truncated=False,
        **more,
    )


def two_steps(logprobs: Sequence[float] | None = (0, -1, -0.001, 0, -2, -0.5)) -> Sample:
    return sample(
        logprobs,
        mask=[False, True, True, False, True, True],
        step_ids=[-1, 0, 0, -1, 1, 1],
        metadata={"steps": [3, 4]},
    )


def one_step(logprobs: Sequence[float]) -> Sample:
    """A sample whose tokens are all trained but the first, which nothing predicts."""
    count = len(logprobs)
    return sample([0, *logprobs], mask=[False, *[True] * count], step_ids=[-1, *[0] * count])
