"""The description of a trainer that each adapter declares."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capability:
    """The capabilities of a trainer.

    Attributes:
        trainer: The name of the trainer.
        several_samples: Whether a rollout may give several samples.
        loss_weight: How the adapter treats `Sample.loss_weight`, and why. A loss that is averaged over samples needs
            it; a loss that is summed over tokens must not use it.
        images: What the trainer gets of the images of a sample, or why samples with images are refused.
    """

    trainer: str
    several_samples: bool
    loss_weight: str
    images: str = "Refused: the adapter passes tokens only."
