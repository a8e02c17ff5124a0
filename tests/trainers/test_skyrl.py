"""The rules are those of SkyRL's `validate_generator_output` with step-wise trajectories, said again."""

import pytest
from trainers.episodes import (
    delegated,
    grouped,
    kept,
    stripped,
    truncated,
)

from envsdk.errors import InvalidSample
from envsdk.trainers.skyrl import GeneratorOutput, to_generator_output


def obeys_skyrl_s_rules(output: GeneratorOutput) -> None:
    rows = len(output["response_ids"])
    assert rows and all(len(column) == rows for column in output.values())
    for i in range(rows):
        lengths = {len(output[name][i]) for name in ("response_ids", "loss_masks", "rollout_logprobs")}
        assert len(lengths) == 1 and lengths.pop() > 0
        assert output["prompt_token_ids"][i]
        assert set(output["loss_masks"][i]) <= {0, 1} and sum(output["loss_masks"][i])
        assert type(output["rewards"][i]) is float
        assert output["stop_reasons"][i] in ("stop", "length")
    names = [name.to_string() for name in output["trajectory_ids"]]
    assert output["is_last_step"][-1] is True
    done: set[str] = set()
    for i, name in enumerate(names):
        assert name not in done  # those of one trajectory are adjacent
        is_last = i + 1 == rows or names[i + 1] != name
        assert output["is_last_step"][i] is is_last
        if is_last:
            done.add(name)


def test_the_last_row_of_a_rollout_is_marked_and_has_the_reward():
    output = to_generator_output(grouped(stripped(), kept(), delegated()))
    obeys_skyrl_s_rules(output)
    counts = [len(stripped().samples()), 1, 5]
    assert [i for i, is_last in enumerate(output["is_last_step"]) if is_last] == [5, 6, 11]
    assert output["rewards"] == [0.0] * (counts[0] - 1) + [1.0] + [1.0] + [0.0] * 4 + [1.0]
    assert [(t.instance_id, t.repetition_id) for t in output["trajectory_ids"]] == [
        ("task", repetition) for repetition, count in enumerate(counts) for _ in range(count)
    ]


def test_samples_of_rollouts_that_are_mixed_are_put_side_by_side():
    samples = grouped(stripped(), delegated())
    obeys_skyrl_s_rules(to_generator_output(samples[::2] + samples[1::2]))


def test_a_rollout_that_was_cut_off_stopped_for_its_length():
    assert to_generator_output(truncated().samples())["stop_reasons"] == ["length"]
    assert to_generator_output(kept().samples())["stop_reasons"] == ["stop"]


def test_a_rollout_without_a_group_is_never_put_into_one_that_is_called_like_it():
    samples = [*grouped(stripped(), group_id=kept().id), *kept().samples()]
    with pytest.raises(InvalidSample, match="has no group_id, and its id is that of a group"):
        to_generator_output(samples)
