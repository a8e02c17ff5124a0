"""Diagnostics: the on-policy check by hand, each cause of a break on real renderings, and costs that add up."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import pytest
import real_models
from hypothesis import given
from hypothesis import strategies as st
from made_samples import one_step, two_steps

from envsdk import Env, Handoff, HandoffResult, Message, Renderer, Trajectory, Turn, get_renderer, make, rollout
from envsdk.diagnostics import Estimate, cost, explain_break, kl, token_match
from envsdk.errors import ConfigError, InvalidSample
from envsdk.policies import RandomPolicy
from envsdk.rendering.tokenizers import Tokenizer
from envsdk.rollouts import rollout_many

NAN, INF = float("nan"), float("inf")


# KL.


def test_the_estimates_are_what_their_formulas_say():
    trainer = [NAN, -1.5, -0.001, NAN, -1.0, -0.5]
    found = kl([two_steps()], [trainer], bin_size=4)
    # d = lp_trainer - lp_sampler = -0.5, 0, 1, 0
    assert found.all.tokens == 4
    assert found.all.k1 == pytest.approx(-0.5 / 4, abs=1e-6)
    assert found.all.k2 == pytest.approx(0.5 * 1.25 / 4, abs=1e-6)
    assert found.all.k3 == pytest.approx((np.exp(-0.5) - 1 + 0.5 + np.e - 2) / 4, abs=1e-6)
    assert (found.forced_token_ratio, found.forced.tokens, found.forced.k2) == (0.25, 1, pytest.approx(0, abs=1e-12))
    assert found.free.k1 == pytest.approx(-0.5 / 3, abs=1e-6)
    assert {step: estimate.k1 for step, estimate in found.by_step.items()} == pytest.approx({3: 0.25, 4: -0.5})
    assert {at: estimate.tokens for at, estimate in found.by_position.items()} == {0: 2, 4: 2}
    assert {at: estimate.k1 for at, estimate in found.by_offset.items()} == pytest.approx({0: -0.25, 1: 0.0}, abs=1e-6)
    assert found.verdict == "critical"


@pytest.mark.parametrize(
    ("gap", "verdict"),
    [(0.0, "healthy"), (0.0099, "healthy"), (0.0101, "warning"), (0.099, "warning"), (0.2, "critical")],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_verdict_is_by_the_mean_difference(gap: float, verdict: str, sign: int):
    one = two_steps([0, -2, -3, 0, -4, -5])
    assert kl([one], [np.array([0, -2, -3, 0, -4, -5]) + sign * gap]).verdict == verdict


@given(st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0)), min_size=1, max_size=20))
def test_k3_is_never_negative_and_the_parts_add_up(pairs: list[tuple[float, float]]):
    sampler, trainer = zip(*pairs, strict=True)
    one = one_step(sampler)
    found = kl([one], [[NAN, *trainer]])
    assert found.all.k3 >= 0
    assert found.all.k2 >= 0
    assert found.all.k1 == pytest.approx(float(np.mean(one.logprobs[1:].astype(float) - trainer)))  # pyright: ignore
    parts = [found.by_step, found.by_position, found.by_offset, {0: found.free, 1: found.forced}]
    for part in parts:
        assert sum(estimate.tokens for estimate in part.values()) == found.all.tokens
        total = sum(estimate.k1 * estimate.tokens for estimate in part.values())
        assert total == pytest.approx(found.all.k1 * found.all.tokens, abs=1e-6)


def test_differences_that_cancel_are_not_healthy():
    one = two_steps([0, -2, -3, 0, -4, -5])
    found = kl([one], [[0, -3, -2, 0, -5, -4]])
    assert (found.all.k1, found.verdict) == (0.0, "critical")


def test_forced_tokens_do_not_hide_a_difference():
    forced = [-1e-6] * 99
    one = one_step([*forced, -3.0])
    found = kl([one], [[NAN, *forced, -3.4]])
    assert (found.all.verdict, found.free.verdict, found.forced.verdict) == ("healthy", "critical", "healthy")
    assert found.verdict == found.to_dict()["verdict"] == "critical"
    assert str(found).startswith("critical: k1 0.004, ")
    assert "not forced: critical" in str(found)


def test_a_difference_counts_up_to_the_clip_and_the_share_of_clipped_tokens_is_reported():
    one = one_step([-1.0, -1.0, -1.0, -1.0])
    found, unclipped = (kl([one], [[NAN, -1.5, -1.0, -51.0, -1.0]], clip=clip) for clip in (2.0, None))
    assert (found.all.k1, found.all.k2) == pytest.approx((2.5 / 4, (0.25 + 4) / 8))
    assert (found.clipped_token_ratio, unclipped.clipped_token_ratio) == (0.25, 0.0)
    assert (found.all.outliers, unclipped.all.outliers) == (1, 1)
    assert "clipped: 25.0% of the tokens" in str(found) and "clipped" not in str(unclipped)
    assert found.to_dict()["clipped_token_ratio"] == 0.25


@pytest.mark.parametrize("clip", [0.69, 0.0, NAN, INF, "2"])
def test_a_clip_that_would_hide_outliers_is_refused(clip: Any):
    with pytest.raises(ConfigError, match=r"clip is .*; expected a finite number of nats above 0\.69"):
        kl([two_steps()], [np.zeros(6)], clip=clip)


def test_equal_log_probabilities_are_healthy_and_log_probabilities_one_place_off_are_not():
    rng = np.random.default_rng(0)
    logprobs = -rng.exponential(1.0, size=64)
    one = one_step(logprobs)
    same = kl([one], [one.logprobs])
    assert (same.all.k1, same.all.k2, same.all.k3, same.verdict) == (0, 0, 0, "healthy")
    assert kl([one], [[NAN, *np.roll(logprobs, 1)]]).all.k2 > 0.1


def test_a_difference_beyond_all_bounds_is_infinite():
    one = one_step([-800.0])
    found = kl([one], [[NAN, 0.0]])
    assert (found.all.k1, found.all.k3, found.verdict) == (-800, INF, "critical")


def test_a_result_is_readable_and_is_json():
    found = kl([two_steps()], [[NAN, -1.5, -0.001, NAN, -1.0, -0.5]])
    assert str(found).splitlines()[0] == "critical: k1 -0.125, k2 0.1562, k3 0.2062 over 4 tokens"
    assert "25.0% of the tokens" in str(found)
    record = json.loads(json.dumps(found.to_dict()))
    assert record["verdict"] == "critical"
    assert record["by_step"]["3"]["tokens"] == 2


def test_no_token_is_healthy():
    assert kl([], []).all == Estimate(0, 0.0, 0.0, 0.0)
    assert kl([], []).verdict == "healthy"
    assert "healthy" in str(kl([], []))


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        ([], "1 samples, but trainer_logprobs has 0 arrays"),
        ([np.zeros(5)], r"shape \(5,\); expected \(6,\).*shifted logits, there are 5 values"),
        ([np.zeros((6, 1))], "shape"),
        ([["a"] * 6], "not an array of numbers"),
        ([[0, 0, NAN, 0, 0, 0]], r"trainer_logprobs\[0\]: the value of token 2 is nan"),
        ([[0, 0, 0, 0, -INF, 0]], "token 4 is -inf"),
        ([[0, 0, 0, 0, 0, 1.5]], r"token 5 is 1\.5"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(trainer: Any, said: str):
    with pytest.raises(InvalidSample, match=said):
        kl([two_steps()], trainer)


def test_the_samplers_log_probabilities_are_checked_too():
    with pytest.raises(InvalidSample, match="sample 0 has no logprobs"):
        kl([two_steps(None)], [np.zeros(6)])
    with pytest.raises(InvalidSample, match=r"sample 0, .*: logprobs\[1\] = nan"):
        kl([two_steps([0, NAN, 0, 0, 0, 0])], [np.zeros(6)])
    for bin_size in (0, -1, 1.5, "a", None):
        with pytest.raises(ConfigError, match="bin_size"):
            kl([], [], bin_size=bin_size)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("wrong", [3, None, two_steps(), [3], [None]])
def test_what_is_no_list_of_samples_is_refused(wrong: Any):
    with pytest.raises(InvalidSample, match=r"list of samples|sample 0 is "):
        kl(wrong, [np.zeros(6)])
    with pytest.raises(InvalidSample, match="trainer_logprobs is an int; expected a list"):
        kl([two_steps()], 3)  # pyright: ignore[reportArgumentType]


# Token logs.


def test_sampled_tokens_are_compared_at_their_positions():
    one = two_steps()
    assert token_match([one], [one]).share == 1.0
    found = token_match([one, one], [[0, 1, 9, 3, 4], one])  # token 2 is another, token 5 is missing
    assert (found.sampled, found.same, found.differing_records, found.first_difference) == (8, 6, 1, (0, 2))
    assert token_match([one], [[9, 1, 2, 9, 4, 5]]).share == 1.0  # what was not sampled does not count
    assert token_match([[1, 2, 3]], [[1, 2]]).share == pytest.approx(2 / 3)
    assert token_match([], []).share == token_match([[]], [[]]).share == 1.0
    assert str(found).startswith("75.0% of the sampled tokens are the same at the same position (6 of 8)")
    assert json.loads(json.dumps(found.to_dict()))["share"] == 0.75


@pytest.mark.parametrize(
    ("sampled", "trained"),
    [
        ([[1]], []),
        ([[1.5]], [[1]]),
        ([[[1]]], [[1]]),
        ([[1]], [[[1]]]),
        (3, [[1]]),
        ([[1]], None),
        ([[-1]], [[1]]),
        (["a"], ["a"]),
    ],
)
def test_records_that_are_no_ids_are_refused(sampled: Any, trained: Any):
    with pytest.raises(InvalidSample):
        token_match(sampled, trained)


# Breaks.

LOOK = {"type": "function", "function": {"name": "look_up", "description": "Look.", "parameters": {"type": "object"}}}
SAVE = {"type": "function", "function": {"name": "save", "description": "Save it.", "parameters": {"type": "object"}}}
USER = Message(role="user", content="What is the capital of France?")
MORE = Message(role="user", content="And of Italy?")
ANSWER = Message(role="assistant", reasoning="It is a simple question.\nSo.", content="It is Paris, of course.")
CALL = Message(
    role="assistant", reasoning="I look.", tool_calls=({"name": "look_up", "arguments": {"what": "é", "n": [1, 2]}},)
)
RESULT = Message(role="tool", name="look_up", content="Paris")


@pytest.fixture(scope="module", params=["embedded", "qwen3"])
def qwen3(request: pytest.FixtureRequest) -> Renderer:
    return get_renderer("qwen3", "embedded" if request.param == "embedded" else real_models.qwen3_folder())


@pytest.fixture(scope="module")
def harmony() -> Renderer:
    return get_renderer("harmony", real_models.gpt_oss_tokenizer())


def kept(renderer: Renderer, messages: Sequence[Message], **options: Any) -> np.ndarray:
    return renderer.render(messages, history="keep", **options).tokens


def encode(renderer: Renderer, text: str) -> np.ndarray:
    """The tokens of a text in which control tokens are meant."""
    out = renderer._emission()
    out.scaffold(text)
    return out.tokens()[0]


def both_ways(first: np.ndarray, second: np.ndarray, tokenizer: Tokenizer) -> str:
    """The cause, which is the same for tokens and for their texts."""
    found = explain_break(first, second, tokenizer)
    assert str(found)
    assert json.loads(json.dumps(found.to_dict()))["cause"] == found.cause
    assert np.array_equal(first[: found.position], second[: found.position])
    assert explain_break(tokenizer.decode(first), tokenizer.decode(second)).cause == found.cause
    return found.cause


def test_a_prompt_that_goes_on_is_no_break(qwen3: Renderer):
    first, second = kept(qwen3, [USER, ANSWER]), kept(qwen3, [USER, ANSWER, MORE], generation_prompt=True)
    found = explain_break(first, second, qwen3.tokenizer)
    assert (found.cause, found.position, found.lost) == ("none", len(first), 0)
    assert explain_break(first, first, qwen3.tokenizer).detail == "the prompts are the same"
    assert str(found) == "no break: the second prompt begins with the first"


def test_stripped_thinking_is_recognized(qwen3: Renderer):
    first, second = kept(qwen3, [USER, ANSWER]), qwen3.render([USER, ANSWER, MORE], generation_prompt=True).tokens
    found = explain_break(first, second, qwen3.tokenizer)
    assert (found.cause, found.detail) == ("thinking_stripped", "reasoning removed: 28 characters")
    assert found.first.startswith("<think>\nIt is a simple")
    assert found.second.startswith("It is Paris")
    assert found.before.endswith("<|im_start|>assistant\n")
    assert both_ways(first, second, qwen3.tokenizer) == "thinking_stripped"
    assert both_ways(second, first, qwen3.tokenizer) == "thinking_added"


def test_stripped_thinking_is_recognized_where_an_empty_block_is_left_or_an_empty_block_is_gone(qwen3: Renderer):
    empty = ANSWER.model_copy(update={"reasoning": ""})
    bare = ANSWER.model_copy(update={"reasoning": None})
    full, left, gone = (kept(qwen3, [USER, reply, MORE]) for reply in (ANSWER, empty, bare))
    assert both_ways(full, left, qwen3.tokenizer) == "thinking_stripped"
    assert both_ways(left, gone, qwen3.tokenizer) == "thinking_stripped"
    assert "an empty block" in explain_break(left, gone, qwen3.tokenizer).detail


def test_stripped_thinking_is_recognized_in_harmony(harmony: Renderer):
    first, second = kept(harmony, [USER, ANSWER]), harmony.render([USER, ANSWER, MORE], generation_prompt=True).tokens
    assert both_ways(first, second, harmony.tokenizer) == "thinking_stripped"


def test_another_reasoning_is_not_a_stripped_one(qwen3: Renderer):
    other = ANSWER.model_copy(update={"reasoning": "Another thought."})
    assert both_ways(kept(qwen3, [USER, ANSWER]), kept(qwen3, [USER, other]), qwen3.tokenizer) == "unknown"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<|im_end|>\n", "<|im_end|>"),
        ("</think>\n\n", "</think>\n"),
        ("</think>\n\n", "</think>"),
        ("Paris, ", "Paris,  "),
    ],
)
def test_whitespace_is_recognized(qwen3: Renderer, before: str, after: str):
    text = qwen3.tokenizer.decode(kept(qwen3, [USER, ANSWER, MORE]))
    first, second = encode(qwen3, text), encode(qwen3, text.replace(before, after))
    assert both_ways(first, second, qwen3.tokenizer) == "newline"
    assert both_ways(second, first, qwen3.tokenizer) == "newline"


@pytest.mark.parametrize(
    "style", [{"separators": (",", ":")}, {"ensure_ascii": True}, {"indent": 2}, {"sort_keys": True}]
)
def test_json_that_was_dumped_again_is_recognized(qwen3: Renderer, harmony: Renderer, style: dict[str, Any]):
    arguments = {"what": "é", "n": [1, 2]}
    again = json.dumps(arguments, **{"ensure_ascii": False, **style})
    written = CALL.model_copy(update={"tool_calls": (CALL.tool_calls[0].model_copy(update={"arguments": again}),)})
    for renderer in (qwen3, harmony):
        first, second = kept(renderer, [USER, CALL, RESULT]), kept(renderer, [USER, written, RESULT])
        if renderer.tokenizer.decode(first) != renderer.tokenizer.decode(second):
            assert both_ways(first, second, renderer.tokenizer) == "json_redumped"


def test_json_that_was_encoded_twice_is_recognized():
    call = '{"name": "f", "arguments": {"a": "b"}}'
    twice = json.dumps({"name": "f", "arguments": '{"a": "b"}'})
    assert explain_break(call, twice).cause == "json_redumped"
    assert explain_break(twice, call).cause == "json_redumped"


def test_json_that_says_something_else_is_not_recognized_as_the_same():
    assert explain_break('<c>{"a": 1, "b": [1]}</c>', '<c>{"a": 1, "b": [2]}</c>').cause == "unknown"


def test_tokens_that_spell_the_same_text_in_another_way_are_recognized(qwen3: Renderer):
    tokenizer = qwen3.tokenizer
    head, word = kept(qwen3, [USER], generation_prompt=True), tokenizer.encode("Strawberry pancakes")
    letters = np.concatenate([tokenizer.encode(letter) for letter in "Strawberry pancakes"])
    tail = tokenizer.encode("\nand so on")
    found = explain_break(np.r_[head, letters, tail], np.r_[head, word, tail], tokenizer)
    same = next(i for i, (one, other) in enumerate(zip(letters, word, strict=False)) if one != other)
    assert (found.cause, found.position) == ("retokenized", len(head) + same)
    assert found.first == found.second
    # The end of the first prompt is inside a token of the second.
    assert explain_break(np.r_[head, letters[: same + 1]], np.r_[head, word], tokenizer).cause == "retokenized"
    # Text that differs is encoded otherwise from the token on in which it differs; that is no other split.
    other = tokenizer.encode("Strawbs and cream")
    assert explain_break(np.r_[head, word], np.r_[head, other], tokenizer).cause == "unknown"


def test_a_prompt_that_ends_inside_a_character_goes_on(qwen3: Renderer):
    pieces = qwen3.tokenizer.encode("𠜎")
    assert len(pieces) > 1
    assert explain_break(pieces[:1], pieces, qwen3.tokenizer).cause == "none"


def test_changed_tools_are_recognized(qwen3: Renderer, harmony: Renderer):
    system = Message(role="system", content="You help.")
    for renderer in (qwen3, harmony):
        for opening in ([USER], [system, USER]):
            one, two, none = (kept(renderer, opening, tools=tools) for tools in ([LOOK], [LOOK, SAVE], []))
            swapped = kept(renderer, opening, tools=[SAVE, LOOK])
            for first, second in ((one, two), (two, one), (one, none), (none, one), (two, swapped)):
                assert both_ways(first, second, renderer.tokenizer) == "tools_changed"
            assert explain_break(one, two, renderer.tokenizer).detail == "added: save"
            assert explain_break(two, one, renderer.tokenizer).detail == "removed: save"


def test_a_changed_date_is_recognized(qwen3: Renderer):
    days = (date(2025, 8, 5), date(2025, 8, 16), date(2026, 1, 5))
    for form in ("%Y-%m-%d", "%d %b %Y", "%B %d, %Y", "%d/%m/%Y", "%d.%m.%Y"):
        texts = [f"Today is {day.strftime(form)}. Be brief." for day in days]
        for other in texts[1:]:
            first, second = (kept(qwen3, [Message(role="system", content=text), USER]) for text in (texts[0], other))
            assert both_ways(first, second, qwen3.tokenizer) == "date_changed"


def test_the_date_of_harmony_is_recognized():
    prompts = [
        kept(get_renderer("harmony", real_models.gpt_oss_tokenizer(), current_date=day), [USER], tools=[LOOK])
        for day in ("2025-08-05", "2025-08-06")
    ]
    assert both_ways(*prompts, real_models.gpt_oss_tokenizer()) == "date_changed"


def test_what_has_no_known_cause_is_unknown(qwen3: Renderer):
    other = ANSWER.model_copy(update={"content": "It is Lyon."})
    assert both_ways(kept(qwen3, [USER, ANSWER]), kept(qwen3, [USER, other]), qwen3.tokenizer) == "unknown"


@given(st.text(), st.text())
def test_any_two_texts_have_an_explanation(first: str, second: str):
    found = explain_break(first, second)
    assert first[: found.position] == second[: found.position]
    assert (found.cause == "none") == second.startswith(first)
    assert first[found.position : found.position + 1] != second[found.position : found.position + 1] or first == second


@given(st.lists(st.integers(0, 4000), max_size=30), st.lists(st.integers(0, 4000), max_size=30))
def test_any_two_prompts_have_an_explanation(first: list[int], second: list[int]):
    found = explain_break(first, second, get_renderer("qwen3", "embedded").tokenizer)
    assert (found.cause == "none") == (second[: len(first)] == first)
    assert first[: found.position] == second[: found.position]


def test_a_text_and_tokens_cannot_be_compared(qwen3: Renderer):
    for first, second, tokenizer in (("a", [1], qwen3.tokenizer), ([1], "a", qwen3.tokenizer), ([1], [1], None)):
        with pytest.raises(ConfigError, match="two strings, or two arrays"):
            explain_break(first, second, tokenizer)


@pytest.mark.parametrize("wrong", [[1.5], [[1]], 3, None, ["a"], [[1], [1, 2]], [-1], [2**40], [2**70], {1}, b"ab"])
def test_what_is_no_prompt_is_refused(wrong: Any):
    tokenizer = get_renderer("qwen3", "embedded").tokenizer
    for first, second in ((wrong, [1]), ([1], wrong)):
        with pytest.raises(InvalidSample, match=r"the (first|second) prompt .*(expected token ids|not a flat array)"):
            explain_break(first, second, tokenizer)


def test_ids_beyond_the_vocabulary_are_explained(qwen3: Renderer):
    assert explain_break([1, 10**9], [1, 10**9 + 1], qwen3.tokenizer).position == 1


def test_a_think_tag_in_somebodys_text_hides_no_stripped_thinking(qwen3: Renderer):
    asked = Message(role="user", content="What does <think> mean?")
    first = kept(qwen3, [asked, ANSWER])
    second = qwen3.render([asked, ANSWER, MORE], generation_prompt=True).tokens
    assert both_ways(first, second, qwen3.tokenizer) == "thinking_stripped"


def test_a_heading_that_names_tools_is_no_list_of_tools():
    assert explain_break("# Tools\nhammer, saw", "# Tools\nhammer, axe").cause == "unknown"


def test_numbers_in_json_may_be_written_in_another_way_and_true_is_no_number():
    assert explain_break('{"a": 1.0, "b": 1e2}', '{"a": 1, "b": 100}').cause == "json_redumped"
    assert explain_break('{"a": 1}', '{"a": true}').cause == "unknown"


@pytest.mark.parametrize(
    "piece",
    [
        "# Tools\n",
        "<tools>",
        "<think>",
        "{",
        "[",
        '{"a":',
        '"',
        "1",
        "2025-",
        "namespace a {",
        "</think>",
        "\n ",
        "é𠜎\ud800",
    ],
)
def test_huge_and_hostile_texts_are_explained(piece: str):
    text = piece * (20_000 // len(piece))  # who takes the square of its length does not come to an end
    for first, second in ((text + "a", text + "b"), ("a" + text, "b" + text), (text + "a" + text, text + "b" + text)):
        found = explain_break(first, second)
        assert found.cause == "unknown"
        assert found.first[0] != found.second[0]


# Costs.


@pytest.mark.parametrize("history", ["keep", "strip", {"name": "compact", "every": 2}])
def test_costs_add_up(history: Any):
    trajectories = rollout_many(lambda: make("envsdk/MathChat-v0", history=history), "reference", seeds=range(3))
    found = cost(trajectories)
    samples = [sample for trajectory in trajectories for sample in trajectory.samples()]
    prompts = [prompt for trajectory in trajectories for prompt in trajectory.prompts()]
    assert found.sampled == found.trained == sum(len(prompt.action) for prompt in prompts)
    assert found.prompts == sum(len(prompt.prompt) for prompt in prompts)
    assert found.as_samples == sum(map(len, samples))
    assert found.as_tree == found.sampled + found.observed
    assert found.samples == len(samples)
    assert sum(part.breaks for part in found.breaks.values()) == sum(len(t.breaks) for t in trajectories)
    assert sum(part.dropped for part in found.breaks.values()) == sum(b.dropped for t in trajectories for b in t.breaks)
    assert (found.breaks == {}) == (history == "keep")
    assert str(found).startswith("3 episodes, ")
    assert json.loads(json.dumps(found.to_dict()))["prompts"] == found.prompts


def test_of_a_failed_episode_nothing_is_trained():
    trajectory = rollout(make("envsdk/MathChat-v0"), "reference", seed=0)
    found = cost(replace(trajectory, status="error"))
    assert (found.episodes, found.failed, found.trained, found.as_samples, found.as_tree) == (1, 1, 0, 0, 0)
    assert found.sampled == trajectory.sampled_tokens
    assert "(1 failed)" in str(found)
    assert str(cost([])) == "\n".join(
        (
            "0 episodes, 0 contexts, 0 steps, 0 samples",
            "sampled 0 tokens, observed 0",
            "prompts 0 tokens, none of them kept by the KV cache",
            "trained 0 tokens: 0 as samples, 0 as trees",
        )
    )


@pytest.mark.parametrize("wrong", [3, None, "ab", [None], [[]]])
def test_what_is_no_trajectory_is_refused(wrong: Any):
    with pytest.raises(ConfigError, match=r"trajectory 0 is .*; expected a Trajectory"):
        cost(wrong)


class Worker(Env):
    """Asks as often as its task says; then it ends, or fails if its task is negative."""

    def start(self) -> Turn:
        self.left = abs(self.task)
        return Turn(f"Count down from {self.task}.", system="You count.")

    def respond(self, reply: Message) -> Turn:
        self.left -= 1
        if self.left or self.task > 0:
            return Turn("Go on.", terminated=not self.left)
        raise RuntimeError("the disk is full")


class Boss(Env):
    """Hands over as its plan says: a number is a worker's task, a list a boss's plan."""

    def __init__(self, plan: list[Any], full: bool, **options: Any) -> None:
        super().__init__(**options)
        self.plan, self.full = plan, full

    def start(self) -> Turn:
        self.left = list(self.plan)
        return Turn("Delegate.")

    def respond(self, reply: Message) -> Any:
        if not self.left:
            return Turn("Good.", reward=1.0, terminated=True)
        task, history = self.left.pop(0), "full" if self.full else "fresh"
        if isinstance(task, list):
            return Handoff(Boss(task, self.full), role="boss", history=history)
        return Handoff(Worker(), task, history=history)

    def resume(self, result: HandoffResult) -> Turn:
        return Turn("And now?")


def delegated(plan: list[Any], full: bool, history: str = "keep", seed: int = 0) -> Trajectory:
    env = Boss(plan, full, history=history)
    return rollout(env, RandomPolicy(env.renderer.tokenizer.vocab_size, seed=seed), seed=seed)


def test_costs_of_an_episode_with_sub_agents():
    found = cost(delegated([2, [1]], full=False))
    assert (found.episodes, found.contexts, found.steps, found.samples) == (1, 4, 8, 4)
    assert {reason: part.breaks for reason, part in found.breaks.items()} == {"handoff": 3, "return": 3}
    assert found.breaks["handoff"].kept == 0
    assert found.breaks["return"].kept > 0
    assert found.breaks["handoff"].dropped == found.breaks["return"].dropped == 0
    assert found.as_samples == found.as_tree == found.sampled + found.observed
    assert "3 return: 0 tokens dropped," in str(found)


PLANS = st.recursive(st.integers(-3, 3).filter(bool), lambda inner: st.lists(inner, max_size=3), max_leaves=6)


@given(st.lists(PLANS, max_size=3), st.booleans(), st.sampled_from(["keep", "strip"]), st.integers(0, 99))
def test_costs_add_up_whatever_was_handed_over(plan: list[Any], full: bool, history: str, seed: int):
    trajectory = delegated(plan, full, history, seed)
    found = cost(trajectory)
    samples = trajectory.samples()
    prompts = list(trajectory.prompts())
    assert found.prompts == sum(len(prompt.prompt) for prompt in prompts)
    assert found.sampled == sum(len(prompt.action) for prompt in prompts)
    assert found.trained == sum(int(sample.mask.sum()) for sample in samples)
    assert max(map(len, samples)) <= found.as_tree <= min(found.as_samples, found.sampled + found.observed)
    if not any(log.error for log in trajectory.contexts.values()):
        assert found.as_tree == trajectory.tree_size()
    assert sum(part.breaks for part in found.breaks.values()) == len(trajectory.breaks)
    assert sum(part.kept for part in found.breaks.values()) <= found.kept
    assert sum(part.observed for part in found.breaks.values()) <= found.observed


def branches(trajectory: Trajectory) -> int:
    """The size of the tree of what is trained, the slow way: prompts are sequences of the places of their tokens."""
    contexts: dict[str, list[tuple[str, int]]] = {}
    tree: set[tuple[str, int]] = set()
    for step in trajectory.steps:
        before = contexts.get(step.base, [])[: step.keep]
        path = [*before, *((step.context, at) for at in range(step.start, step.stop))]
        contexts[step.context] = path
        if step.stop > step.action_start and trajectory.contexts[step.context].error is None:
            tree.update(path)
    return len(tree)


@given(st.lists(PLANS, max_size=3), st.booleans(), st.sampled_from(["keep", "strip"]))
def test_the_tree_is_what_is_trained_and_what_stands_before_it(plan: list[Any], full: bool, history: str):
    trajectory = delegated(plan, full, history)
    assert cost(trajectory).as_tree == branches(trajectory)
