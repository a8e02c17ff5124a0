"""The batch of tinker's trainer: a list of `Datum`, which its server lays out."""

import torch
from tinker_cookbook.rl.data_processing import assemble_training_data
from tinker_cookbook.rl.types import TrajectoryGroup

from benchmarks.contender import NotMeasured, Repetition, contender
from benchmarks.groups import PROMPTS, REPLIES, replies
from benchmarks.logs import LoggedStep

from .samples import PACKAGES, trajectory_of


@contender("batches", "tinker-cookbook", packages=PACKAGES, note="`assemble_training_data`: a list of `Datum`")
def batches(size: str) -> Repetition:
    """Assemble the data of 64 groups of 8 trajectories."""
    if size != "packed":
        raise NotMeasured(f"has no {size} batch: its server lays out the list of `Datum`")
    steps = [LoggedStep(0, [0], one.prompt, one.reply, one.logprobs) for one in replies()]
    groups = [
        TrajectoryGroup(
            [trajectory_of([step]) for step in steps[first : first + REPLIES]], [0.0] * REPLIES, [{}] * REPLIES
        )
        for first in range(0, PROMPTS * REPLIES, REPLIES)
    ]
    advantages = [torch.full((REPLIES,), 0.5) for _ in groups]

    def repetition() -> None:
        assemble_training_data(groups, advantages, include_provenance=False)

    return repetition
