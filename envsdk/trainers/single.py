"""For trainers that take one sample of a rollout: which one, and what is lost."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

import numpy as np

from ..errors import ConfigError, SingleSampleOnly
from ..trajectories.samples import Sample
from ..trajectories.trajectory import Trajectory

OnBreak: TypeAlias = Literal["raise", "last_segment", "drop"]
"""What a trainer of one sample per rollout does with a rollout of several: raise `SingleSampleOnly`; train the last
segment of the main context; or train nothing of it. Whether its reward still counts in its group's baseline then, the
trainer's page says."""


@dataclass(frozen=True, slots=True)
class Single:
    """The one sample of a rollout."""

    sample: Sample | None
    """The main context's; None if nothing of the rollout is trained."""
    dropped_share: float
    """The share of the rollout's sampled tokens that are not trained, from 0 to 1."""


def check_on_break(on_break: object) -> OnBreak:
    """Return the choice itself.

    Raises:
        ConfigError: If it is none.
    """
    if on_break not in get_args(OnBreak):
        raise ConfigError(f"on_break is {on_break!r}; expected one of {get_args(OnBreak)}")
    return cast("OnBreak", on_break)


def single_sample(trajectory: Trajectory, trainer: str, on_break: OnBreak = "raise") -> Single:
    """Choose the one sample of a rollout that a trainer takes.

    Args:
        trajectory: The rollout.
        trainer: What the trainer is called in the error.
        on_break: What to do where there are several samples, or one that is not the main context's.

    Raises:
        SingleSampleOnly: If there are several, or another context's, and `on_break` is `"raise"`.
        ConfigError: If `on_break` is something else.
    """
    check_on_break(on_break)
    samples = trajectory.samples()
    main = next(iter(trajectory.contexts), None)
    last = next((sample for sample in reversed(samples) if sample.context == main), None)
    if samples and (len(samples) > 1 or last is None):
        if on_break == "raise":
            raise SingleSampleOnly(trainer, trajectory.id, trajectory.breaks, len(samples))
        last = None if on_break == "drop" else last
    sampled = sum(step.stop - step.action_start for step in trajectory.steps if not trajectory.is_copied(step))
    trained = 0 if last is None else int(np.count_nonzero(last.mask))
    return Single(last, 1.0 - trained / sampled if sampled else 0.0)
