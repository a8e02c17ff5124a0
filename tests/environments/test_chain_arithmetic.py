import importlib.util
import re
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from envsdk_environments._chain_arithmetic import ChainArithmetic, random_chain, read_answer
from hypothesis import given, settings
from hypothesis import strategies as st

import envsdk
from envsdk import Message, errors

needs_math_verify = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="math-verify is missing: pip install 'envsdk[math]'"
)
ALL = [(difficulty, split) for difficulty in ("easy", "medium", "hard") for split in ("train", "test")]
ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBERS = {word: number for number, word in enumerate(f"{ONES} eighteen nineteen".split())}
NUMBERS |= {word: 10 * number for number, word in enumerate(TENS.split(), start=2)}
MEANINGS: dict[str, Callable[[Fraction, int], Fraction]] = {
    r"Add (\S+)(?: more)?|Increase the result by (\S+)": lambda x, n: x + n,
    r"Subtract (\S+)|Take away (\S+)|Reduce the result by (\S+)": lambda x, n: x - n,
    r"Multiply by (\S+)|Take (\S+) times that|Multiply what you have by (\S+)": lambda x, n: x * n,
    r"Divide by (\S+)|Split that into (\S+) equal parts and keep one": lambda x, n: x / n,
    r"Take one of (\S+) equal parts of it": lambda x, n: x / n,
    r"Subtract the result from (\S+)|Take (\S+) and subtract what you have from it": lambda x, n: n - x,
}


def number(word: str) -> int:
    return int(word) if word[-1].isdigit() else sum(NUMBERS[part] for part in word.split("-"))


def value_of_words(question: str) -> Fraction:
    """What a reader of the words computes."""
    first, *told, asked = re.findall(r"[^.?]+", question)
    assert asked.strip() == "What is the result"
    value = Fraction(number(first.removeprefix("Start with ")))
    for sentence in told:
        matches = ((re.fullmatch(form, sentence.strip()), meaning) for form, meaning in MEANINGS.items())
        match, meaning = next((match, meaning) for match, meaning in matches if match)
        value = meaning(value, number(next(filter(None, match.groups()))))
    return value


def value_of_symbols(question: str) -> Fraction:
    """What a computer that runs the lines computes."""
    *lines, asked = question.split("\n")
    assert asked == "What is x at the end?"
    program = re.sub(r"\d+", lambda match: f"F({match.group()})", "\n".join(lines))
    names: dict[str, Any] = {"F": Fraction}
    exec(program, names)
    return names["x"]


def score(env: ChainArithmetic, content: str) -> dict[str, float]:
    return env.respond(Message(role="assistant", content=content)).rewards


@pytest.mark.parametrize(("difficulty", "split"), ALL)
@pytest.mark.parametrize("style", ["words", "symbols"])
def test_the_answer_is_the_result_of_the_question(difficulty: str, split: str, style: str):
    env = ChainArithmetic(difficulty=difficulty, split=split, style=style)
    for seed in range(8):
        env.reset(seed=seed)
        value = value_of_words if style == "words" else value_of_symbols
        assert env.reference_reply().content == f"Answer: {value(env.messages()[-1].content)}"


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_each_seed_gives_a_task_of_its_own_and_the_splits_share_none(difficulty: str, is_full: bool):
    # The others have more steps, with larger numbers.
    count = 10_000 if difficulty == "easy" and is_full else 1000 if difficulty == "easy" else 200
    chains = {
        split: {random_chain(np.random.default_rng(seed), env.config) for seed in range(count)}  # pyright: ignore[reportUnhashable]
        for split in ("train", "test")
        for env in [ChainArithmetic(difficulty=difficulty, split=split)]
    }
    assert all(len(found) >= count - 2 for found in chains.values())
    assert not chains["train"] & chains["test"]


def test_both_styles_come():
    env = ChainArithmetic()
    questions = [env.reset(seed=seed) and env.messages()[-1].content for seed in range(40)]
    assert 10 < sum(question.startswith("Start with") for question in questions) < 30


@pytest.mark.parametrize(
    "content",
    [
        "Answer: -42",
        "  Answer:-42  \r",
        "17 - 59 makes\n\nAnswer: -42\nThat is all.",
        "Answer: -42\nAnswer: -42",
        r"It is \boxed{-42}.",
        r"$\boxed{ -42 }$",
        r"Answer: \boxed{-42}",
        "\\boxed{-42}\nAnswer: -42",
    ],
)
def test_these_are_answers(content: str):
    assert read_answer(content) == "-42"


@pytest.mark.parametrize(
    "content",
    [
        *("", "-42", "The answer is -42.", "answer: -42", "My Answer: -42", "Answer:", "Answer: -42.", "Answer: --42"),
        *("Answer: +42", "Answer: - 42", "Answer: −42", "Answer: 1,000", "Answer: 1_000", "Answer: 1 000"),
        *("Answer: 4.0", "Answer: 84/2", "Answer: 6 * 7", "Answer: 1e3", "Answer: 2**8", "Answer: 0x2a", "Answer: NaN"),
        *("Answer: inf", "Answer: ٤٢", "Answer: ４２", "Answer: ²", "Answer: forty-two", "Answer: 42 or 43"),
        "Answer: 42\nAnswer: 43",
        "Answer: 42\n\\boxed{43}",
        "Answer: 42\nAnswer: see above",
        "Answer: 42\nAnswer: 042",
        *(r"\boxed{42} or \boxed{43}", r"\boxed{\boxed{42}}", r"\boxed{4{2}}", r"\boxed{42", r"\boxed 42", r"\boxed{}"),
        "Answer: " + "9" * 21,
        "Answer: " + "9" * 10**6,
        r"\boxed{" + "9" * 10**6 + "}",
    ],
    ids=lambda content: content[:40],
)
def test_these_are_none(content: str):
    assert read_answer(content) is None


@pytest.mark.parametrize(
    "piece", ["Answer:", "Answer: 1\n", "Answer:\t", " ", "\n", "\\boxed{", "\\boxed{1}", "{", "}", "\u2028", "9", "-"]
)
@pytest.mark.parametrize("in_latex", [True, False])
def test_a_huge_reply_is_read(piece: str, in_latex: bool):
    for content in (piece * 100_000, "Answer: " + piece * 100_000 + "x"):
        read_answer(content, in_latex=in_latex)  # what is quadratic takes minutes


PIECES = st.sampled_from(
    ["Answer:", "\\boxed{", "}", "{", "\\frac", "42", "-", ".", ",", "/", " ", "\n", "٣", "²", "<"]
)


@given(content=st.text() | st.lists(PIECES, max_size=12).map("".join), in_latex=st.booleans())
def test_any_text_is_read(content: str, in_latex: bool):
    answer = read_answer(content, in_latex=in_latex)
    assert answer is None or (answer in content and answer.isascii() and len(answer) <= 80)
    if answer is not None and not in_latex:
        assert str(int(answer)).lstrip("-") in answer


@pytest.mark.parametrize(
    ("content", "rewards"),
    [
        ("Answer: 36", {"correct": 0.9, "format": 0.1}),
        ("Answer: 036", {"correct": 0.9, "format": 0.1}),
        ("Answer: 35", {"correct": 0.0, "format": 0.1}),
        ("It is 36.", {"correct": 0.0, "format": 0.0}),
        ("Answer: 35\nAnswer: 36", {"correct": 0.0, "format": 0.0}),
    ],
)
def test_the_format_earns_a_little_and_the_answer_the_rest(content: str, rewards: dict[str, float]):
    env = ChainArithmetic(tasks=[{"start": 7, "steps": [["add", 5], ["multiply", 3]]}])
    env.reset(seed=0)
    assert score(env, content) == rewards


def test_an_answer_in_the_reasoning_does_not_count():
    env = ChainArithmetic()
    env.reset(seed=0)
    right = env.reference_reply().content
    reply = Message(role="assistant", reasoning=right, content="I have it.")
    assert env.step(env.renderer.reply(reply)).reward == 0.0


@pytest.mark.parametrize(
    "task",
    [
        {"start": 7, "steps": []},
        {"start": 7, "steps": [["divide", 0]]},
        {"start": 7, "steps": [["divide", 2]]},
        {"start": 7, "steps": [["power", 2]]},
        {"start": 7, "steps": [["multiply", 10**9]] * 3},
        {"start": 7, "steps": [["add", 1]] * 101},
        {"start": "many", "steps": [["add", 1]]},
    ],
)
def test_a_task_without_an_answer_is_refused(task: dict[str, Any]):
    with pytest.raises(errors.TaskError):
        ChainArithmetic(tasks=[task]).reset(seed=0)


def test_a_task_may_have_negative_numbers():
    task = {"start": -7, "steps": [["add", -5], ["multiply", -3], ["subtract_from", -1]]}
    env = ChainArithmetic(tasks=[task], style="symbols")
    assert envsdk.rollout(env, "reference", seed=0).reward == 1.0
    assert value_of_symbols(env.messages()[1].content) == -37


# LaTeX.


def test_without_the_library_latex_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(errors.MissingPackage, match=r"pip install 'envsdk\[math\]'"):
        ChainArithmetic(answers="latex")


@needs_math_verify
@pytest.mark.parametrize(("difficulty", "split"), ALL)
def test_chains_with_fractions_are_answered_in_latex(difficulty: str, split: str):
    env = ChainArithmetic(answers="latex", difficulty=difficulty, split=split, style="symbols")
    fractions = 0
    for seed in range(6):
        trajectory = envsdk.rollout(env, "reference", seed=seed)
        assert trajectory.reward == 1.0
        assert value_of_symbols(env.messages()[1].content) == env.values[-1]
        fractions += env.values[-1].denominator > 1
    assert fractions


@needs_math_verify
@pytest.mark.parametrize(
    ("start", "divisor", "right", "wrong"),
    [
        (7, 2, [r"\frac{7}{2}", r"\dfrac72", "7/2", "14/4", "3.5", "+3.50", r"3\frac{1}{2}"], ["3", "-7/2", "7/0"]),
        (-7, 2, [r"-\frac{7}{2}", r"\frac{-7}{2}", "-3.5", r"-3\tfrac12"], ["3.5", r"\frac{7}{2}"]),
        (1, 3, ["1/3", "0.333333333333"], ["0.3333", "0.33333333334"]),
        (1234, 1, ["1234", "1,234", "1{,}234", "1234.0", "2468/2"], ["1235", "1.234"]),
        (0, 5, ["0", "-0", "0/3", "0.0"], ["1", "0/0"]),
    ],
)
def test_a_number_may_be_written_in_several_ways(start: int, divisor: int, right: list[str], wrong: list[str]):
    env = ChainArithmetic(answers="latex", tasks=[{"start": start, "steps": [["divide", divisor]]}])
    env.reset(seed=0)
    for answers, correct in ((right, 0.9), (wrong, 0.0)):
        for answer in answers:
            assert score(env, f"So \\boxed{{{answer}}}.") == {"correct": correct, "format": 0.1}, answer


@pytest.mark.parametrize(
    "answer",
    [
        *("7 / 2", "3 + 1/2", r"7 \cdot 0.5", r"\sqrt{4}", "2^2", "9^{9^{9^{9}}}", "99999999!", "12 34", r"1\,234"),
        *(r"\frac{\frac{1}{2}}{3}", "1/2/3", "{3}{4}", "(3)(4)", "1e5", "x", "x = 3", r"\pm 5", r"50\%", "--5", "5."),
        *(r"\sum_{n=1}^{10^9} n", r"\int_0^1 x dx", r"\text{3}", "٣", r"\infty", r"\mathrm{NaN}", "1,23", "1,,234"),
        *("9" * 21, "1/" + "9" * 21, "{" * 30 + "}" * 30, "\\frac" * 10, "1;2", "1,2,3", r"\{3\}", "__import__('os')"),
    ],
)
def test_what_has_to_be_computed_is_no_answer(answer: str):
    assert read_answer(f"\\boxed{{{answer}}}", in_latex=True) is None


@needs_math_verify
@settings(max_examples=30, deadline=None)
@given(
    answer=st.from_regex(r"[-+]?([0-9]{1,20}|[0-9]{1,9}(\.|/)[0-9]{1,20}|[0-9]*\\d?frac\{-?[0-9]+\}\{[0-9]+\})")
    | st.text(alphabet=st.sampled_from("0123456789-+./,{}\\frac"), max_size=30)
)
def test_any_latex_is_scored(answer: str):
    env = ChainArithmetic(answers="latex")
    env.reset(seed=0)
    assert set(score(env, f"\\boxed{{{answer}}}").values()) <= {0.0, 0.1, 0.9}


@needs_math_verify
def test_latex_is_scored_in_any_thread_and_without_a_warning(caplog: pytest.LogCaptureFixture):
    env = ChainArithmetic(answers="latex", tasks=[{"start": 7, "steps": [["divide", 2]]}])
    env.reset(seed=0)
    found: list[dict[str, float]] = []
    threads = [threading.Thread(target=lambda: found.append(score(env, r"\boxed{\frac{7}{2}}"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{"correct": 0.9, "format": 0.1}] * 4
    assert not caplog.records
