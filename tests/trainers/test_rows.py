"""What records of whole rollouts have in common: SkyRL's and slime's are made of the same groups of samples."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import pytest
from trainers.episodes import copy_of, grouped, kept, refuses_every_defect, stripped

from envsdk.errors import InvalidSample
from envsdk.trainers.skyrl import to_generator_output
from envsdk.trainers.slime import to_slime_samples

Convert: TypeAlias = Callable[..., Any]
CONVERTERS = {
    "skyrl": to_generator_output,
    "slime": partial(to_slime_samples, first_rollout_id=0, first_group_index=0),
}


@pytest.fixture(params=CONVERTERS)
def convert(request: pytest.FixtureRequest) -> Convert:
    return CONVERTERS[request.param]


def test_two_rollouts_of_one_id_are_refused(convert: Convert):
    with pytest.raises(InvalidSample, match=r"sample 1 is segment 0 of context 'main' of .* for the second time"):
        convert([*kept().samples(), *kept().samples()])


def test_what_is_not_sound_is_refused(convert: Convert):
    refuses_every_defect(convert)


def test_a_sample_without_logprobs_is_refused(convert: Convert):
    (sample,) = map(copy_of, kept().samples())
    sample.logprobs = None
    with pytest.raises(InvalidSample, match="no log-probabilities"):
        convert([sample])


@pytest.mark.parametrize("missing", [0, 2, 5])
def test_a_rollout_that_lacks_a_sample_is_refused(convert: Convert, missing: int):
    samples = [*stripped().samples(), *kept().samples()]
    assert samples[0].n_segments == 6
    del samples[missing]
    with pytest.raises(
        InvalidSample,
        match=r"context 'main' of trajectory 'strip-0-.*' has 6 segments, but .* the segments \[.*\]: convert",
    ):
        convert(samples)


def test_a_rollout_whose_samples_are_in_several_groups_is_refused(convert: Convert):
    samples = grouped(stripped())
    samples[2].group_id = "another"
    with pytest.raises(InvalidSample, match=r"are in several groups: .*'another', .*'task'"):
        convert(samples)


def test_what_was_not_scored_or_sampled_at_another_temperature_is_refused(convert: Convert):
    (sample,) = map(copy_of, kept().samples())
    samples = [sample]
    assert convert(samples)
    assert convert(samples, temperature=0.5)
    with pytest.raises(InvalidSample, match=r"sample 0, .* sampled at temperature 0\.5, but the trainer's is 1"):
        convert(samples, temperature=1.0)
    sample.metadata["is_scored"] = False
    with pytest.raises(InvalidSample, match=r"sample 0, .* it was not scored"):
        convert(samples)


def test_what_is_no_list_of_samples_is_refused(convert: Convert):
    for value in (None, kept().samples()[0], kept()):
        with pytest.raises(InvalidSample, match=f"samples is a {type(value).__name__}; expected a list of samples"):
            convert(value)  # type: ignore[arg-type]
