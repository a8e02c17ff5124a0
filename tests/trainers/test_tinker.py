"""What becomes a datum, and what does not; `tests/peers/tinker` compares with the cookbook."""

import importlib.util
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from trainers.episodes import DEFECTS, all_kinds, copy_of, kept, refuses_every_defect, stripped, truncated

from envsdk import Sample, Trajectory
from envsdk.errors import InvalidSample
from envsdk.trainers.tinker import loss_fn_inputs, to_datums, with_logprobs


def convert(samples: Sequence[Sample]) -> list[Any]:
    """The datums, where tinker is installed; samples are checked before it is looked for."""
    for sample in samples:
        if isinstance(sample, Sample) and np.array_equal(np.unique(sample.temperature), [0.5]):
            sample.temperature[:] = 1.0  # as tinker takes them
    with suppress(ImportError):
        return to_datums(samples)
    return []


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


def test_no_defect_reaches_a_datum() -> None:
    assert len(DEFECTS) > 15
    refuses_every_defect(convert)


def test_a_sample_without_log_probabilities_is_refused() -> None:
    [sample] = with_advantage(kept())
    sample.logprobs = None
    with pytest.raises(InvalidSample, match=r"sample 0, .* has no log-probabilities"):
        convert([sample])


def test_a_sample_without_an_advantage_is_refused() -> None:
    [sample] = with_advantage(kept(), None)
    with pytest.raises(InvalidSample, match=r"sample 0, .* has no advantage"):
        convert([sample])


@pytest.mark.parametrize("trajectory", all_kinds())
def test_targets_are_the_tokens_one_later_and_observations_have_no_weight(trajectory: Trajectory) -> None:
    for sample in with_advantage(trajectory):
        inputs = loss_fn_inputs(sample)
        assert inputs.keys() == {"target_tokens", "logprobs", "advantages", "mask"}
        assert {name: array.dtype.name for name, array in inputs.items()} == {
            "target_tokens": "int64",
            **dict.fromkeys(("logprobs", "advantages", "mask"), "float32"),
        }
        np.testing.assert_array_equal(inputs["target_tokens"], sample.tokens[1:])
        np.testing.assert_array_equal(inputs["mask"], sample.mask[1:])
        np.testing.assert_array_equal(inputs["logprobs"], sample.logprobs[1:])  # type: ignore[index]
        np.testing.assert_array_equal(inputs["advantages"], 0.5 * sample.mask[1:])


def test_advantages_for_each_token_stay_what_they_are_where_the_mask_is_true() -> None:
    [sample] = with_advantage(kept())
    sample.advantage = np.arange(len(sample), dtype=np.float32)
    expected = np.where(sample.mask, sample.advantage, 0.0)[1:]
    np.testing.assert_array_equal(loss_fn_inputs(sample)["advantages"], expected)


def test_all_trained_tokens_of_an_episode_are_targets_once_whatever_was_rewritten() -> None:
    samples = with_advantage(stripped())
    assert len(samples) > 1
    trained = sum(loss_fn_inputs(sample)["mask"].sum() for sample in samples)
    assert trained == stripped().sampled_tokens


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
