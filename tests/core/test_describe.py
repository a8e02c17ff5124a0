"""The description of a batch: the same facts for every layout, and a text that is short and safe to print."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_samples import one_step, sample, two_steps
from trainers.episodes import all_kinds, copy_of, delegated, kept, stripped

from envsdk import Sample, Trajectory, get_renderer, tree_batch
from envsdk.diagnostics import BatchDescription, describe
from envsdk.errors import InvalidSample
from envsdk.trainers.plain import collate

TOKENIZER = get_renderer("qwen3", "embedded").tokenizer
MAX_LINES = 60


def credited(trajectory: Trajectory) -> list[Sample]:
    samples = [copy_of(one) for one in trajectory.samples()]
    for index, one in enumerate(samples):
        one.advantage = index - 0.5
    return samples


def facts(found: BatchDescription) -> dict[str, Any]:
    """What does not depend on the layout."""
    return {**found.to_dict(), "layout": None, "padding": 0, "arrays": None}


@pytest.mark.parametrize("trajectory", all_kinds(), ids=lambda trajectory: trajectory.env)
def test_every_layout_of_the_same_samples_has_the_same_facts(trajectory: Trajectory):
    samples = credited(trajectory)
    found = describe(samples, TOKENIZER)
    for layout in ("padded", "packed"):
        other = describe(collate(samples, layout=layout), TOKENIZER)
        assert other.layout == layout
        assert facts(other) == facts(found)
    trained = np.concatenate([one.logprobs[one.mask] for one in samples if one.logprobs is not None])
    tree = describe(tree_batch(samples), TOKENIZER)
    for each in (found, tree):
        assert each.sequences == len(samples)
        assert each.trained == len(trained)
        assert each.logprobs is not None and each.advantage is not None
        assert each.logprobs.smallest == trained.min() and each.logprobs.largest == trained.max()
        assert each.logprobs.mean == pytest.approx(trained.mean(), rel=1e-5)
        assert each.forced_token_ratio == pytest.approx(np.mean(trained > -0.01))
        assert each.rewards == pytest.approx([one.reward for one in samples])
        assert each.advantage.largest == len(samples) - 1.5
    assert found.tokens == sum(map(len, samples))
    assert tree.tokens == len(tree_batch(samples))


def test_parts_are_the_observations_and_replies_with_their_ends_as_text():
    (one,) = kept().samples()
    found = describe([one], TOKENIZER)
    edges = [0, *(np.flatnonzero(np.diff(one.step_ids)) + 1).tolist(), len(one)]
    assert [part.start for part in found.parts] == edges[:-1]
    assert sum(part.length for part in found.parts) == len(one)
    for part in found.parts:
        tokens = one.tokens[part.start : part.start + part.length]
        assert part.is_reply == (one.step_ids[part.start] >= 0)
        assert part.trained == (part.length if part.is_reply else 0)
        assert TOKENIZER.decode(tokens).startswith(part.first)
        assert TOKENIZER.decode(tokens).endswith(part.last)
        assert part.last or part.length <= 6
    assert found.parts[1].last.endswith("<|im_end|>")
    assert describe([one]).parts[0].first == " ".join(map(str, one.tokens[:6]))


def test_the_padding_is_counted():
    samples = credited(delegated())
    batch = collate(samples, pad_token_id=3)
    found = describe(batch)
    assert found.padding == batch["tokens"].size - sum(map(len, samples))
    assert f"and {found.padding} of padding" in str(found)
    assert describe(collate(samples, layout="packed")).padding == 0


def test_the_text_names_what_is_in_a_batch():
    text = str(describe(collate(credited(kept())), TOKENIZER))
    lines = text.splitlines()
    assert lines[0].startswith("padded: 1 sequences, 191 tokens; ")
    assert any(line.split() == ["tokens", "int64", "(1,", "191)"] for line in lines)
    assert "log-probabilities: min -" in text and "0.0% are exactly 0" in text and "are forced" in text
    assert "'<|im_start|>system\\n" in text
    assert "  ... " in text and "more ..." in text


@pytest.mark.parametrize("trajectory", all_kinds(), ids=lambda trajectory: trajectory.env)
def test_the_text_has_few_lines(trajectory: Trajectory):
    samples = credited(trajectory) + [replace(one, trajectory_id="again") for one in credited(trajectory)] * 9
    for batch in (samples, collate(samples), collate(samples, layout="packed"), tree_batch(samples)):
        lines = str(describe(batch, TOKENIZER)).splitlines()
        assert len(lines) <= MAX_LINES
        assert max(map(len, lines)) <= 160


def test_text_of_a_model_cannot_control_a_terminal():
    hostile = "\x1b[2J\x07\u202e\r\n"
    tokens = TOKENIZER.encode(hostile)
    one = one_step([-1.0] * len(tokens))
    one.tokens[1:] = tokens
    found = describe([one], TOKENIZER)
    assert "\x1b" in "".join(part.first + part.last for part in found.parts)
    assert not set(str(found)) & {"\x1b", "\x07", "\u202e", "\r"}
    assert "\\x1b[2J" in str(found)


def test_log_probabilities_of_0_and_forced_tokens_are_counted():
    found = describe([one_step([0.0, -0.001, -1.0, -3.0])])
    assert found.logprobs is not None
    assert (found.logprobs.zero_share, found.forced_token_ratio) == (0.25, 0.5)
    assert found.advantage is None
    assert "25.0% are exactly 0; 50.0% are forced" in str(found)
    without = describe([two_steps(None)])
    assert (without.logprobs, without.forced_token_ratio) == (None, None)
    assert "log-probabilities" not in str(without)


def test_masked_tokens_of_a_reply_are_not_counted_as_trained():
    one = sample([0, -1, 0, -1], mask=[False, True, False, True], step_ids=[-1, 0, 0, 0])
    (observation, reply) = describe([one]).parts
    assert (observation.is_reply, reply.is_reply, reply.length, reply.trained) == (False, True, 3, 2)
    assert "reply       at      1: 3 tokens, 2 trained: '1 2 3'" in str(describe([one]))


def test_a_missing_log_probability_of_a_tree_is_counted():
    tree = tree_batch(stripped())
    assert tree.logprobs is not None
    tree.logprobs[tree.trained[0]] = np.nan
    found = describe(tree)
    assert found.logprobs is not None and found.logprobs.missing == 1
    assert "1 are not finite" in str(found)


def test_the_values_are_json():
    record = json.loads(json.dumps(describe(credited(delegated()), TOKENIZER).to_dict()))
    assert record["trained_share"] == pytest.approx(record["trained"] / record["tokens"])
    assert record["parts"][0]["is_reply"] is False
    assert describe([]).to_dict()["tokens"] == 0
    assert str(describe([])).startswith("samples: 0 sequences, 0 tokens; 0 trained (0.0%)")


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (3, "expected a list of samples"),
        ([3], "sample 0 is an int"),
        ({"tokens": np.zeros((1, 2))}, "the batch has no mask, step_ids, sample_ids, position_ids, reward"),
    ],
)
def test_what_is_no_batch_is_refused(batch: Any, said: str):
    with pytest.raises(InvalidSample, match=said):
        describe(batch)
