"""The rules are those by which slime makes training data of its samples, said again."""

from collections.abc import Iterable
from typing import Any

import pytest
from trainers.episodes import (
    all_kinds,
    copy_of,
    delegated,
    grouped,
    kept,
    played,
    run_page,
    stripped,
    truncated,
)

from envsdk import Sample, Trajectory
from envsdk.errors import ConfigError, InvalidSample
from envsdk.trainers.slime import SlimeSample, to_slime_samples


def converted(
    samples: Iterable[Sample], first_rollout_id: int = 0, first_group_index: int = 0, **options: Any
) -> list[SlimeSample]:
    numbers = {"first_rollout_id": first_rollout_id, "first_group_index": first_group_index}
    return to_slime_samples(samples, **numbers, **options)


def obeys_slime_s_rules(record: SlimeSample) -> None:
    length = record["response_length"]
    assert 0 < length < len(record["tokens"])  # there is a prompt
    assert len(record["loss_mask"]) == len(record["rollout_log_probs"]) == length
    assert set(record["loss_mask"]) <= {0, 1} and sum(record["loss_mask"])
    assert all(p == 0.0 for p, mask in zip(record["rollout_log_probs"], record["loss_mask"], strict=True) if not mask)
    assert record["status"] in ("completed", "truncated")
    assert type(record["reward"]) is float
    assert all(type(version) is str for version in record["weight_versions"])


@pytest.mark.parametrize("trajectory", [*all_kinds()[:4]], ids=lambda trajectory: trajectory.env)
def test_records_are_the_samples_with_their_response_part(trajectory: Trajectory):
    records = converted(trajectory.samples())
    for record, sample in zip(records, trajectory.samples(), strict=True):
        obeys_slime_s_rules(record)
        start = len(sample) - record["response_length"]
        assert record["tokens"] == sample.tokens.tolist()
        assert [0] * start + record["loss_mask"] == sample.mask.tolist()
        assert [0.0] * start + record["rollout_log_probs"] == sample.logprobs.tolist()
        assert record["weight_versions"] == ["3"]
        assert record["metadata"]["context"] == sample.context
    assert sum(sum(record["loss_mask"]) for record in records) == trajectory.sampled_tokens


def test_samples_of_a_rollout_share_its_id_and_rollouts_of_a_task_their_group():
    samples = [copy_of(sample) for t in (stripped(), kept(), delegated()) for sample in t.samples()]
    for sample in samples[:7]:
        sample.group_id = "guess"
    records = converted(samples, first_rollout_id=10, first_group_index=3)
    assert [record["rollout_id"] for record in records] == [10] * 6 + [11] + [12] * 5
    assert [record["index"] for record in records] == [record["rollout_id"] for record in records]
    assert [record["group_index"] for record in records] == [3] * 7 + [4] * 5


def test_the_status_says_whether_the_rollout_was_cut_off():
    assert [record["status"] for record in converted([*kept().samples(), *truncated().samples()])] == [
        "completed",
        "truncated",
    ]


def test_players_with_rewards_of_their_own_are_refused_together():
    with pytest.raises(InvalidSample, match="rewards of their own"):
        converted(played().samples())
    assert converted(played().samples()[:1])[0]["reward"] == played().samples()[0].reward


def test_a_rollout_without_a_group_is_never_put_into_one_that_is_called_like_it():
    samples = [*grouped(stripped(), group_id=kept().id), *kept().samples()]
    assert [record["group_index"] for record in converted(samples)] == [0] * 6 + [1]


def test_numbers_have_to_be_given_so_that_rollouts_converted_one_by_one_stay_apart():
    records = [
        converted(trajectory.samples(), first_rollout_id=index, first_group_index=3)[0]
        for index, trajectory in enumerate([kept(), truncated()])
    ]
    assert [(record["rollout_id"], record["group_index"]) for record in records] == [(0, 3), (1, 3)]
    with pytest.raises(TypeError, match="missing 2 required keyword-only arguments"):
        to_slime_samples(kept().samples())  # type: ignore[call-arg]
    for value in (None, -1, 0.0, True, "0"):
        with pytest.raises(ConfigError, match=f"first_rollout_id is {value!r}; expected an integer of at least 0"):
            converted(kept().samples(), first_rollout_id=value)  # type: ignore[arg-type]


def test_no_samples_are_no_records():
    assert converted([]) == []


def test_the_code_of_its_page_runs():
    run_page("slime")
