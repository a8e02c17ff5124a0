"""Our contenders of the row about samples run at its quick size, and make the samples of the rules of trainers."""

import pytest

from benchmarks.contender import SetUp
from benchmarks.contenders.envsdk.merging import continued, interleaved
from benchmarks.contenders.envsdk.samples import samples, samples_from_prompts
from benchmarks.logs import SIZES, fields, logged_steps
from benchmarks.trajectory_rows import SAMPLES
from envsdk.trainers.foreign import from_steps


@pytest.mark.full
@pytest.mark.parametrize("set_up", [samples, samples_from_prompts])
def test_our_contenders_of_samples_run(set_up: SetUp):
    for size in SAMPLES.quick_sizes:
        assert set_up(size)() is None  # its CPU time is the figure


@pytest.mark.parametrize("size", SIZES)
def test_our_samples_are_those_of_prime_rls_rule(size: str):
    steps = logged_steps(size, steps=24, tokens=5)
    ours, theirs = from_steps(map(fields, steps)).samples(), interleaved(steps)
    assert [sample.tokens.tolist() for sample in ours] == [one.token_ids for one in theirs]
    assert [sample.mask.tolist() for sample in ours] == [one.mask for one in theirs]
    assert [sample.logprobs.tolist() for sample in ours] == [one.logprobs for one in theirs]


def test_our_samples_of_one_agent_are_those_of_slimes_rule():
    steps = logged_steps("1 agent", steps=24, tokens=5)
    [ours], [theirs] = from_steps(map(fields, steps)).samples(), continued(steps)
    assert ours.tokens.tolist() == theirs.tokens
    assert ours.mask[-theirs.response_length :].tolist() == list(map(bool, theirs.loss_mask))
