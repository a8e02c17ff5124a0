"""Samples of an episode with envsdk: from its trajectory, and from a log of full prompts as other systems write it."""

from benchmarks.contender import Repetition, contender
from benchmarks.logs import fields, is_sound, logged_steps
from envsdk.trainers.foreign import from_steps
from envsdk.trajectories._samples import Sample


def checked(size: str, samples: list[Sample]) -> None:
    """Check that every sampled token is trained once."""
    is_sound(size, sum(map(len, samples)), sum(int(sample.mask.sum()) for sample in samples))


@contender("samples", "envsdk", packages=("envsdk",))
def samples(size: str) -> Repetition:
    """`Trajectory.samples()`."""
    trajectory = from_steps(map(fields, logged_steps(size)))
    checked(size, trajectory.samples())

    def repetition() -> None:
        trajectory.samples()

    return repetition


@contender("samples", "envsdk, from full prompts", note="the log of full prompts that tinker's conversion gets")
def samples_from_prompts(size: str) -> Repetition:
    """`from_steps(log).samples()`."""
    steps = [fields(step) for step in logged_steps(size)]

    def repetition() -> None:
        from_steps(steps).samples()

    return repetition
