"""What becomes an output of an agent loop, and what does not; `tests/peers/verl` runs the loop in verl's workers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from trainers.episodes import (
    all_kinds,
    copy_of,
    delegated,
    guessed,
    kept,
    played,
    stripped,
)

from envsdk import Limits, Sample, Trajectory, make, rollout
from envsdk.errors import EpisodeError, InvalidSample
from envsdk.trainers.verl import to_outputs, untrained_output

LENGTHS = {"prompt_length": 1000, "response_length": 5000}


def convert(samples: Sequence[Sample], **options: Any) -> list[dict[str, Any]]:
    return to_outputs(samples, **{**LENGTHS, **options})


def test_a_sample_without_log_probabilities_is_refused_where_verl_takes_them() -> None:
    sample = copy_of(kept().samples()[0])
    sample.logprobs = None
    with pytest.raises(InvalidSample, match=r"sample 0, .* has no log-probabilities"):
        convert([sample])
    [output] = convert([sample], logprobs=False)
    assert output["response_logprobs"] is None


@pytest.mark.parametrize("trajectory", [one for one in all_kinds() if one is not played()])
def test_an_output_is_its_sample_cut_before_the_first_trained_token(trajectory: Trajectory) -> None:
    samples = trajectory.samples()
    for sample, output in zip(samples, convert(samples), strict=True):
        start = len(output["prompt_ids"])
        assert [*output["prompt_ids"], *output["response_ids"]] == sample.tokens.tolist()
        assert output["response_mask"] == sample.mask[start:].tolist()
        assert output["response_mask"][0] == output["response_mask"][-1] == 1
        np.testing.assert_array_equal(np.float32(output["response_logprobs"]), sample.logprobs[start:])  # type: ignore[index]
        assert output["reward_score"] == trajectory.reward
        assert output["extra_fields"]["turn_scores"] == sample.step_rewards.tolist()
        assert output["extra_fields"]["loss_weight"] == sample.loss_weight


def test_a_prefix_longer_than_a_prompt_begins_the_response_untrained() -> None:
    sample = stripped().samples()[-1]
    start = int(sample.mask.argmax())
    [output] = convert([sample], prompt_length=start - 10)
    assert len(output["prompt_ids"]) == start - 10
    assert output["response_mask"][:11] == [0] * 10 + [1]
    assert output["response_logprobs"][:10] == [0.0] * 10


def test_a_response_that_is_too_long_is_refused_and_never_cut() -> None:
    [sample] = kept().samples()
    length = len(sample) - int(sample.mask.argmax())
    assert len(convert([sample], response_length=length)) == 1
    with pytest.raises(InvalidSample, match=rf"sample 0, .* a response of {length} .*max_context_tokens={length - 1}"):
        convert([sample], response_length=length - 1)


def test_all_outputs_have_the_same_extra_fields() -> None:
    outputs = [
        *convert(delegated().samples()),
        *convert(stripped().samples()),
        untrained_output(kept(), prompt_length=9),
    ]
    assert len({frozenset(output["extra_fields"]) for output in outputs}) == 1
    assert len({frozenset(output) for output in outputs}) == 1
    assert outputs[0]["extra_fields"].keys() >= {"turn_scores", "tool_rewards", "min_global_steps", "max_global_steps"}


def test_the_versions_of_the_weights_are_those_of_the_sample() -> None:
    sample = copy_of(kept().samples()[0])
    unknown = [None] * (len(sample.temperature) - 2)
    sample.extra = {"min_global_steps": [*unknown, 3, 2], "max_global_steps": [*unknown, 4, 5]}
    [output] = convert([sample])
    assert output["extra_fields"]["min_global_steps"] == 2
    assert output["extra_fields"]["max_global_steps"] == 5
    [output] = convert(kept().samples())
    assert output["extra_fields"]["min_global_steps"] is None


def test_what_is_not_trained_has_its_first_prompt_with_mask_0_and_its_reward() -> None:
    trajectory = guessed()
    output = untrained_output(trajectory, prompt_length=20)
    first = next(trajectory.prompts()).prompt.tolist()
    assert [*output["prompt_ids"], *output["response_ids"]] == first[-21:]
    assert output["response_mask"] == [0]
    assert output["response_logprobs"] == [0.0]
    assert output["reward_score"] == trajectory.reward
    assert output["extra_fields"]["dropped_share"] == 1.0


def test_an_episode_without_a_prompt_is_refused() -> None:
    trajectory = rollout(make("envsdk/GuessNumber-v1", limits=Limits(max_context_tokens=3)), seed=0)
    with pytest.raises(EpisodeError, match=r"ended \((max_context_tokens|context_full)\) with no reply"):
        untrained_output(trajectory, prompt_length=20)
