from typing import Any

import pytest
from trainers.episodes import all_kinds, copy_of, kept, refuses_every_defect, run_page, stripped
from trainers.test_foreign import A_LATER, A, B

from envsdk import Sample, Trajectory
from envsdk.credit import group_advantages
from envsdk.errors import InvalidSample
from envsdk.trainers.foreign import from_steps
from envsdk.trainers.prime_rl import TrainingSample, to_training_samples

STREAMS = ("mask", "logprobs", "temperatures", "advantages")


def obeys_prime_rl_s_rules(record: TrainingSample) -> None:
    """Every stream has the length of `token_ids`; types as in the struct."""
    length = len(record["token_ids"])
    assert length and all(len(record[name]) == length for name in STREAMS)
    assert set(map(type, record["token_ids"])) == {int}
    assert set(map(type, record["mask"])) <= {bool}
    for name in ("logprobs", "temperatures", "advantages"):
        assert set(map(type, record[name])) == {float}
    assert type(record["env_name"]) is str and record["env_name"]
    assert any(record["mask"])


def credited(trajectory: Trajectory, advantage: float = 0.5) -> list[Sample]:
    samples = trajectory.samples()
    for sample in samples:
        sample.advantage = advantage
    return samples


@pytest.mark.parametrize("trajectory", all_kinds(), ids=lambda trajectory: trajectory.env)
def test_every_sample_is_one_record_and_every_sampled_token_is_trained_once(trajectory: Trajectory):
    samples = credited(trajectory)
    records = to_training_samples(samples)
    assert len(records) == len(samples)
    for record, sample in zip(records, samples, strict=True):
        obeys_prime_rl_s_rules(record)
        assert record["token_ids"] == sample.tokens.tolist()
        assert record["logprobs"] == sample.logprobs.tolist()
        for trained, temperature, advantage in zip(
            record["mask"], record["temperatures"], record["advantages"], strict=True
        ):
            assert (temperature, advantage) == ((0.5, 0.5) if trained else (1.0, 0.0))
    assert sum(sum(record["mask"]) for record in records) == trajectory.sampled_tokens


def test_advantages_of_a_group_are_taken_as_they_are():
    samples = [copy_of(sample) for sample in [*kept().samples(), *stripped().samples()]]
    for sample in samples:
        sample.group_id = "g"
    records = to_training_samples(group_advantages(samples) or samples)
    assert {value for record in records for value in record["advantages"]} == {0.0}  # both were solved


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


def test_what_is_not_sound_is_refused():
    refuses_every_defect(to_training_samples)


def test_a_record_without_logprobs_or_advantage_is_refused():
    (sample,) = kept().samples()
    with pytest.raises(InvalidSample, match=r"sample 0, .* has no advantage"):
        to_training_samples([sample])
    sample.logprobs, sample.advantage = None, 1.0
    with pytest.raises(InvalidSample, match=r"sample 0, .* has no log-probabilities"):
        to_training_samples([sample])


def test_a_sample_of_temperature_0_is_refused_by_which_the_trainer_would_divide():
    sound, sample = credited(kept())[0], copy_of(credited(kept())[0])
    sample.temperature[1] = 0
    with pytest.raises(InvalidSample, match=r"sample 1, of trajectory .* was sampled at temperature 0, by which"):
        to_training_samples([sound, sample])


def test_no_samples_are_no_records_and_what_is_no_list_is_refused():
    assert to_training_samples([]) == []
    with pytest.raises(InvalidSample, match="samples is a Trajectory"):
        to_training_samples(kept())  # type: ignore[arg-type]


def test_the_code_of_its_page_runs():
    run_page("prime_rl")
