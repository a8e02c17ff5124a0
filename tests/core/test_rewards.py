"""Scorers of replies: what is right, what a reply can do to them, and what a caller gets wrong."""

import copy
import json
import pickle
import string
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk import Turn, errors, rewards

ANY_TEXT = st.text(max_size=60) | st.text(alphabet="0123456789.,+-/eE\u2212 \n", max_size=30)
WORDS = st.lists(st.sampled_from(["red", "Green", "blue", "the", "sea", "a-b"]), max_size=6).map(" ".join)
NUMBERS = st.fractions(max_denominator=10**6).map(str) | st.decimals(-(10**9), 10**9, places=4).map(str)

SCORERS: dict[str, tuple[Callable[..., float | None], Any]] = {
    "exact": (rewards.exact(whitespace="collapse", ignore_case=True, ignore_punctuation=True), "Paris"),
    "f1": (rewards.f1(), "the red sea"),
    "regex": (rewards.regex(r"[0-9]+"), None),
    "whole regex": (rewards.regex(r"[0-9]+", where="whole"), None),
    "numeric": (rewards.numeric(relative=0.01), 42),
    "last number": (rewards.numeric(find="last", grouped=True), "1,000"),
    "extract": (rewards.extract(r"<a>(.*?)</a>", rewards.exact()), "Paris"),
    "best": (rewards.best(rewards.exact()), ["Paris", "Lutetia"]),
}


# What holds for every scorer.


@pytest.mark.parametrize("name", SCORERS)
@settings(max_examples=settings.default.max_examples // 3)
@given(reply=ANY_TEXT)
def test_any_reply_has_the_same_score_from_0_to_1_each_time_and_in_a_copy(name: str, reply: str) -> None:
    function, target = SCORERS[name]
    score = function(reply, target)
    assert isinstance(score, float)
    assert 0 <= score <= 1
    copies = [copy.deepcopy(function), pickle.loads(pickle.dumps(function))]
    assert [one(reply, target) for one in (function, *copies)] == [score] * 3
    assert copies == [function] * 2


@pytest.mark.matrix
@pytest.mark.parametrize("name", SCORERS)
@pytest.mark.parametrize(
    "reply", ["9" * 10**6, "1/" * 10**6, "1,234" * 10**5, " " * 10**6, "a" + "\u0300\u0327" * 10**5]
)
def test_an_enormous_reply_has_a_score(name: str, reply: str) -> None:
    function, target = SCORERS[name]
    assert 0 <= function(reply, target) <= 1  # what is quadratic takes minutes


# The same text.


@pytest.mark.parametrize(
    ("options", "reply", "score"),
    [
        ({}, " Paris\n", 1.0),
        ({}, "paris", 0.0),
        ({}, "Par\u0131s", 0.0),
        ({"whitespace": "as_is"}, "Paris ", 0.0),
        ({"ignore_case": True}, "PARIS", 1.0),
        ({"ignore_punctuation": True}, "**Paris**.", 1.0),
        ({"ignore_articles": True}, "the Paris", 1.0),
        ({"ignore_case": True, "ignore_articles": True}, "The Paris", 1.0),
    ],
)
def test_exact_ignores_what_its_options_say_and_nothing_else(options: dict, reply: str, score: float) -> None:
    assert rewards.exact(**options)(reply, "Paris") == score


def test_exact_takes_an_accent_however_it_is_written() -> None:
    assert rewards.exact()("Caf\u00e9", "Cafe\u0301") == 1.0
    assert rewards.exact(whitespace="collapse")("New \n York", "New York") == 1.0


@settings(max_examples=settings.default.max_examples // 3)
@given(text=st.text(max_size=40))
def test_a_text_is_exactly_itself(text: str) -> None:
    assert rewards.exact()(text, text) == 1.0
    assert rewards.exact(whitespace="as_is")(text + "x", text) == 0.0


@settings(max_examples=settings.default.max_examples // 3)
@given(said=WORDS, wanted=WORDS)
def test_f1_is_symmetric_and_1_for_the_same_words_in_any_order(said: str, wanted: str) -> None:
    f1 = rewards.f1()
    assert f1(said, wanted) == f1(wanted, said)
    assert f1(" ".join(reversed(said.split())), said) == 1.0
    assert (f1(said, wanted) == 1.0) == (_squad(said) == _squad(wanted))


def _squad(text: str) -> list[str]:
    kept = "".join(char for char in text.lower() if char not in string.punctuation)
    return sorted(word for word in kept.split() if word not in ("a", "an", "the"))


def test_f1_counts_a_repeated_word_once_for_each_time_that_it_is_wanted() -> None:
    assert rewards.f1()("red red red", "red sea") == pytest.approx(2 * (1 / 3 * 1 / 2) / (1 / 3 + 1 / 2))
    assert rewards.f1()("", "red") == 0.0
    assert rewards.f1()("the", "a") == 1.0  # neither has a word


@pytest.mark.parametrize(("where", "score"), [("anywhere", 1.0), ("whole", 0.0)])
def test_a_pattern_is_looked_for_anywhere_or_has_to_be_the_whole(where: str, score: float) -> None:
    assert rewards.regex(r"[0-9]+", where=where)("It is 42.") == score
    assert rewards.regex(r"[0-9]+", where=where)(" 42\n") == 1.0


def test_a_pattern_is_not_looked_for_in_a_reply_that_is_too_long() -> None:
    slow = rewards.regex(r"\s+$", max_chars=1000)
    assert slow(" " * 1000) == 1.0
    assert slow(" " * 1001) == 0.0


# Numbers.


@pytest.mark.parametrize(
    ("reply", "target", "score"),
    [
        ("42", 42, 1),
        (" +42.0 ", 42, 1),
        ("\u221242", -42, 1),
        ("4.2e1", 42, 1),
        (".5", 0.5, 1),
        ("0.1", 0.1, 1),
        ("0.1", np.float32(0.1), 1),
        ("3", np.int64(3), 1),
        ("1/3", Fraction(1, 3), 1),
        ("2/6", "1/3", 1),
        ("0.3333", "1/3", 0),
        ("1000", "1,000", 1),
        ("1,000", 1000, 0),
        ("2.5", Decimal("2.50"), 1),
        ("42.", 42, 0),
        ("42 km", 42, 0),
        ("inf", 42, 0),
        ("nan", 42, 0),
        ("1_000", 1000, 0),
        ("0x2a", 42, 0),
        ("\u0664\u0662", 42, 0),
        ("1/0", 42, 0),
        ("1e999999999", 42, 0),
        ("4" * 401, int("4" * 401), 0),
        ("", 0, 0),
        ("- 42", -42, 0),
    ],
)
def test_the_whole_reply_is_a_number(reply: str, target: Any, score: int) -> None:
    assert rewards.numeric()(reply, target) == score


@pytest.mark.parametrize(
    ("reply", "last"),
    [
        ("It is **42**.", 42),
        ("1, 2, 3", 3),
        ("x = -7, so x^2 = 49", 49),
        ("$1,234.50!", "1234.5"),
        ("5%", 5),
        (r"\boxed{3/4}", "3/4"),
        ("between 3-5", None),
        ("v2.1.3", None),
        ("2^10", None),
        ("07/12/1990", None),
        ("2024-01-15", None),
        ("12kg", None),
        ("1,23", None),
        ("none", None),
    ],
)
def test_the_last_number_is_one_that_stands_by_itself(reply: str, last: Any) -> None:
    scorer = rewards.numeric(find="last", grouped=True)
    if last is None:
        numbers = [1, 2, 3, 5, 10, 12, 15, 23, 1990, "2.1", 13, -5, -15]
        assert [scorer(reply, number) for number in numbers] == [0.0] * len(numbers)
    else:
        assert scorer(reply, last) == 1.0


@settings(max_examples=settings.default.max_examples // 3)
@given(number=NUMBERS, text=st.sampled_from(["{}", "It is {}.", "first 7, then {}", "**{}**", "({})"]))
def test_every_number_that_is_written_is_found_again(number: str, text: str) -> None:
    assert rewards.numeric()(number, number) == 1.0
    assert rewards.numeric(find="last")(text.format(number), number) == 1.0


@settings(max_examples=settings.default.max_examples // 3)
@given(
    target=st.fractions(-(10**6), 10**6, max_denominator=10**4),
    off=st.fractions(-9, 9, max_denominator=99),
    tolerance=st.floats(0, 9),
)
def test_a_tolerance_is_exact_at_its_end(target: Fraction, off: Fraction, tolerance: float) -> None:
    scorer = rewards.numeric(absolute=tolerance)
    assert scorer(str(target + off), target) == float(abs(off) <= Fraction(tolerance))


def test_the_larger_of_two_tolerances_counts() -> None:
    assert rewards.numeric(absolute=1, relative=0.1)("109", 100) == 1.0
    assert rewards.numeric(absolute=1, relative=0.1)("0.9", 0) == 1.0
    assert rewards.numeric(relative=0.1)("89", 100) == 0.0


# A part of the reply, and one of several targets.


def test_the_last_part_that_fits_is_scored() -> None:
    scorer = rewards.extract(r"<answer>(.*?)</answer>", rewards.numeric())
    assert scorer("<answer>1</answer> no, <answer>42</answer>", 42) == 1.0
    assert scorer("42", 42) == 0.0
    assert rewards.extract(r"[A-D]", rewards.exact())("A or B? B", "B") == 1.0


def test_any_of_several_targets_is_right() -> None:
    scorer = rewards.best(rewards.f1())
    assert scorer("New York City", ["NYC", "New York"]) == pytest.approx(0.8)
    assert rewards.best(lambda reply, target: None)("x", ["y"]) is None


# Named and weighted.


def test_the_rewards_of_a_turn_are_named_and_weighted() -> None:
    score = rewards.weighted(correct=(0.8, rewards.numeric()), format=(0.2, rewards.regex(r"\d+")))
    assert score("42", 42) == {"correct": 0.8, "format": 0.2}
    assert score("41", 42) == {"correct": 0.0, "format": 0.2}
    assert Turn(reward=score("42", 42)).reward == pytest.approx(1.0)
    assert score.reward_range == (0.0, 1.0)
    assert "numeric(" in repr(score)


def test_a_part_that_was_not_scored_is_left_out_as_a_turn_has_it() -> None:
    score = rewards.weighted(correct=(1.0, rewards.exact()), style=(1.0, lambda reply, target: None))
    assert score("a", "a") == {"correct": 1.0}
    assert rewards.weighted(style=(1.0, lambda reply, target: None))("a") is None
    assert Turn(reward=None).reward is None


def test_a_negative_weight_is_a_penalty() -> None:
    score = rewards.weighted(correct=(1.0, rewards.exact()), sorry=(-0.5, rewards.regex("sorry")))
    assert score("sorry", "sorry") == {"correct": 1.0, "sorry": -0.5}
    assert str(score("a", "b")) == "{'correct': 0.0, 'sorry': 0.0}"
    assert score.reward_range == (-0.5, 1.0)


@settings(max_examples=settings.default.max_examples // 3)
@given(weights=st.lists(st.floats(-5, 5), min_size=1, max_size=4), scores=st.lists(st.floats(0, 1), min_size=4))
def test_rewards_lie_in_their_range(weights: list[float], scores: list[float]) -> None:
    parts = {
        f"part{i}": (weight, lambda reply, target, score=score: score)
        for i, (weight, score) in enumerate(zip(weights, scores, strict=False))
    }
    score = rewards.weighted(**parts)
    least, most = score.reward_range
    assert least - 1e-9 <= sum(score("").values()) <= most + 1e-9


def test_weighted_scorers_can_be_pickled() -> None:
    score = rewards.weighted(correct=(0.8, rewards.numeric()), format=(0.2, rewards.regex(r"\d+")))
    assert pickle.loads(pickle.dumps(score))("42", 42) == score("42", 42)


# What a caller gets wrong.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rewards.regex("("), r"'\('.*not a regular expression"),
        (lambda: rewards.regex(b"a"), "pattern"),
        (lambda: rewards.regex("a", where="start"), "where"),
        (lambda: rewards.regex("a", max_chars=0), "max_chars"),
        (lambda: rewards.extract("(", rewards.exact()), "regular expression"),
        (lambda: rewards.extract("a", rewards.exact), "expected a scorer"),
        (lambda: rewards.best("exact"), "expected a scorer"),
        (lambda: rewards.in_thread(None), "expected a scorer"),
        (lambda: rewards.exact(whitespace="none"), "whitespace"),
        (lambda: rewards.exact(ignore_case="yes"), "ignore_case"),
        (lambda: rewards.f1(ignore_articles=1), "ignore_articles"),
        (lambda: rewards.numeric(absolute=-1), "absolute"),
        (lambda: rewards.numeric(relative=float("nan")), "relative"),
        (lambda: rewards.numeric(absolute=True), "absolute"),
        (lambda: rewards.numeric(find="first"), "find"),
        (lambda: rewards.unit_tests(partial="yes"), "partial"),
        (lambda: rewards.unit_tests(isolation=None), "isolation"),
        (lambda: rewards.weighted(), "no parts"),
        (lambda: rewards.weighted(a=rewards.exact()), "a is"),
        (lambda: rewards.weighted(a=(float("inf"), rewards.exact())), "weight of a"),
        (lambda: rewards.weighted(a=("1", rewards.exact())), "weight of a"),
        (lambda: rewards.weighted(a=(1, "exact")), "scorer of a"),
        (lambda: rewards.weighted(a=(1, rewards.in_thread(rewards.exact()))), "aweighted"),
    ],
)
def test_a_wrong_option_is_refused_when_the_scorer_is_made(make: Callable[[], object], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        make()


@pytest.mark.parametrize("score", [1.5, -0.1, float("nan"), "1", [1]])
def test_a_scorer_that_returns_no_score_is_named(score: object) -> None:
    with pytest.raises(errors.ConfigError, match="of style returned"):
        rewards.weighted(style=(1.0, lambda reply, target: score))("x")


@pytest.mark.parametrize(
    ("scorer", "target"),
    [
        (rewards.exact(), None),
        (rewards.exact(), 42),
        (rewards.f1(), ["a"]),
        (rewards.numeric(), "forty-two"),
        (rewards.numeric(), float("nan")),
        (rewards.numeric(), True),
        (rewards.numeric(), None),
        (rewards.best(rewards.exact()), "Paris"),
        (rewards.best(rewards.exact()), []),
        (rewards.unit_tests(), None),
        (rewards.unit_tests(), ""),
        (rewards.unit_tests(), []),
        (rewards.unit_tests(), {"stdin": "1"}),
    ],
)
def test_a_target_that_does_not_fit_is_an_error_of_the_task(scorer: Callable[..., Any], target: Any) -> None:
    with pytest.raises(errors.TaskError, match="target"):
        scorer("x", target)


# JSON. jsonschema is not a dependency: without it, these tests report that it is missing.

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"$ref": "#/$defs/age"}},
    "required": ["name"],
    "$defs": {"age": {"type": "integer", "minimum": 0}},
}


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ('{"name": "Ada", "age": 36}', 1.0),
        (' {"name": "Ada"}\n', 1.0),
        ('{"name": "Ada", "age": -1}', 0.0),
        ("{}", 0.0),
        ('```json\n{"name": "Ada"}\n```', 0.0),
        ('{"name": "Ada", "age": NaN}', 0.0),
        ('{"name": "Ada"', 0.0),
        ("", 0.0),
        ("[" * 100_000, 0.0),
        ('{"name": "' + "a" * 100_000 + '"}', 0.0),
        ('{"name": "Ada", "age": ' + "9" * 5000 + "}", 0.0),
        ('{"name": "\\ud800"}', 0.0),
    ],
)
def test_a_reply_is_json_of_a_schema_or_not(reply: str, score: float) -> None:
    pytest.importorskip("jsonschema")
    scorer = rewards.json_schema(PERSON)
    assert scorer(reply) == score
    assert pickle.loads(pickle.dumps(scorer))(reply) == score


def test_json_is_taken_out_of_a_code_block_by_extract() -> None:
    pytest.importorskip("jsonschema")
    scorer = rewards.extract(r"(?s)```json\n(.*?)```", rewards.json_schema(PERSON))
    assert scorer('Here:\n```json\n{"name": "Ada"}\n```') == 1.0


@pytest.mark.parametrize("schema", [{"type": "person"}, {"minimum": "1"}, ["object"], None])
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    pytest.importorskip("jsonschema")
    with pytest.raises(errors.ConfigError, match="schema"):
        rewards.json_schema(schema)


@pytest.mark.parametrize("reference", ["https://example.invalid/schema.json", "#/nowhere", "#"])
def test_a_schema_that_refers_elsewhere_loads_nothing(reference: str) -> None:
    pytest.importorskip("jsonschema")
    with pytest.raises(errors.ConfigError, match="refers to"):
        rewards.json_schema({"$ref": reference})("{}")


def test_a_schema_that_is_changed_later_is_the_same_for_the_scorer() -> None:
    pytest.importorskip("jsonschema")
    schema = json.loads(json.dumps(PERSON))
    scorer = rewards.json_schema(schema)
    schema["required"].append("shoe_size")
    assert scorer('{"name": "Ada"}') == 1.0


def test_without_jsonschema_the_advice_is_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jsonschema", None)
    with pytest.raises(ImportError, match=r"pip install 'envsdk\[json-schema\]'"):
        rewards.json_schema(PERSON)


def test_numbers_beyond_all_bounds_end_nothing() -> None:
    with pytest.raises(errors.TaskError, match="expected a finite number"):
        rewards.numeric()("5", Decimal("1e999999999"))
    assert rewards.json_schema({"type": "number", "multipleOf": 0.1})("1" + "0" * 400) == 0.0
