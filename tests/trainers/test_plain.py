from typing import Any

import numpy as np
import pytest
from trainers.episodes import all_kinds, copy_of, delegated, kept, played, stripped

from envsdk import Sample, Trajectory
from envsdk.errors import ConfigError, InvalidSample
from envsdk.trainers.plain import collate

EMPTY = {"tokens": 7, "temperature": 1.0, "step_ids": -1, "sample_ids": -1}  # what padding holds, elsewhere 0


def credited(*trajectories: Trajectory) -> list[Sample]:
    samples = [copy_of(sample) for trajectory in trajectories for sample in trajectory.samples()]
    for index, sample in enumerate(samples):
        sample.advantage = index + 0.5 if index % 2 else np.arange(len(sample), dtype=np.float32)
    return samples


def expected(index: int, sample: Sample) -> dict[str, Any]:
    """What the batch says of each token of a sample, computed token by token."""
    row: dict[str, list[Any]] = {"tokens": [], "mask": [], "temperature": [], "advantage": [], "position_ids": []}
    for at, token in enumerate(sample.tokens):
        trained = bool(sample.mask[at])
        advantage = sample.advantage[at] if isinstance(sample.advantage, np.ndarray) else sample.advantage
        row["tokens"].append(int(token))
        row["mask"].append(trained)
        row["temperature"].append(float(sample.temperature[sample.part_ids[at]]) if trained else 1.0)
        row["advantage"].append(float(advantage) if trained else 0.0)
        row["position_ids"].append(at)
    assert sample.logprobs is not None
    more = {"logprobs": sample.logprobs.tolist(), "step_ids": sample.step_ids.tolist()}
    return {**row, **more, "sample_ids": [index] * len(sample)}


@pytest.mark.parametrize("trajectory", all_kinds(), ids=lambda trajectory: trajectory.env)
def test_a_padded_batch_has_a_row_for_each_sample(trajectory: Trajectory):
    samples = credited(trajectory)
    batch = collate(samples, pad_token_id=7)
    longest = max(map(len, samples))
    for index, sample in enumerate(samples):
        for name, values in expected(index, sample).items():
            assert batch[name].shape == (len(samples), longest)
            assert batch[name][index].tolist() == values + [EMPTY.get(name, 0)] * (longest - len(sample))
        assert batch["attention_mask"][index].tolist() == [at < len(sample) for at in range(longest)]


@pytest.mark.parametrize("trajectory", all_kinds(), ids=lambda trajectory: trajectory.env)
def test_a_packed_batch_is_one_row_whose_borders_are_known(trajectory: Trajectory):
    samples = credited(trajectory)
    batch = collate(samples, layout="packed")
    assert "attention_mask" not in batch
    borders = batch["cu_seqlens"]
    assert (borders.dtype, borders[0], borders[-1]) == (np.int32, 0, batch["tokens"].shape[1])
    for index, sample in enumerate(samples):
        for name, values in expected(index, sample).items():
            assert batch[name].shape == (1, borders[-1])
            assert batch[name][0, borders[index] : borders[index + 1]].tolist() == values
    assert not batch["mask"][0, borders[:-1]].any()  # so a shift by one crosses no border


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_what_is_told_of_each_sample(layout: Any):
    samples = credited(stripped(), delegated(), played())
    batch = collate(samples, layout=layout)
    lengths = [len(sample) for sample in samples]
    assert batch["lengths"].tolist() == lengths and batch["max_seqlen"] == max(lengths)
    assert batch["cu_seqlens"].tolist() == [0, *np.cumsum(lengths)]
    assert batch["reward"].tolist() == [sample.reward for sample in samples]
    assert batch["loss_weight"] == pytest.approx([sample.loss_weight for sample in samples])
    types = {name: array.dtype for name, array in batch.items() if isinstance(array, np.ndarray)}
    assert types["tokens"] == types["position_ids"] == np.int64
    assert types["logprobs"] == types["advantage"] == types["temperature"] == types["reward"] == np.float32


def test_what_no_sample_has_is_left_out():
    samples = [copy_of(sample) for sample in stripped().samples()]
    for sample in samples:
        sample.logprobs = None
    assert not {"logprobs", "advantage"} & collate(samples).keys()


@pytest.mark.parametrize("name", ["logprobs", "advantage"])
def test_what_only_some_samples_have_is_refused(name: str):
    samples = credited(stripped())
    setattr(samples[1], name, None)
    with pytest.raises(InvalidSample, match=f"sample 1 has no {name}, but sample 0 has; expected {name} in all"):
        collate(samples)


def test_no_samples_and_unknown_choices_are_refused():
    for layout in ("padded", "packed"):
        with pytest.raises(InvalidSample, match="samples is empty; expected at least one sample"):
            collate([], layout=layout)  # type: ignore[arg-type]
    for value in (None, 1.5, "0", True, -1, 2**31, 2**70):
        with pytest.raises(ConfigError, match=f"pad_token_id is {value!r}; expected a token id"):
            collate(kept().samples(), pad_token_id=value)  # type: ignore[arg-type]
    assert (collate(kept().samples(), pad_token_id=np.int64(7))["tokens"] >= 0).all()
    for choice in ({"layout": "left"}, {"arrays": "jax"}):
        with pytest.raises(ConfigError, match=f"expected one of .*{'packed' if 'layout' in choice else 'torch'}"):
            collate(kept().samples(), **choice)  # type: ignore[arg-type]


def test_numbers_may_be_numpy_s():
    (sample,) = map(copy_of, kept().samples())
    sample.reward, sample.loss_weight, sample.advantage = np.float32(0.5), np.float64(0.25), np.float32(2)
    batch = collate([sample])
    assert (batch["reward"].tolist(), batch["loss_weight"].tolist()) == ([0.5], [0.25])
    assert set(batch["advantage"][batch["mask"]].tolist()) == {2.0}
    assert Sample.from_json(sample.to_json()).advantage == 2.0


def test_a_batch_may_have_a_fixed_length():
    samples = credited(stripped())
    longest = max(map(len, samples))
    plain, batch = collate(samples), collate(samples, max_length=longest + 9, pad_to="max_length", pad_token_id=7)
    assert batch["tokens"].shape == (len(samples), longest + 9) and batch["max_seqlen"] == longest
    assert (batch["tokens"][:, longest:] == 7).all() and (batch["labels"][:, longest:] == -100).all()
    assert not batch["attention_mask"][:, longest:].any() and not batch["mask"][:, longest:].any()
    for name in ("labels", "mask", "logprobs", "advantage", "attention_mask", "position_ids"):
        assert (batch[name][:, :longest] == plain[name]).all()
    assert collate(samples, max_length=longest)["tokens"].shape == plain["tokens"].shape


def test_a_sample_that_is_too_long_is_refused_unless_it_may_be_cut():
    samples = credited(stripped())
    limit = sorted(map(len, samples))[-2]
    index = int(np.argmax([len(sample) for sample in samples]))
    with pytest.raises(
        InvalidSample, match=rf"sample {index}, of trajectory 'strip.*but max_length is {limit}: .*truncate"
    ):
        collate(samples, max_length=limit)
    for layout in ("padded", "packed"):
        cut = collate(samples, max_length=limit, truncate=True, layout=layout)
        lengths = [min(len(sample), limit) for sample in samples]
        assert cut["lengths"].tolist() == lengths
        lost = [int(sample.mask[limit:].sum()) for sample in samples]
        assert cut["dropped_tokens"].tolist() == lost and sum(lost) > 0
        assert cut["mask"].sum() == sum(int(sample.mask.sum()) for sample in samples) - sum(lost)
    assert not collate(samples, max_length=limit + 9999, truncate=True)["dropped_tokens"].any()


@pytest.mark.parametrize(
    "options",
    [
        *({"max_length": length} for length in (0, True, 2.5)),
        *({"pad_to": pad_to} for pad_to in ("max_length", "all")),
        {"pad_to": "max_length", "max_length": 9, "layout": "packed"},
    ],
    ids=str,
)
def test_a_length_that_means_nothing_is_refused(options: dict[str, Any]):
    with pytest.raises(ConfigError, match=r"max_length|pad_to"):
        collate(stripped().samples(), **options)
