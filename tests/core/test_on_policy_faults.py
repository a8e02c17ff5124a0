"""What the on-policy check shows of each fault that it is for, and what it allows a numeric format."""

import json
from typing import Any

import numpy as np
import pytest
from families import WITH_TOOLS
from hypothesis import given
from hypothesis import strategies as st
from made_samples import one_step
from trainers.episodes import copy_of, delegated

from envsdk import Message, Renderer, Sample, get_renderer
from envsdk.diagnostics import KL, Cluster, Estimate, kl
from envsdk.diagnostics._on_policy import KINDS, token_kinds
from envsdk.errors import UnknownName

NAN = float("nan")
NOISE = 0.01  # nats: what is left where nothing is wrong


def renderer() -> Renderer:
    return get_renderer("qwen3", "embedded")


def played() -> list[Sample]:
    """The samples of an agent that sends others to do research, by calls, with random log-probabilities."""
    rng = np.random.default_rng(0)
    samples = [copy_of(one) for one in delegated().samples()]
    for one in samples:
        one.logprobs = np.where(one.mask, -0.02 - rng.exponential(1.0, len(one)), 0).astype(np.float32)
    return samples


def agreed(samples: list[Sample]) -> list[np.ndarray]:
    """The log-probabilities of a trainer that agrees, but for rounding."""
    rng = np.random.default_rng(1)
    known = [np.asarray(one.logprobs, dtype=np.float64) for one in samples]
    return [np.minimum(0, own + rng.normal(0, NOISE, len(own))) for own in known]


def views(found: KL) -> dict[str, int | str]:
    """The part with most outliers, by view, without the views whose bins depend on the length of the episodes."""
    return {each.view: each.key for each in found.clusters if each.view not in ("step", "position")}


def test_without_a_fault_nothing_is_reported():
    samples = played()
    found = kl(samples, agreed(samples), renderer=renderer())
    assert (found.verdict, found.shift, found.all.outliers, found.clusters) == ("healthy", 0, 0, [])
    assert set(found.by_kind) == set(KINDS)
    assert "outliers (more than 0.69 nats apart): 0 of" in str(found)
    assert kl(samples, agreed(samples)).by_kind == {}


@pytest.mark.parametrize("shift", [1, -1])
def test_a_shift_by_one_is_recognized(shift: int):
    samples = played()
    found = kl(samples, [np.roll(own, shift) for own in agreed(samples)], renderer=renderer())
    assert (found.verdict, found.shift) == ("critical", shift)
    assert f"one position {'later' if shift > 0 else 'earlier'} than the sampler's" in str(found)
    assert views(found) == {}  # it is everywhere


@given(st.integers(0, 10_000))
def test_other_differences_are_no_shift(seed: int):
    rng = np.random.default_rng(seed)
    one = one_step(-rng.exponential(1.0, 100))
    assert kl([one], [-rng.exponential(1.0, 101)]).shift == 0


def test_lost_last_tokens_are_at_the_end_of_the_replies():
    samples = played()
    trainer = agreed(samples)
    ends = 0
    for one, own in zip(samples, trainer, strict=True):
        last = np.flatnonzero(one.mask & np.append(~one.mask[1:], True))
        own[last] = -12.0  # the probability of what the trainer has instead
        ends += len(last)
    found = kl(samples, trainer, renderer=renderer())
    assert found.verdict == "critical"
    assert (found.clusters[0].view, found.clusters[0].key) == ("offset_from_end", 0)
    assert found.by_offset_from_end[0].tokens == found.all.outliers == ends


def test_a_call_that_was_tokenized_again_is_a_cluster_of_calls():
    samples, spoiled = played(), 0
    trainer = agreed(samples)
    tokenizer = renderer().tokenizer
    for one, own in zip(samples, trainer, strict=True):
        inside = np.cumsum(one.tokens == tokenizer.token_id("<tool_call>")) > np.cumsum(
            one.tokens == tokenizer.token_id("</tool_call>")
        )
        called = one.mask & inside & (one.tokens != tokenizer.token_id("<tool_call>"))
        own[called] -= 3
        spoiled += int(called.sum())
    found = kl(samples, trainer, renderer=renderer())
    assert spoiled == found.all.outliers > 20
    (cluster,) = (each for each in found.clusters if each.view == "kind")
    assert cluster.key == "call" and cluster.outliers_share > 0.75  # the others are borders and control tokens
    assert str(cluster) in str(found)
    assert found.by_kind["content"].verdict == "healthy"


def test_text_that_was_tokenized_apart_from_its_neighbor_is_a_cluster_of_borders():
    samples = played()
    trainer = agreed(samples)
    controls = list(renderer().tokenizer.control_tokens.values())
    for one, own in zip(samples, trainer, strict=True):
        after = np.append(False, np.isin(one.tokens[:-1], controls)) & ~np.isin(one.tokens, controls) & one.mask
        own[after] -= 3
    assert views(kl(samples, trainer, renderer=renderer()))["kind"] == "border"


def test_a_drift_that_grows_with_the_context_is_a_cluster_of_depth():
    rng = np.random.default_rng(0)
    one = one_step(-1 - rng.exponential(1.0, 70_000))
    depth = np.arange(70_001) / 64_000
    found = kl([one], [one.logprobs - 0.69 * depth**8])
    assert views(found) == {"depth": 64_000, "offset": 65_536}
    assert [part.tokens for part in found.by_depth.values()] == [7_999, 56_000, 6_001]
    by_depth = [part.k2 for part in found.by_depth.values()]
    assert by_depth[0] < 1e-10 < by_depth[1] < by_depth[2]
    assert "depth 64000 has 100% of the outliers and 8.6% of the tokens" in str(found)


@given(st.lists(st.tuples(st.floats(-9, 0), st.floats(-9, 0)), min_size=1, max_size=30))
def test_every_view_has_each_token_and_each_outlier_once(pairs: list[tuple[float, float]]):
    sampler, trainer = zip(*pairs, strict=True)
    found = kl([one_step(sampler)], [[NAN, *trainer]], renderer=renderer())
    for name in ("step", "position", "depth", "offset", "offset_from_end", "kind"):
        parts: dict[Any, Estimate] = getattr(found, f"by_{name}")
        assert sum(part.tokens for part in parts.values()) == found.all.tokens
        assert sum(part.outliers for part in parts.values()) == found.all.outliers
    for cluster in found.clusters:
        assert cluster.outliers_share >= 0.5 and cluster.outliers_share > cluster.tokens_share


def test_distances_from_both_ends_are_those_within_a_reply():
    found = kl([one_step([-1.0] * 6)], [[NAN, -1.0, -1.0, -1.0, -1.0, -1.0, -9.0]])
    assert {key: part.tokens for key, part in found.by_offset.items()} == {0: 1, 1: 1, 2: 2, 4: 2}
    assert {key: part.tokens for key, part in found.by_offset_from_end.items()} == {0: 1, 1: 1, 2: 2, 4: 2}
    assert found.by_offset_from_end[0].outliers == 1


def test_the_clusters_are_in_the_json():
    found = kl([one_step([-1.0] * 6)], [[NAN, -1.0, -1.0, -1.0, -1.0, -1.0, -9.0]])
    record = json.loads(json.dumps(found.to_dict()))
    assert Cluster(**record["clusters"][0]) == found.clusters[0]
    assert record["forced_token_ratio"] == 0.0


# Thresholds.


@pytest.mark.parametrize(
    ("dtype", "gap", "verdict"),
    [
        (None, 0.0099, "healthy"),
        ("bfloat16", 0.0099, "healthy"),
        ("float16", 0.0099, "warning"),
        ("float16", 0.0012, "healthy"),
        ("float32", 0.0012, "critical"),
        ("float32", 0.9e-5, "healthy"),
        ("float32", 2e-5, "warning"),
    ],
)
def test_the_verdict_is_by_what_the_numeric_format_allows(dtype: Any, gap: float, verdict: str):
    sampler = -1 - np.arange(20.0)
    found = kl([one_step(sampler)], [[NAN, *(sampler - gap)]], dtype=dtype)
    assert found.verdict == found.free.verdict == found.by_offset[0].verdict == verdict


@pytest.mark.parametrize(("rms", "verdict"), [(0.044, "healthy"), (0.046, "warning"), (0.15, "critical")])
def test_k2_has_a_threshold_of_its_own(rms: float, verdict: str):
    sampler = -1 - np.arange(20.0)
    found = kl([one_step(sampler)], [[NAN, *(sampler + rms * np.tile([1, -1], 10))]])
    assert abs(found.all.k1) < 1e-9
    assert found.verdict == verdict  # k2 is half the mean square: 0.001 at 0.0447, 0.01 at 0.141


def test_an_unknown_format_is_refused():
    with pytest.raises(UnknownName, match="No numeric format is named 'bfloat'"):
        kl([], [], dtype="bfloat")  # pyright: ignore[reportArgumentType]


# Kinds of tokens.

TOOL = {"type": "function", "function": {"name": "look_up", "description": "", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("family", ["instruct-2507", "qwen3.5", "glm-4.5"])  # a family for each format of calls
def test_calls_are_told_from_text(family: str):
    own = WITH_TOOLS[family].renderer()
    call = {"name": "look_up", "arguments": {"animal": "a grey zebra from Kenya"}}
    reply = Message(role="assistant", reasoning="Shall I look_up an animal?", content="A moment.", tool_calls=(call,))
    tokens = own.reply(reply)
    one = one_step([-1.0] * len(tokens))
    one.tokens[1:] = tokens
    kinds = token_kinds(one, own)[1:]
    texts = {kind: own.tokenizer.decode(tokens[kinds == code]) for code, kind in enumerate(KINDS)}
    assert "zebra" in texts["call"] and "moment" not in texts["call"] and "Shall" not in texts["call"]
    assert "oment" in texts["content"] and "zebra" not in texts["content"]
    controls = set(own.tokenizer.control_tokens.values())
    assert [token in controls for token in tokens.tolist()] == (kinds == KINDS.index("control")).tolist()
    assert token_kinds(one, own)[0] == -1


def test_a_reply_without_a_call_has_none():
    own = renderer()
    for text in ("<tool_call> look_up", "look_up", ""):
        tokens = own.reply(Message(role="assistant", content=text))
        one = one_step([-1.0] * len(tokens))
        one.tokens[1:] = tokens
        assert KINDS.index("call") not in token_kinds(one, own)
