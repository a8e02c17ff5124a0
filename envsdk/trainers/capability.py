"""The description of a trainer that each adapter declares."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capability:
    """What a trainer accepts.

    Attributes:
        trainer: The name of the trainer.
        several_samples: Whether a rollout may give several samples.
        loss_weight: How the adapter treats `Sample.loss_weight`, and why. A loss that is averaged over samples needs
            it; a loss that is summed over tokens must not use it.
    """

    trainer: str
    several_samples: bool
    loss_weight: str
