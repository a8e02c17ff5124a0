"""The choice of one sample, for trainers that take one sample of a rollout."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

import numpy as np

from ..errors import ConfigError, SingleSampleOnly
from ..trajectories._samples import Sample
from ..trajectories._trajectory import Trajectory

OnBreak: TypeAlias = Literal["raise", "last_segment", "drop"]
"""The treatment of a rollout of several samples if the trainer takes one: `"raise"` raises `SingleSampleOnly`,
`"last_segment"` trains the last segment of the main context, and `"drop"` trains nothing of the rollout. The page of
the trainer specifies whether the reward of a dropped rollout still counts in the baseline of its group."""


@dataclass(frozen=True, slots=True)
class SingleSample:
    """The one sample of a rollout that is trained.

    Attributes:
        sample: A sample of the main context; None if nothing of the rollout is trained.
        dropped_share: The share of the rollout's sampled tokens that are not trained, from 0 to 1. Tokens that the
            environment left out of training (`Turn(mask=)`) do not count.
    """

    sample: Sample | None
    dropped_share: float


def check_on_break(on_break: object, *others: str) -> OnBreak:
    """Return `on_break` after checking it.

    Args:
        on_break: The choice.
        others: What else the adapter accepts, for the error message.

    Raises:
        ConfigError: If it is not one of the choices of `OnBreak`.
    """
    if on_break not in get_args(OnBreak):
        raise ConfigError(f"on_break is {on_break!r}; expected one of {(*get_args(OnBreak), *others)}")
    return cast("OnBreak", on_break)


def single_sample(trajectory: Trajectory, trainer: str, on_break: OnBreak = "raise") -> SingleSample:
    """Choose the one sample of a rollout that a trainer takes.

    Args:
        trajectory: The rollout.
        trainer: The name of the trainer, for the error message.
        on_break: What to do if the rollout has several samples, or its only sample is not of the main context.

    Raises:
        SingleSampleOnly: In that case, if `on_break` is `"raise"`.
        ConfigError: If `on_break` is invalid.
    """
    check_on_break(on_break)
    samples = trajectory.samples()
    main = next(iter(trajectory.contexts), None)
    last = next((sample for sample in reversed(samples) if sample.context == main), None)
    if samples and (len(samples) > 1 or last is None):
        if on_break == "raise":
            raise SingleSampleOnly(trainer, trajectory.id, trajectory.breaks, len(samples))
        last = None if on_break == "drop" else last
    trainable = trainable_tokens(trajectory)
    trained = 0 if last is None else int(np.count_nonzero(last.mask))
    return SingleSample(last, 1.0 - trained / trainable if trainable else 0.0)


def trainable_tokens(trajectory: Trajectory) -> int:
    """Return the number of sampled tokens of a rollout, without those that `Turn(mask=)` left out of training."""
    steps = [step for step in trajectory.steps if not trajectory.is_copied(step)]
    runs = [run for step in steps for run in step.runs(step.action_start, step.stop)]
    return sum(stop - start for start, stop, is_masked in runs if not is_masked)
