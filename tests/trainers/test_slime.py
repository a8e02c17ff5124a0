"""The rules are those by which slime makes training data of its samples, said again."""

from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainers.episodes import (
    copy_of,
    delegated,
    grouped,
    kept,
    stripped,
    truncated,
)

from envsdk import Sample
from envsdk.errors import ConfigError, InvalidSample
from envsdk.trainers.slime import SlimeSample, post_process_rewards, to_slime_samples


def converted(
    samples: Iterable[Sample], first_rollout_id: int = 0, first_group_index: int = 0, **options: Any
) -> list[SlimeSample]:
    numbers = {"first_rollout_id": first_rollout_id, "first_group_index": first_group_index}
    return to_slime_samples(samples, **numbers, **options)


def test_a_record_has_the_versions_of_the_weights_and_the_names_of_its_sample():
    for record, sample in zip(converted(delegated().samples()), delegated().samples(), strict=True):
        assert (record["weight_versions"], record["metadata"]["context"]) == (["3"], sample.context)
        assert type(record["reward"]) is float
        assert set(record["loss_mask"]) <= {0, 1} and record["loss_mask"][0] == 1


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


def test_a_rollout_without_a_group_is_never_put_into_one_that_is_called_like_it():
    samples = [*grouped(stripped(), group_id=kept().id), *kept().samples()]
    assert [record["group_index"] for record in converted(samples)] == [0] * 6 + [1]


def test_numbers_have_to_be_given_so_that_rollouts_converted_one_by_one_stay_apart():
    records = [
        converted(trajectory.samples(), first_rollout_id=index, first_group_index=3)[0]
        for index, trajectory in enumerate([kept(), truncated()])
    ]
    assert [(record["rollout_id"], record["group_index"]) for record in records] == [(0, 3), (1, 3)]
    with pytest.raises(ConfigError, match="needs first_rollout_id"):
        to_slime_samples(kept().samples())  # type: ignore[call-arg]
    for value in (None, -1, 0.0, True, "0"):
        with pytest.raises(ConfigError, match=f"first_rollout_id is {value!r}; expected an integer of at least 0"):
            converted(kept().samples(), first_rollout_id=value)  # type: ignore[arg-type]


# Advantages.


@dataclass
class Row:
    """What slime's own sample gives to the function that processes rewards."""

    group_index: Any
    rollout_id: Any
    reward: Any
    index: Any = 0

    def get_reward_value(self, args: Any) -> Any:
        return self.reward if not args.reward_key else self.reward[args.reward_key]


def slime_args(**options: Any) -> Any:
    defaults = {"advantage_estimator": "grpo", "rewards_normalization": True, "grpo_std_normalization": True}
    return SimpleNamespace(**{**defaults, "reward_key": None, **options})


def slime_s_own(args: Any, groups: list[list[float]]) -> list[float]:
    """What slime computes where each rollout has one row and groups are of one size, as it reads there."""
    rewards = np.array(groups)
    rewards = rewards - rewards.mean(axis=-1, keepdims=True)
    if args.grpo_std_normalization:
        rewards = rewards / (rewards.std(axis=-1, keepdims=True, ddof=1) + 1e-6)
    return rewards.ravel().tolist()


@given(
    groups=st.integers(2, 5).flatmap(
        lambda size: st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=size, max_size=size), min_size=1)
    ),
    rows=st.lists(st.integers(1, 4), min_size=50, max_size=50),
    is_scaled=st.booleans(),
)
def test_however_many_rows_a_rollout_has_its_advantage_is_slime_s_own_of_one_row_each(
    groups: list[list[float]], rows: list[int], is_scaled: bool
):
    args = slime_args(grpo_std_normalization=is_scaled)
    rollouts = [(group, reward) for group, rewards in enumerate(groups) for reward in rewards]
    batch = [
        Row(group, number, reward)
        for number, (group, reward) in enumerate(rollouts)
        for _ in range(rows[number % len(rows)])
    ]
    raw, advantages = post_process_rewards(args, batch)
    expected = slime_s_own(args, groups)
    assert raw == [row.reward for row in batch]
    assert advantages == pytest.approx([expected[row.rollout_id] for row in batch], abs=1e-9)


def test_a_rewritten_rollout_counts_once_in_its_group_and_groups_do_not_mix():
    batch = [Row(0, 7, 1.0), Row(0, 7, 1.0), Row(0, 7, 1.0), Row(0, 8, 0.0), Row(1, 9, 5.0), Row(1, 10, 5.0)]
    _, advantages = post_process_rewards(slime_args(grpo_std_normalization=False), batch)
    assert advantages == [0.5, 0.5, 0.5, -0.5, 0.0, 0.0]
    _, advantages = post_process_rewards(slime_args(), batch)
    assert advantages == pytest.approx([0.5**0.5] * 3 + [-(0.5**0.5)] + [0.0] * 2, rel=1e-5)


def test_the_records_of_real_rollouts_get_the_advantage_of_their_rollout():
    rollouts = [[copy_of(sample) for sample in trajectory.samples()] for trajectory in (stripped(), kept())]
    for reward, samples in enumerate(rollouts):
        for sample in samples:
            sample.group_id, sample.reward = "task", float(reward)
    records = converted([sample for samples in rollouts for sample in samples])
    batch = [Row(record["group_index"], record["rollout_id"], record["reward"]) for record in records]
    _, advantages = post_process_rewards(slime_args(grpo_std_normalization=False), batch)
    assert advantages == [-0.5] * 6 + [0.5]


def test_where_slime_s_sample_has_no_rollout_id_its_index_is_the_rollout():
    _, advantages = post_process_rewards(
        slime_args(grpo_std_normalization=False), [Row(0, None, 1.0, index=4), Row(0, None, 0.0, index=5)]
    )
    assert advantages == [0.5, -0.5]


@pytest.mark.parametrize("options", [{"rewards_normalization": False}, {"advantage_estimator": "ppo"}], ids=str)
def test_where_slime_does_not_center_rewards_they_stay_as_they_are(options: dict[str, Any]):
    batch = [Row(0, 1, 3.0), Row(0, 2, 1)]
    assert post_process_rewards(slime_args(**options), batch) == ([3.0, 1.0], [3.0, 1.0])


def test_reinforce_with_a_baseline_is_centered_and_not_scaled():
    args = slime_args(advantage_estimator="reinforce_plus_plus_baseline")
    assert post_process_rewards(args, [Row(0, 1, 3.0), Row(0, 2, 1.0)])[1] == [1.0, -1.0]


def test_a_reward_is_read_by_slime_s_reward_key():
    args = slime_args(reward_key="score", grpo_std_normalization=False)
    assert post_process_rewards(args, [Row(0, 1, {"score": 3.0}), Row(0, 2, {"score": 1.0})])[0] == [3.0, 1.0]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            [Row(0, 1, 1.0), Row(0, 1, 2.0)],
            "sample 1 of rollout 1 has the reward 2.0, but another sample of this rollout has 1.0",
        ),
        ([Row(0, 1, 1.0), Row(1, 1, 1.0)], "sample 1 of rollout 1 is in group 1"),
        ([Row(None, 1, 1.0)], "sample 0 has the group_index None"),
        ([Row(0, None, 1.0, index=None)], "sample 0 has the rollout_id None"),
        ([Row(0, 1, None)], "rewards of slime's samples are .None.; expected numbers"),
        ([Row(0, 0, 1.0), Row(0, 1, float("nan"))], r"rewards of slime's samples\[1\] is nan"),
        ([Row(0, 1, {"score": 1.0})], "rewards of slime's samples are .*; expected numbers"),
        ([Row(0, 1, True)], "a reward of slime's samples is True or False"),
    ],
    ids=str,
)
def test_rewards_that_have_no_baseline_are_refused(batch: list[Row], message: str):
    with pytest.raises(InvalidSample, match=message):
        post_process_rewards(slime_args(), batch)


def test_no_samples_have_no_rewards():
    assert post_process_rewards(slime_args(), []) == ([], [])
