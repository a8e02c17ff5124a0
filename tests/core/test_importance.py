"""Importance weights: compared with plain loops over floats, at every level and in every mode."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_samples import one_step, sample, two_steps
from trainers.episodes import copy_of, delegated, stripped

from envsdk import Sample
from envsdk.diagnostics import importance_weights
from envsdk.diagnostics._importance import Level, Mode, Ratio
from envsdk.errors import ConfigError, InvalidSample, UnknownName
from envsdk.trainers.plain import collate

NAN = float("nan")
LEVELS, MODES, RATIOS = get_args(Level), get_args(Mode), get_args(Ratio)
EVERY = list(itertools.product(LEVELS, MODES, RATIOS))


def by_hand(
    samples: Sequence[Sample], trainer: Sequence[Any], level: str, mode: str, lower: float, upper: float, ratio: str
) -> tuple[list[list[float]], float, int]:
    """The weights, the effective sample size and the touched tokens, token by token with Python's floats."""
    logs: dict[Any, list[float]] = {}
    units: list[list[Any]] = []
    for index, one in enumerate(samples):
        assert one.logprobs is not None
        row: list[Any] = []
        for at in range(len(one)):
            keys = {
                "token": (index, at),
                "step": (index, int(one.step_ids[at])),
                "sequence": (one.trajectory_id, one.context),
            }
            row.append(keys[level] if one.mask[at] else None)
            if one.mask[at]:
                logs.setdefault(keys[level], []).append(float(trainer[index][at]) - float(one.logprobs[at]))
        units.append(row)
    weights: dict[Any, float] = {}
    outside = set()
    for key, values in logs.items():
        found = math.exp(math.fsum(values) / (len(values) if ratio == "geometric_mean" else 1))
        if found > upper or (found < lower and mode != "truncate"):
            outside.add(key)
            found = {"truncate": upper, "mask": 0.0, "clip": upper if found > upper else lower}[mode]
        weights[key] = found
    squares = sum(weight**2 for weight in weights.values())
    effective = sum(weights.values()) ** 2 / squares if squares else 0.0
    rows = [[0.0 if key is None else weights[key] for key in row] for row in units]
    return rows, effective, sum(key in outside for row in units for key in row if key is not None)


def random_samples(seed: int) -> tuple[list[Sample], list[list[float]]]:
    """Samples of up to three contexts with observations between the steps, and what a trainer says of them."""
    rng = np.random.default_rng(seed)
    samples: list[Sample] = []
    trainer: list[list[float]] = []
    for context in range(rng.integers(1, 4)):
        segments = int(rng.integers(1, 3))
        for segment in range(segments):
            lengths = rng.integers(1, 5, size=rng.integers(1, 4)).tolist()
            step_ids = [step_id for step, count in enumerate(lengths) for step_id in (-1, *[step] * count)]
            sampled = [-float(rng.exponential(2)) if step_id >= 0 else 0.0 for step_id in step_ids]
            made = sample(sampled, mask=[step_id >= 0 for step_id in step_ids], step_ids=step_ids)
            made.context, made.segment_index, made.n_segments = f"c{context}", segment, segments
            samples.append(made)
            trainer.append([min(0.0, value + rng.normal()) if value else NAN for value in sampled])
    return samples, trainer


@pytest.mark.matrix
@pytest.mark.parametrize(("level", "mode", "ratio"), EVERY)
@given(seed=st.integers(0, 2**32))
def test_weights_are_those_of_a_plain_loop(level: Any, mode: Any, ratio: Any, seed: int):
    samples, trainer = random_samples(seed)
    lower, upper = 0.6, 1.7
    threshold = upper if mode == "truncate" else (lower, upper)
    found = importance_weights(samples, trainer, level, mode, threshold, ratio=ratio)
    rows, effective, touched = by_hand(samples, trainer, level, mode, lower, upper, ratio)
    for weights, row, one in zip(found.weights, rows, samples, strict=True):
        assert (weights.dtype, weights.shape) == (np.float32, (len(one),))
        assert weights.tolist() == pytest.approx(row, rel=1e-6)
    assert found.effective_sample_size == pytest.approx(effective)
    assert (found.touched, found.tokens) == (touched, sum(int(one.mask.sum()) for one in samples))


@pytest.mark.matrix
@pytest.mark.parametrize(("level", "mode", "ratio"), EVERY)
def test_equal_log_probabilities_have_the_weight_1(level: Any, mode: Any, ratio: Any):
    samples = [two_steps(), replace(two_steps(), context="other")]
    found = importance_weights(samples, [one.logprobs for one in samples], level, mode, ratio=ratio)
    assert all(np.array_equal(w, one.mask) for w, one in zip(found.weights, samples, strict=True))
    assert found.units == found.effective_sample_size == {"token": 8, "step": 4, "sequence": 2}[level]
    assert (found.tokens, found.touched, found.touched_share) == (8, 0, 0.0)


def test_each_mode_does_what_it_says():
    one, trainer = one_step([-2.0, -2.0, -2.0]), [NAN, -2.0 + math.log(4), -2.0 + math.log(1.5), -2.0 - math.log(8)]
    modes = {"truncate": [2, 1.5, 0.125], "mask": [0, 1.5, 0], "clip": [2, 1.5, 0.5]}
    for mode, expected in modes.items():
        found = importance_weights([one], [trainer], mode=mode)  # pyright: ignore[reportArgumentType]
        assert found.weights[0].tolist() == pytest.approx([0, *expected])
        assert found.touched == (1 if mode == "truncate" else 2)
    masked = importance_weights([one], [trainer], mode="mask", threshold=(0.0, 2.0))  # above only
    assert masked.weights[0].tolist() == pytest.approx([0, 0, 1.5, 0.125])


def test_a_step_is_a_product_or_a_mean_per_token():
    one = two_steps([0, -1, -1, 0, -1, -1])
    trainer = [NAN, -0.5, -0.75, NAN, -1.5, -1.0]
    product = importance_weights([one], [trainer], "step", "clip", 10.0)
    mean = importance_weights([one], [trainer], "step", "clip", 10.0, ratio="geometric_mean")
    assert product.weights[0].tolist() == pytest.approx(_placed(0.75, -0.5))
    assert mean.weights[0].tolist() == pytest.approx(_placed(0.375, -0.25))


def _placed(first: float, second: float) -> list[float]:
    return [0, math.exp(first), math.exp(first), 0, math.exp(second), math.exp(second)]


def test_a_sequence_has_one_weight_however_it_was_rewritten():
    first, second = two_steps([0, -1, -1, 0, -1, -1]), two_steps([0, -1, -1, 0, -1, -1])
    for index, one in enumerate((first, second)):
        one.segment_index, one.n_segments = index, 2
    trainer = [[NAN, -0.9, -1, NAN, -1, -1], [NAN, -1, -1, NAN, -1, -0.8]]
    found = importance_weights([first, second], trainer, "sequence", threshold=10.0)
    assert found.units == 1
    assert [w[w > 0].tolist() for w in found.weights] == [pytest.approx([math.exp(0.3)] * 4)] * 2
    second.context = "other"
    assert importance_weights([first, second], trainer, "sequence").units == 2


def test_the_effective_sample_size_is_that_of_the_few_weights_that_count():
    one = one_step([-9.0] * 10)
    trainer = [NAN, -5.0, *[-9.0] * 9]
    found = importance_weights([one], [trainer], threshold=1000.0)
    assert 1 < found.effective_sample_size < 1.4
    assert importance_weights([one], [[NAN, *[-1.0] * 10]], mode="mask").effective_sample_size == 0.0


def test_a_ratio_beyond_all_bounds_gets_a_finite_weight():
    one = one_step([-800.0, -1.0])
    for mode, expected in (("truncate", [2, 0]), ("clip", [2, 0.5]), ("mask", [0, 0])):
        found = importance_weights([one], [[NAN, 0.0, -900.0]], mode=mode)  # pyright: ignore[reportArgumentType]
        assert found.weights[0].tolist() == [0, *expected]
    assert importance_weights([one], [[NAN, 0.0, 0.0]], "sequence").weights[0].tolist() == [0, 2, 2]


def test_a_result_is_readable_and_is_json():
    found = importance_weights([one_step([-2.0] * 4)], [[NAN, -1.0, -2.0, -2.0, -2.0]])
    assert str(found) == "effective sample size 3.6 of 4 tokens; truncate changed 25.0% of 4 tokens"
    record = json.loads(json.dumps(found.to_dict()))
    assert (record["touched_share"], record["bounds"], record["level"]) == (0.25, [0.0, 2.0], "token")
    empty = importance_weights([], [])
    assert (empty.weights, empty.units, empty.effective_sample_size, empty.touched_share) == ((), 0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"level": "turn"}, UnknownName, "level"),
        ({"mode": "drop"}, UnknownName, "mode"),
        ({"ratio": "mean"}, UnknownName, "ratio"),
        ({"threshold": 0.5}, ConfigError, "expected an upper bound of at least 1"),
        ({"threshold": NAN}, ConfigError, "expected an upper bound"),
        ({"threshold": math.inf}, ConfigError, "expected an upper bound"),
        ({"threshold": True}, ConfigError, "expected an upper bound"),
        ({"threshold": "2"}, ConfigError, "expected an upper bound"),
        ({"threshold": (0.5, 2, 3)}, ConfigError, "expected an upper bound"),
        ({"threshold": ()}, ConfigError, "expected an upper bound"),
        ({"threshold": (1.5, 2.0), "mode": "clip"}, ConfigError, "lower bound of at most 1"),
        ({"threshold": (-1.0, 2.0), "mode": "clip"}, ConfigError, "expected an upper bound"),
        ({"threshold": (0.5, 2.0)}, ConfigError, "truncate has no lower bound"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], error: type[Exception], said: str):
    with pytest.raises(error, match=said):
        importance_weights([two_steps()], [np.zeros(6)], **options)


def test_what_does_not_fit_is_refused_with_its_place():
    with pytest.raises(InvalidSample, match="the value of token 2 is nan"):
        importance_weights([two_steps()], [[0, 0, NAN, 0, 0, 0]])
    with pytest.raises(InvalidSample, match=r"sample 1 is segment 0 of context 'main' .* for the second time"):
        importance_weights([two_steps(), two_steps()], [np.zeros(6)] * 2, "sequence")


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_batch_holds_the_weights_of_its_samples(layout: Any):
    samples = [copy_of(one) for trajectory in (stripped(), delegated()) for one in trajectory.samples()]
    rng = np.random.default_rng(0)
    trainer = [one.logprobs - rng.exponential(0.3, len(one)) for one in samples if one.logprobs is not None]
    found = importance_weights(samples, trainer, "step")
    batch = collate(samples, layout=layout, importance=found)
    assert batch["importance_weight"].dtype == np.float32
    assert batch["importance_weight"].shape == batch["mask"].shape
    assert not batch["importance_weight"][~batch["mask"]].any()
    own = np.concatenate([w[one.mask] for w, one in zip(found.weights, samples, strict=True)])
    assert np.array_equal(batch["importance_weight"][batch["mask"]], own)
    assert "importance_weight" not in collate(samples, layout=layout)


def test_the_weights_of_other_samples_are_refused():
    samples = [copy_of(one) for one in stripped().samples()]
    found = importance_weights(samples, [one.logprobs for one in samples])
    with pytest.raises(InvalidSample, match="importance has the weights of"):
        collate(samples[:-1], importance=found)
    with pytest.raises(InvalidSample, match=r"importance\.weights\[0\] has shape"):
        collate(samples[::-1], importance=found)
