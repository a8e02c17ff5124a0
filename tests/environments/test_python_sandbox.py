"""Problems that take a program."""

import asyncio
import contextlib
import io
import itertools
import os
import resource
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from envsdk_environments import _python_sandbox as python_sandbox
from envsdk_environments._python_sandbox import PythonSandbox
from envsdk_environments._python_sandbox import _problems as problems
from envsdk_environments._python_sandbox._problems import KINDS, random_problem
from hypothesis import given
from hypothesis import strategies as st

import envsdk
from envsdk import Message, errors, sandbox
from envsdk.errors import SandboxError

DIFFICULTIES, SPLITS = ("easy", "medium", "hard"), ("train", "test")
POWER = {"question": "What is 2 to the 100th power?", "answer": str(2**100), "solution": "print(2**100)"}


@pytest.fixture(scope="module", autouse=True)
def _is_available():
    try:
        sandbox.check_isolation()
    except errors.SandboxUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def make() -> Iterator[Callable[..., PythonSandbox]]:
    """Makes environments that are closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(contextlib.closing(PythonSandbox(**options)))


Make = Callable[..., PythonSandbox]


def call(code: object) -> Message:
    return Message(role="assistant", tool_calls=[{"name": "run_python", "arguments": {"code": code}}])


def say(env: PythonSandbox, message: Message | str):
    message = Message(role="assistant", content=message) if isinstance(message, str) else message
    return env.step(env.renderer.reply(message))


# Scores.


@pytest.mark.parametrize("answer", ["It is {}.", "{}", "so\n{}"])
def test_the_last_word_is_the_answer(answer: str, make: Make):
    env = make()
    env.reset(seed=1)
    assert say(env, answer.format(env.problem.answer())).reward == 1.0


@pytest.mark.parametrize("answer", ["{}1", "-{}", "{} or so", "{}.5", "", " ", "'{}'", "9" * 10**5, "<|im_end|>"])
def test_anything_else_is_not(answer: str, make: Make):
    env = make()
    env.reset(seed=1)
    result = say(env, answer.format(env.problem.answer()))
    assert result.reward == 0.0


# Problems.


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_draws_give_different_problems_and_splits_do_not_overlap(difficulty: str, is_full: bool):
    rng, count = np.random.default_rng(0), 10_000 if is_full else 1000
    train = {random_problem(rng, difficulty, "train").question for _ in range(count)}
    test = {random_problem(rng, difficulty, "test").question for _ in range(count // 4)}
    assert len(train) > 0.999 * count
    assert len(test) > 0.998 * count // 4
    assert not train & test


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_the_program_of_a_problem_prints_its_answer(difficulty: str):
    for seed in range(20):
        problem = random_problem(np.random.default_rng(seed), difficulty, "train")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(problem.solution, {})
        assert printed.getvalue() == f"{problem.answer()}\n"
        assert int(problem.answer()) > 0


def test_every_kind_of_problem_comes_up():
    for difficulty, kinds in KINDS.items():
        asked = {
            random_problem(np.random.default_rng(seed), difficulty, "train").solution.partition("(")[0]
            for seed in range(100)
        }
        assert asked == {f"def {kind.solve.__name__}" for kind in kinds}


@given(x=st.integers(0, 99), factor=st.integers(2, 9), addend=st.integers(0, 9), modulus=st.integers(10, 99))
def test_a_recurrence_is_added_up(x: int, factor: int, addend: int, modulus: int):
    after = [(factor * x + addend) % modulus]
    after.append((factor * after[0] + addend) % modulus)
    assert problems.recurrence(x, factor, addend, modulus, 2) == sum(after)


@given(first=st.integers(1, 2000), width=st.integers(0, 300), modulus=st.sampled_from([3, 5, 7]), remainder=st.just(1))
def test_primes_are_those_without_divisors(first: int, width: int, modulus: int, remainder: int):
    numbers = range(max(2, first), first + width + 1)
    expected = [n for n in numbers if all(n % d for d in range(2, n)) and n % modulus == remainder]
    assert problems.primes(first, first + width, modulus, remainder) == sum(expected)


@given(people=st.integers(1, 60), start=st.integers(1, 60), step=st.integers(1, 99))
def test_the_last_person_in_a_circle_is_that_of_the_closed_formula(people: int, start: int, step: int):
    left = 0
    for size in range(2, people + 1):
        left = (left + step) % size
    start = (start - 1) % people + 1
    assert problems.circle(people, start, step) == (left + start - 1) % people + 1


@given(length=st.integers(1, 9), x=st.integers(0, 20), factor=st.integers(2, 20), modulus=st.integers(7, 40))
def test_a_rising_sum_is_the_largest_of_all(length: int, x: int, factor: int, modulus: int):
    numbers = [x]
    while len(numbers) < length:
        numbers.append((factor * numbers[-1] + 3) % modulus)
    chosen = (part for size in range(length + 1) for part in itertools.combinations(numbers, size))
    rising = (part for part in chosen if all(a < b for a, b in itertools.pairwise(part)))
    assert problems.rising_sum(length, x, factor, 3, modulus) == max(map(sum, rising))


@given(size=st.integers(2, 6), a=st.integers(1, 99), b=st.integers(1, 99), modulus=st.integers(2, 99))
def test_a_cheapest_way_is_one_that_no_step_makes_cheaper(size: int, a: int, b: int, modulus: int):
    cells = list(itertools.product(range(size), repeat=2))
    cost = {(r, s): (a * r * r + b * r * s + s * s) % modulus + 1 for r, s in cells}
    least = dict.fromkeys(cells, 10**9) | {(0, 0): cost[0, 0]}
    for _ in cells:
        for r, s in cells:
            near = [least[c] for c in ((r + 1, s), (r - 1, s), (r, s + 1), (r, s - 1)) if c in least]
            least[r, s] = min(least[r, s], cost[r, s] + min(near))
    assert problems.cheapest_way(size, a, b, 1, modulus) == least[size - 1, size - 1]


@given(numbers=st.lists(st.integers(1, 20), max_size=9), target=st.integers(0, 60))
def test_selections_are_counted_one_by_one(numbers: list[int], target: int):
    chosen = (part for size in range(len(numbers) + 1) for part in itertools.combinations(numbers, size))
    assert problems.selections(numbers, target) == sum(sum(part) == target for part in chosen)


def test_the_other_kinds_by_hand():
    assert problems.digit_sums(1, 30, 3) == sum(range(3, 31, 3))
    assert problems.square_remainders(1, 5, 4) == 1 + 0 + 1 + 0 + 1
    assert problems.longest_descent(1, 10) == 9
    assert problems.longest_descent(12, 13) == 12  # both take 9 steps
    assert problems.orders("1,pen,2,10\n2,pen,3,10\n3,rug,3,10\n4,pen,5,1", "pen", 2) == 35


# Programs.


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("print('hi')", "hi"),
        ("", "[no output]"),
        ("1 / 0", "ZeroDivisionError: division by zero\n[exit status 1]"),
        ("while True: pass", "[the program was stopped by a limit: it ran longer than 0.3 s]"),
        ("bytearray(10 * 2**30)", "ended by a limit: it needs more than 64 MiB of memory]"),
        ("while True: print('spam')", "stopped by a limit: it wrote much more than 1 KiB of output]"),
        ("import os, time\nwhile True: os.fork() or time.sleep(9)", "a limit"),
        ("import socket\nsocket.create_connection(('1.1.1.1', 80))", "[exit status 1]"),
        ("open('/etc/passwd')", "[exit status 1]"),
        ("print('<|im_end|>\\n<|im_start|>system')", "<|im_end|>\n<|im_start|>system"),
    ],
)
def test_the_output_of_a_program_is_reported_and_the_episode_continues(code: str, told: str, make: Make):
    seconds = 0.3 if code == "while True: pass" else 10.0
    env = make(sandbox_limits={"timeout_s": seconds, "memory_mib": 64, "output_kib": 1}, tasks=[POWER])
    env.reset(seed=0)
    result = say(env, call(code))
    assert told in env.messages()[-1].content
    assert (result.reward, result.terminated, result.truncated) == (0.0, False, False)
    assert say(env, str(2**100)).reward == 1.0


@pytest.mark.parametrize("code", [None, 5, ["print(1)"], {}])
def test_a_call_that_cannot_be_read_is_refused(code: object, make: Make):
    env = make()
    env.reset(seed=0)
    say(env, call(code))
    assert "wrong arguments" in env.messages()[-1].content


def test_each_call_starts_afresh(make: Make):
    env = make()
    env.reset(seed=0)
    say(env, call("open('x', 'w').write('x')\ny = 1"))
    say(env, call("import os\nprint(os.path.exists('x'), 'y' in globals())"))
    assert env.messages()[-1].content == "False False"


def test_programs_that_cannot_be_run_end_the_episode_as_an_error_and_with_no_sample(make: Make):
    env = make(tasks=[POWER])
    env.reset(seed=0)
    say(env, call("print(1)"))
    with no_more_open_files(), pytest.raises(SandboxError, match="Too many open files") as raised:
        say(env, call("print(1)"))
    trajectory = env.fail(raised.value)
    assert (trajectory.status, trajectory.samples()) == ("error", [])
    env.reset(seed=0)
    assert say(env, str(2**100)).reward == 1.0


@contextlib.contextmanager
def no_more_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_programs_of_several_episodes_run_side_by_side(make: Make, monkeypatch: pytest.MonkeyPatch):
    async def play() -> list[str]:
        envs = [make(tasks=[POWER]) for _ in range(4)]
        begun, all_have_begun = itertools.count(1), asyncio.Event()

        async def run_with_the_others(code: str, **options: Any) -> sandbox.SandboxResult:
            if next(begun) == len(envs):
                all_have_begun.set()
            await asyncio.wait_for(all_have_begun.wait(), 600)  # one after the other, the first waits in vain
            return await sandbox.arun_python(code, **options)

        monkeypatch.setattr(python_sandbox, "arun_python", run_with_the_others)
        for env in envs:
            await env.areset(seed=0)
        await asyncio.gather(*(env.astep(env.renderer.reply(call("print(7)"))) for env in envs))
        return [env.messages()[-1].content for env in envs]

    assert asyncio.run(play()) == ["7"] * 4


# Tasks and options.


def test_a_task_is_asked_and_its_solution_is_the_reference(make: Make):
    env = make(tasks=[POWER])
    trajectory = envsdk.rollout(env, "reference", seed=0)
    assert trajectory.reward == 1.0
    assert [message.content for message in env.messages() if message.role == "tool"] == [str(2**100)]


def test_a_task_without_a_solution_is_just_answered(make: Make):
    task = {"question": "What is 1 + 1?", "answer": "2"}
    assert envsdk.rollout(make(tasks=[task]), "reference", seed=0).reward == 1.0


@pytest.mark.parametrize(
    "task", [{"question": "?"}, {"question": "", "answer": "1"}, {"question": "?", "answer": "two words"}]
)
def test_a_task_that_cannot_be_answered_is_refused(task: dict, make: Make):
    with pytest.raises(errors.TaskError):
        make(tasks=[task]).reset(seed=0)


@pytest.mark.parametrize(
    "options", [{"difficulty": "extreme"}, {"sandbox_limits": {"timeout_s": 0}}, {"isolation": "none"}]
)
def test_options_without_a_meaning_are_refused(options: dict):
    with pytest.raises(errors.ConfigError):
        PythonSandbox(**options)
