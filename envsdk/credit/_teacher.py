"""A teacher that sees the whole past, for students whose context was rewritten."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..diagnostics._history_gap import History, Renderers, episodes_of, name_of, past, replies_of, reply_logprobs
from ..diagnostics._inputs import valid_samples
from ..errors import ConfigError, InvalidSample
from ..rendering._vision import Vision
from ..trajectories._samples import Sample
from ..trajectories._trajectory import Trajectory


def add_teacher(
    samples: Sequence[Sample],
    model: Any,
    trajectories: Trajectory | Sequence[Trajectory],
    history: History = "keep",
    *,
    renderer: Renderers | None = None,
    temperature: float | None = None,
    vision: Vision | None = None,
) -> list[Sample]:
    """Add the log-probabilities of a teacher that sees the whole past: the same weights teach the compacted context.

    The teacher sees each episode under another history policy (`Trajectory.under`), by default all of it, also what the
    model folded. Its log-probabilities are aligned with the sampled tokens reply by reply. With them, the reverse KL of
    on-policy distillation is `Sample.logprobs - Sample.reference_logprobs`.

    Args:
        samples: The samples of the trajectories.
        model: A causal language model of transformers: the weights that are trained, or others.
        trajectories: The episodes that the samples are from.
        history: The history policy under which the teacher sees them.
        renderer: The episodes' renderer, or renderers by role; see `Trajectory.under`.
        temperature: The temperature by which logits are divided; see `add_reference`.
        vision: The image processor; see `add_reference`.

    Returns:
        New samples in the same order, with `reference_logprobs`: float32 of shape (L,), 0.0 where mask is False, and
        with the name of the history policy as `metadata["teacher"]`, by which the viewer shows the history gap. A token
        that the teacher's past does not have (a summary, which is not requested there) has the sampler's
        log-probability: it teaches nothing.

    Raises:
        ConfigError: If a sample is of none of the trajectories.
        CannotReplay: If an episode cannot be replayed; see `Trajectory.under`.
        InvalidSample: If a sample is not valid, or has no log-probabilities where the teacher has none.
        MissingPackage: If torch is not installed.
    """
    checked = valid_samples(samples)
    episodes = {episode.id: episode for episode in episodes_of(trajectories)}
    wanted = {sample.trajectory_id for sample in checked}
    if missing := wanted - episodes.keys():
        raise ConfigError(f"trajectories lacks {min(missing)!r}, of which there is a sample: give all episodes")
    teachers = {
        name: reply_logprobs(past(episodes[name], history, renderer), model, temperature=temperature, vision=vision)
        for name in sorted(wanted)
    }
    replies = {name: replies_of(episodes[name]) for name in wanted}
    found: list[Sample] = []
    for index, sample in enumerate(checked):
        teacher = teachers[sample.trajectory_id]
        logprobs = np.full(len(sample), np.nan)
        indices: list[int] = sample.metadata["steps"]
        for place, at in enumerate(indices):
            own = np.flatnonzero(sample.step_ids == place)
            values = teacher.get(replies[sample.trajectory_id][at])
            if values is not None:
                logprobs[own] = values[: len(own)]
        unknown = sample.mask & np.isnan(logprobs)
        if unknown.any():
            if sample.logprobs is None:
                raise InvalidSample(
                    f"sample {index}, of trajectory {sample.trajectory_id!r}: the teacher does not have "
                    f"{np.count_nonzero(unknown)} of its tokens, and the policy gave no log-probabilities for them: "
                    "sample with a policy that does"
                )
            logprobs[unknown] = sample.logprobs[unknown]
        teaching = np.where(sample.mask, np.minimum(logprobs, 0), 0).astype(np.float32)
        metadata = {**sample.metadata, "teacher": name_of(history)}
        found.append(replace(sample, reference_logprobs=teaching, metadata=metadata))
    return found
