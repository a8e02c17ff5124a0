"""`trajectory_to_data` of the cookbook, which its training loop calls for each trajectory."""

import tinker
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.types import Trajectory, Transition

from benchmarks.contender import Repetition, contender
from benchmarks.logs import LoggedStep, is_sound, logged_steps

PACKAGES = ("tinker", "tinker-cookbook")


def trajectory_of(steps: list[LoggedStep]) -> Trajectory:
    """Return what the cookbook's rollout would have recorded."""
    transitions = [
        Transition(
            ob=tinker.ModelInput.from_ints(step.prompt),
            ac=TokensWithLogprobs(step.action, step.logprobs, "stop"),
            reward=0.0,
            episode_done=step is steps[-1],
        )
        for step in steps
    ]
    return Trajectory(transitions=transitions, final_ob=tinker.ModelInput.empty())


@contender(
    "samples",
    "tinker-cookbook",
    packages=PACKAGES,
    note="without provenance, its faster mode; it does not look back, so 8 agents that take turns give a datum for "
    "each step",
)
def samples(size: str) -> Repetition:
    """`trajectory_to_data(trajectory, advantage, include_provenance=False)`."""
    trajectory = trajectory_of(logged_steps(size))
    data = trajectory_to_data(trajectory, 0.5, include_provenance=False)
    trained = sum(int(sum(datum.loss_fn_inputs["mask"].tolist())) for datum in data)
    is_sound(size, sum(datum.model_input.length + 1 for datum in data), trained)

    def repetition() -> None:
        trajectory_to_data(trajectory, 0.5, include_provenance=False)

    return repetition
