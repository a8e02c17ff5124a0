"""Side data in batches, tables, and the records of trainers that replay the experts of the sampler."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from core.test_side_data import experts_of, guessed

from envsdk import Sample
from envsdk.credit import group_advantages
from envsdk.errors import InvalidSample
from envsdk.policies import Aligned, Ragged
from envsdk.trainers.plain import collate
from envsdk.trainers.prime_rl import to_training_samples
from envsdk.trainers.skyrl import to_generator_output
from envsdk.trainers.slime import to_slime_samples
from envsdk.trainers.verl import to_outputs


def samples_of(*seeds: int) -> list[Sample]:
    samples = [sample for seed in seeds for sample in guessed(seed=seed).samples()]
    return group_advantages([replace(sample, group_id="g") for sample in samples])


def experts_in(sample: Sample) -> np.ndarray:
    return experts_of(sample.tokens)[:-1]


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_batch_has_the_side_data_that_is_requested(layout: Any):
    samples = samples_of(0, 1)
    assert "extra" not in collate(samples, layout=layout)
    batch = collate(samples, layout=layout, extra=["routed_experts", "sampling_mask", "entropy", "bytes"])
    shape = batch["tokens"].shape
    experts, masks = batch["extra"]["routed_experts"], batch["extra"]["sampling_mask"]
    assert experts.shape == (*shape, 2, 3) and experts.dtype == np.int32
    assert masks["lengths"].shape == batch["extra"]["entropy"].shape == shape
    lists = Ragged(masks["values"], masks["lengths"].ravel()).lists()
    for index, sample in enumerate(samples):
        own = batch["sample_ids"] == index
        assert (experts[own][:-1] == experts_in(sample)).all()
        given = sample.extra["sampling_mask"]
        assert isinstance(given, Ragged)
        for at, items in zip(np.flatnonzero(own), given.lists(), strict=True):
            assert lists[at].tolist() == items.tolist()
    padding = batch["sample_ids"] == -1
    assert (experts[padding] == -1).all() and not masks["lengths"][padding].any()
    assert np.isnan(batch["extra"]["entropy"][padding]).all() and (batch["extra"]["bytes"][padding] == 255).all()


def test_a_batch_of_what_only_some_samples_have_is_refused():
    samples = samples_of(0)
    with pytest.raises(InvalidSample, match=r"sample 0, of .*extra\['top_k'\] is missing"):
        collate(samples, extra=["top_k"])
    other = replace(samples[1], extra={"bytes": Aligned(np.zeros(len(samples[1]), np.int8))})
    with pytest.raises(InvalidSample, match=r"sample 1, of .*of one kind, type and shape"):
        collate([samples[0], other], extra=["bytes"])
    listed = replace(samples[0], extra={"images": [None] * len(samples[0].temperature)})
    with pytest.raises(InvalidSample, match="expected a row for each token"):
        collate([listed], extra=["images"])


def test_trainers_that_replay_experts_get_those_of_all_tokens_but_the_last():
    samples = samples_of(0)
    slime = to_slime_samples(samples, first_rollout_id=0, first_group_index=0, routed_experts=True)
    skyrl = to_generator_output(samples, routed_experts=True).get("rollout_expert_indices", [])
    verl = to_outputs(samples, prompt_length=10**4, response_length=10**4, routed_experts=True)
    prime = to_training_samples(samples, routed_experts=True)
    for index, sample in enumerate(samples):
        of_32_bits = (slime[index].get("rollout_routed_experts"), skyrl[index])
        for dtype, rows in [*((np.int32, each) for each in of_32_bits), (np.int16, verl[index]["routed_experts"])]:
            assert isinstance(rows, np.ndarray) and rows.dtype == dtype
            assert rows.shape == (len(sample) - 1, 2, 3) and (rows == experts_in(sample)).all()
        record = prime[index].get("routed_experts")
        assert record is not None
        rows = np.frombuffer(record.data, record.dtype).reshape(record.shape)
        assert (rows[:-1] == experts_in(sample)).all() and not rows[-1].any() and len(rows) == len(sample)
    assert "routed_experts" not in to_training_samples(samples)[0]


def test_trainers_get_the_ids_that_each_trained_token_was_sampled_from():
    """In the forms that SkyRL 0.4.0, slime 0.3.1 and prime-rl of September 2026 define."""
    samples = samples_of(0)
    slime = to_slime_samples(samples, first_rollout_id=0, first_group_index=0, sampling_mask=True)
    skyrl = to_generator_output(samples, sampling_top_k=3)
    prime = to_training_samples(samples, sampling_mask=True)
    for index, sample in enumerate(samples):
        expected = [[t, 7] if trained else [] for t, trained in zip(sample.tokens, sample.mask, strict=True)]
        response = expected[-slime[index]["response_length"] :]
        rows = skyrl.get("rollout_sample_support", [])[index]
        assert rows.dtype == np.int32 and rows.tolist() == [[*ids, -1, -1, -1][:3] for ids in response]
        ids, offsets = slime[index].get("rollout_top_p_token_ids"), slime[index].get("rollout_top_p_token_offsets")
        assert ids is not None and offsets is not None
        assert [ids[a:b] for a, b in itertools.pairwise(offsets)] == response
        mask = prime[index].get("sampling_mask")
        assert mask is not None
        values, counts = (np.frombuffer(each, np.int32) for each in (mask.ids, mask.counts))
        assert counts.tolist() == [len(each) for each in expected] and values.tolist() == [*itertools.chain(*expected)]
    assert "sampling_mask" not in to_training_samples(samples)[0]


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (None, "expected Ragged"),
        (lambda tokens: [[7]] * len(tokens), r"without token \d+, which has the id \d+"),
        (lambda tokens: [[]] * len(tokens), r"without token \d+"),
        (lambda tokens: [[token, 7, 8] for token in tokens], "sampled from 3 ids, but sampling_top_k is 2"),
    ],
)
def test_sampling_masks_that_do_not_fit_the_tokens_are_refused(lists: Any, message: str):
    (sample, *_) = samples_of(0)
    sample = replace(sample, n_segments=1, extra={"sampling_mask": Ragged.of(lists(sample.tokens))} if lists else {})
    with pytest.raises(InvalidSample, match=message):
        to_generator_output([sample], sampling_top_k=2)


def test_experts_that_cannot_be_replayed_are_refused():
    (sample, *_) = samples_of(0)
    experts = sample.extra["routed_experts"]
    assert isinstance(experts, Aligned)
    unknown = experts.values.copy()
    unknown[4] = -1
    cases = {
        "has no experts at token 4": {"routed_experts": Aligned(unknown, "all")},
        r"expected Aligned\(..., over='all'\)": {"routed_experts": experts.values},
        r"has extra\['routed_experts'\] None": {},
    }
    for message, extra in cases.items():
        with pytest.raises(InvalidSample, match=message):
            to_training_samples([replace(sample, extra=extra)], routed_experts=True)
    large = Aligned(np.full_like(experts.values, 2**15), "all")
    with pytest.raises(InvalidSample, match="expert 32768; expected at most 32767"):
        to_outputs(
            [replace(sample, extra={"routed_experts": large})],
            prompt_length=10**4,
            response_length=10**4,
            routed_experts=True,
        )
