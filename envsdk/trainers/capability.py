"""What a trainer takes, as each adapter says it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capability:
    """What a trainer takes."""

    trainer: str
    several_samples: bool
    """Whether a rollout may give several records."""
    loss_weight: str
    """What becomes of `Sample.loss_weight`, and why: where a loss is averaged per record it is needed, where it is
    summed over tokens it must not be there."""
