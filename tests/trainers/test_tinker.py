"""What becomes a datum, and what does not; `tests/peers/tinker` compares with the cookbook."""

import importlib.util
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from trainers.episodes import all_kinds, copy_of, kept, truncated

from envsdk import Sample, Trajectory
from envsdk.errors import InvalidSample
from envsdk.trainers.tinker import loss_fn_inputs, to_datums, with_logprobs


def with_advantage(trajectory: Trajectory, advantage: Any = 0.5) -> list[Sample]:
    samples = [copy_of(sample) for sample in trajectory.samples()]
    for sample in samples:
        sample.advantage = advantage
    return samples


def rollout_of(trajectory: Trajectory, change: int = 0) -> Any:
    """What the cookbook would have recorded of an episode, as far as it is read."""
    transitions = [
        SimpleNamespace(ac=SimpleNamespace(tokens=(action + change).tolist(), maybe_logprobs=[-0.5] * len(action)))
        for _, _, action in trajectory.prompts()
    ]
    return SimpleNamespace(transitions=transitions)


def test_samples_are_checked_before_tinker_is_looked_for() -> None:
    (sample,) = with_advantage(kept())
    for spoiled, message in (
        (replace(sample, logprobs=None), "no log-probabilities"),
        (replace(sample, advantage=None), "no advantage"),
        (replace(sample, mask=sample.mask[1:]), "mask has shape"),
        (sample, r"at temperature 0\.5, but the trainer's is 1"),
    ):
        with pytest.raises(InvalidSample, match=f"sample 0, .*{message}"):
            to_datums([spoiled])


def test_advantages_for_each_token_stay_what_they_are_where_the_mask_is_true() -> None:
    [sample] = with_advantage(kept())
    sample.advantage = np.arange(len(sample), dtype=np.float32)
    expected = np.where(sample.mask, sample.advantage, 0.0)[1:]
    inputs = loss_fn_inputs(sample)
    np.testing.assert_array_equal(inputs["advantages"], expected)
    types = {name: array.dtype.name for name, array in inputs.items()}
    assert types == {"target_tokens": "int64", **dict.fromkeys(("logprobs", "advantages", "mask"), "float32")}


@pytest.mark.parametrize("trajectory", all_kinds())
def test_log_probabilities_come_from_the_cookbooks_record(trajectory: Trajectory) -> None:
    before = trajectory.to_json()
    samples = with_logprobs(trajectory, rollout_of(trajectory)).samples()
    for sample in samples:
        sample.validate()
        np.testing.assert_array_equal(sample.logprobs, np.where(sample.mask, -0.5, 0.0))
    assert trajectory.to_json() == before


def test_a_record_of_another_episode_is_refused() -> None:
    with pytest.raises(InvalidSample, match="not of the same episode"):
        with_logprobs(kept(), rollout_of(kept(), change=1))
    with pytest.raises(InvalidSample, match="not of the same episode"):
        with_logprobs(kept(), rollout_of(truncated()))


@pytest.mark.skipif(importlib.util.find_spec("tinker") is not None, reason="tinker is installed")
def test_without_tinker_the_error_says_what_to_install() -> None:
    samples = with_advantage(kept())
    for sample in samples:
        sample.temperature[:] = 1.0
    with pytest.raises(ImportError, match=r"tinker is not installed; see docs/trainers/tinker.md"):
        to_datums(samples)
