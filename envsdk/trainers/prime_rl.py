"""prime-rl: samples as its `TrainingSample` records, whose streams all have the length of the sequence.

Source: the public definition, `TrainingSample`. It has moved twice: it is in `prime_rl.transports.batch` now, was in
`prime_rl.transports.rollouts` in August 2026, and in `prime_rl.transport` before. The fields that are set here have
the same names and meanings in all three.
"""

from collections.abc import Iterable
from typing import TypedDict

from ..errors import InvalidSample
from ..trajectories.samples import Sample
from .capability import Capability
from .checks import checked
from .rows import advantages, logprobs, temperatures

CAPABILITY = Capability(
    "prime-rl",
    several_samples=True,
    loss_weight="Left out: its loss is a sum over tokens, divided by their number in the whole batch.",
)


class TrainingSample(TypedDict):
    """The fields of prime-rl's struct: `prime_rl.transports.batch.types.TrainingSample(**record)`."""

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    env_name: str
    advantages: list[float]


def to_training_samples(samples: Iterable[Sample], *, env_name: str | None = None) -> list[TrainingSample]:
    """Convert samples; each gives one record, none give none.

    prime-rl cuts what is longer than its trainer's sequence length, on the right and without a word: limit the episodes
    with `Limits(max_context_tokens=...)`.

    Args:
        samples: The samples, with log-probabilities and advantages.
        env_name: What the environment is called there; by default its id.

    Raises:
        InvalidSample: If a sample is not sound, has no log-probabilities or no advantage, or was sampled at
            temperature 0, by which prime-rl's trainer divides.
    """
    sound = checked(samples, advantage=True)
    hot = [temperatures(sample) for sample in sound]
    for index, (sample, temperature) in enumerate(zip(sound, hot, strict=True)):
        if not temperature.all():
            raise InvalidSample(
                f"sample {index}, of trajectory {sample.trajectory_id!r}, was sampled at temperature 0, by which "
                "prime-rl's trainer divides: sample at a positive one"
            )
    return [
        TrainingSample(
            token_ids=sample.tokens.tolist(),
            mask=sample.mask.tolist(),
            logprobs=logprobs(sample).tolist(),
            temperatures=temperature.tolist(),
            env_name=env_name or str(sample.metadata.get("env", "")),
            advantages=advantages(sample).tolist(),
        )
        for sample, temperature in zip(sound, hot, strict=True)
    ]
