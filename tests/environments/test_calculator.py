import re
from fractions import Fraction

import pytest
from envsdk_environments._calculator import MAX_NUMBERS, Calculator, evaluate
from hypothesis import given
from hypothesis import strategies as st

import envsdk
from envsdk import Message, errors
from envsdk.rollouts import rollout_many

NUMBERS = st.integers(0, 10**6).map(str)
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda parts: st.one_of(
        st.builds("({} {} {})".format, parts, st.sampled_from("+-*/"), parts), st.builds("-{}".format, parts)
    ),
    max_leaves=12,
).filter(lambda text: len(text) <= 200)


@given(expression=EXPRESSIONS)
def test_the_value_is_that_of_exact_arithmetic(expression: str):
    as_fractions = "".join(f"F({part})" if part.isdigit() else part for part in _split(expression))
    try:
        expected = eval(as_fractions, {"F": Fraction})  # the tests' own text of numbers and signs
    except ZeroDivisionError:
        with pytest.raises(errors.ToolError, match="divides by zero"):
            evaluate(expression)
    else:
        assert evaluate(expression)[0] == expected


def _split(expression: str) -> list[str]:
    parts: list[str] = []
    for char in expression:
        if char.isdigit() and parts and parts[-1].isdigit():
            parts[-1] += char
        else:
            parts.append(char)
    return parts


@given(expression=EXPRESSIONS)
def test_the_operations_lead_to_the_value(expression: str):
    try:
        value, operations = evaluate(expression)
    except errors.ToolError:
        return
    if operations:
        assert evaluate(operations[-1])[0] == value
        assert all(len(re.findall("[0-9]+", operation)) <= MAX_NUMBERS for operation in operations)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1+2*3", 7),
        ("(1+2)*3", 9),
        ("8/4/2", 1),
        ("7-2-1", 4),
        ("1.5*2", 3),
        (" - 3 - -3 ", 0),
        ("1/3", Fraction(1, 3)),
    ],
)
def test_signs_bind_as_usual(expression: str, value: Fraction):
    assert evaluate(expression)[0] == value


@given(
    expression=st.text(alphabet=st.sampled_from("0123456789+-*/(). \n_e,j**[]x'\"\x00é²٣"), max_size=250) | st.text()
)
def test_no_text_does_anything_but_compute_or_be_refused(expression: str):
    try:
        value, _ = evaluate(expression)
    except errors.ToolError as error:
        assert str(error)
    else:
        assert isinstance(value, Fraction)


@pytest.mark.parametrize(
    "expression",
    ["", "()", "1 2", "(1", "1)", "1+", "*1", "9**9**9", "__import__('os')", "1,2", "1e9", "²", "(" * 201, "-" * 200],
)
def test_what_is_no_expression_is_refused(expression: str):
    with pytest.raises(errors.ToolError):
        evaluate(expression)


def test_nesting_as_deep_as_the_length_allows_is_no_problem():
    assert evaluate("(" * 99 + "1" + ")" * 99)[0] == 1
    assert evaluate("-" * 199 + "1")[0] == -1
    assert evaluate("9*" * 99 + "9")[0] == 9**100


@pytest.mark.parametrize("options", [{}, {"operands": 2}, {"operands": 12, "max_number": 10**6}])
def test_the_reference_policy_solves_it_and_the_null_policy_does_not(options: dict):
    for policy, reward in (("reference", 1.0), ("null", 0.0)):
        trajectories = rollout_many(lambda: Calculator(**options), policy, seeds=range(5))
        assert {t.reward for t in trajectories} == {reward}
        assert not any(step.metrics["tool_errors"] for t in trajectories for step in t.steps)


def test_a_task_with_fractions_is_solved_and_answered_as_a_fraction():
    env = Calculator(tasks=[{"expression": "(1/2 + 1/3) * (3/4 - 2) / 5"}])
    assert envsdk.rollout(env, "reference", seed=0).reward == 1.0
    assert env.messages()[-2].content == "-5/24"


@pytest.mark.parametrize("expression", ["1/0", "import os", "1" * 201])
def test_a_task_without_a_value_is_refused(expression: str):
    with pytest.raises(errors.TaskError):
        Calculator(tasks=[{"expression": expression}]).reset(seed=0)


def test_the_calculator_takes_a_few_numbers_at_a_time():
    env = Calculator()
    env.reset(seed=0)
    call = {"name": "calculate", "arguments": {"expression": "1+2+3+4+5"}}
    env.step(env.renderer.reply(Message(role="assistant", tool_calls=[call])))
    assert env.messages()[-1].content == "Error: the expression has more than 4 numbers; compute it in parts"


@pytest.mark.parametrize("answer", ["It is {}.", "{}", "so\n{}"])
def test_the_last_word_is_the_answer(answer: str):
    env = Calculator()
    env.reset(seed=1)
    _, reward, *_ = env.step(env.renderer.reply(Message(role="assistant", content=answer.format(env.value))))
    assert reward == 1.0
