from typing import Any

import pytest
from trainers.episodes import copy_of, kept
from trainers.test_foreign import A_LATER, A, B

from envsdk import Sample, Trajectory
from envsdk.errors import InvalidSample
from envsdk.trainers.foreign import from_steps
from envsdk.trainers.prime_rl import to_training_samples


def credited(trajectory: Trajectory, advantage: float = 0.5) -> list[Sample]:
    samples = trajectory.samples()
    for sample in samples:
        sample.advantage = advantage
    return samples


def test_temperatures_and_advantages_are_those_of_trained_tokens():
    for record in to_training_samples(credited(kept())):
        for trained, *found in zip(record["mask"], record["temperatures"], record["advantages"], strict=True):
            assert found == ([0.5, 0.5] if trained else [1.0, 0.0])
        types = {name: set(map(type, record[name])) for name in ("token_ids", "mask", "logprobs", "temperatures")}
        assert types == {"token_ids": {int}, "mask": {bool}, "logprobs": {float}, "temperatures": {float}}


def test_the_name_of_the_environment_may_be_given():
    assert to_training_samples(credited(kept()), env_name="guess")[0]["env_name"] == "guess"
    assert to_training_samples(credited(kept()))[0]["env_name"] == "GuessNumber"


@pytest.mark.parametrize(
    ("steps", "masks"),
    [
        ([A], ["00011"]),
        ([A, A_LATER], ["0001101"]),
        ([A, B], ["00011", "00011"]),
        ([A, B, A_LATER], ["0001101", "00011"]),
        ([A, ([1, 2], [12])], ["00011", "001"]),
        ([A, A], ["00011", "00011"]),
        ([], []),
    ],
)
def test_logs_merge_as_prime_rl_merges_them(steps: list[Any], masks: list[str]):
    trajectory = from_steps([(*step, [-1.0] * len(step[1])) for step in steps])
    records = to_training_samples(credited(trajectory))
    assert ["".join(str(int(m)) for m in record["mask"]) for record in records] == masks


def test_a_sample_of_temperature_0_is_refused_by_which_the_trainer_would_divide():
    sound, sample = credited(kept())[0], copy_of(credited(kept())[0])
    sample.temperature[1] = 0
    with pytest.raises(InvalidSample, match=r"sample 1, of trajectory .* was sampled at temperature 0, by which"):
        to_training_samples([sound, sample])
