"""The check of many samples at once accepts what `Sample.validate` accepts, and nothing else."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainers.episodes import DEFECTS, all_kinds, copy_of, kept, stripped

from envsdk import Sample
from envsdk.errors import InvalidSample
from envsdk.trajectories import _soundness as soundness
from envsdk.trajectories._soundness import are_sound

EPISODE = stripped().samples()
ARRAYS = {
    "tokens": st.sampled_from([-1, 0, 5, 10**9]),
    "mask": st.booleans(),
    "logprobs": st.sampled_from([0.5, 0.0, -0.5, -np.inf, np.nan]),
    "step_ids": st.integers(-2, 3),
    "part_ids": st.integers(-2, 3),
    "step_rewards": st.sampled_from([0.0, 1.0, np.inf, np.nan]),
    "temperature": st.sampled_from([-1.0, 0.0, 1.0, np.nan]),
    "policy_version": st.integers(-2, 2),
}


def is_valid(sample: Sample) -> bool:
    try:
        sample.validate()
    except InvalidSample:
        return False
    return True


def test_the_samples_of_every_kind_of_episode_are_sound_together():
    for trajectory in all_kinds():
        samples = trajectory.samples()
        assert all(map(is_valid, samples))
        assert are_sound(samples)
    assert are_sound([])


@pytest.mark.parametrize("name", DEFECTS)
def test_one_sample_with_a_defect_among_sound_ones_is_found(name: str):
    sound = kept().samples()[0]
    sound.advantage = 1.0
    spoiled = copy_of(sound)
    DEFECTS[name][0](spoiled)
    assert not is_valid(spoiled)
    assert not are_sound([sound, spoiled, sound])


@given(st.data())
def test_samples_are_sound_together_if_each_of_them_is(data: Any):
    samples = [copy_of(sample) for sample in EPISODE]
    for _ in range(data.draw(st.integers(0, 3))):
        changed, name = data.draw(st.sampled_from(samples)), data.draw(st.sampled_from(sorted(ARRAYS)))
        array = getattr(changed, name)
        array[data.draw(st.integers(0, len(array) - 1))] = data.draw(ARRAYS[name])
    assert are_sound(samples) == all(map(is_valid, samples))


def test_samples_are_checked_in_groups_that_bound_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(soundness, "TOGETHER", len(EPISODE[0]) + 1)
    assert are_sound(EPISODE)
    spoiled = copy_of(EPISODE[-1])
    spoiled.mask[0] = True
    assert not are_sound([*EPISODE, spoiled])


def test_samples_of_which_some_have_no_logprobs_are_left_to_their_own_check():
    without = copy_of(EPISODE[0])
    without.logprobs = None
    assert is_valid(without)
    assert not are_sound([EPISODE[0], without])
    assert are_sound([without, without])
