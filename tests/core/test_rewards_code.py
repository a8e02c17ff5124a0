"""Code in replies, run with tests in the sandbox: what passes, and what does not get a pass."""

import pickle

import pytest

from envsdk import rewards
from envsdk.errors import SandboxUnavailable, TaskError
from envsdk.rewards import Call, Program, unit_tests
from envsdk.rewards._programs import code_in
from envsdk.sandbox import SandboxLimits, check_isolation

try:
    ISOLATION = check_isolation()
except SandboxUnavailable:
    ISOLATION = None
needs_sandbox = pytest.mark.skipif(ISOLATION is None, reason="this machine does not isolate programs")
needs_namespaces = pytest.mark.skipif(
    ISOLATION not in ("bubblewrap", "namespaces"), reason="this machine has no user namespaces"
)

SQUARE = "def f(x):\n    return x * x\n"
TESTS = "assert f(2) == 4\nassert f(3) == 9\n"
CALLS = [Call(call="f(2)", value=4), Call(call="f(3)", value=9)]
SCORER = unit_tests(limits=SandboxLimits(timeout_s=5, cpu_s=1))

# What does not square anything, and would like to pass: by ending the process, by what it returns, by what it writes,
# or by what it finds of the tests, the secret and the other process.
CHEATS = {
    "exit": "import sys\nsys.exit(0)",
    "exit at once": "import os\nos._exit(0)",
    "exit in the call": "import os\ndef f(x): os._exit(0)",
    "equal to everything": "class Any:\n    __eq__ = lambda *_: True\n    __bool__ = __eq__\ndef f(x): return Any()",
    "a number that is equal to everything": "class N(int):\n    __eq__ = lambda *_: True\ndef f(x): return N(1)",
    "patched builtins": "import builtins\nbuiltins.eval = builtins.exec = lambda *_: 4\ndef f(x): return 1",
    "a skipped test": "import unittest\ndef f(x): raise unittest.SkipTest",
    "writing": "import os\ndef f(x):\n    for fd in range(3):\n        os.write(fd, b'[null, 4]\\n[null, 9]\\n')",
    "standard input": "import sys\nsaid = sys.stdin.read()\ndef f(x): return x * x if 'assert' in said else 0",
    "frames": (
        "import gc, sys\ntexts = [str(o) for o in gc.get_objects() if isinstance(o, dict)]\n"
        "def f(x): return x * x if any('sec' 'ret' in t and 'assert' ' f(2)' in t for t in texts) else 0"
    ),
    "memory of the other process": (
        "import os\ndef f(x):\n    open(f'/proc/{os.getppid()}/mem', 'rb')\n    return x * x"
    ),
    "tracing the other process": (
        "import ctypes, os\ntraced = ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)\n"
        "def f(x): return x * x if traced == 0 else 0"
    ),
    "ending the other process": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "no end": "while True: pass",
    "no such function": "pass",
    "no Python": "I would square it.",
}


@needs_namespaces
def test_code_that_is_right_passes_a_text_of_tests() -> None:
    assert SCORER(f"Here it is:\n```python\n{SQUARE}```\nIt squares.", TESTS) == 1.0
    assert SCORER(SQUARE, TESTS) == 1.0


@needs_namespaces
@pytest.mark.parametrize("cheat", CHEATS)
def test_no_cheat_passes_a_text_of_tests(cheat: str) -> None:
    assert SCORER(CHEATS[cheat], TESTS) == 0.0


@pytest.mark.matrix(every=3)
@needs_sandbox
@pytest.mark.parametrize("cheat", [*CHEATS][:9])
def test_no_cheat_has_the_right_values(cheat: str) -> None:
    assert SCORER(CHEATS[cheat], CALLS) == 0.0


@needs_namespaces
@pytest.mark.parametrize(
    "tests",
    [
        "def test_two():\n    assert f(2) == 4\ndef helper(): raise ValueError",
        "import unittest\nclass T(unittest.TestCase):\n    def test_two(self):\n        self.assertEqual(f(2), 4)",
        "def check(candidate):\n    assert candidate(2) == 4\ncheck(f)",
    ],
)
def test_functions_and_classes_of_tests_are_run(tests: str) -> None:
    assert SCORER(SQUARE, tests) == 1.0
    assert SCORER(SQUARE.replace("*", "+ 1 +"), tests) == 0.0


def case_of(method: str, base: str = "TestCase", decorator: str = "") -> str:
    return f"import unittest\n{decorator}\nclass T(unittest.{base}):\n    {method}"


@needs_namespaces
@pytest.mark.matrix
@pytest.mark.parametrize(
    "tests",
    [
        "def check(candidate):\n    assert candidate(2) == 4",
        "if False:\n    assert f(2) == 4",
        "for _ in []:\n    assert f(2) == 4",
        "def helper():\n    def test_two():\n        assert f(2) == 4",
        case_of("def test_two(self):\n        self.skipTest('not today')"),
        case_of("def test_two(self):\n        pass", decorator="@unittest.skip('never')"),
        case_of(
            "@classmethod\n    def setUpClass(cls):\n        raise unittest.SkipTest\n    def test_two(self): pass"
        ),
    ],
)
@pytest.mark.parametrize("code", [SQUARE, ""])
def test_a_text_of_which_no_test_runs_is_refused(tests: str, code: str) -> None:
    with pytest.raises(TaskError, match="These count as tests: an assert that is executed"):
        SCORER(code, tests)


@pytest.mark.parametrize("tests", ["# nothing", "f(2)", "def check(candidate):\n    return candidate(2) == 4"])
def test_a_text_that_has_no_test_is_refused_before_anything_runs(tests: str) -> None:
    with pytest.raises(TaskError, match="These count as tests: an assert that is executed"):
        SCORER(SQUARE, tests)


def test_a_text_of_tests_that_is_no_python_is_refused() -> None:
    for tests in ("assert f(2) ==", "assert '\0'"):
        with pytest.raises(TaskError, match="not valid Python"):
            SCORER(SQUARE, tests)


@needs_namespaces
@pytest.mark.parametrize(
    ("tests", "name"),
    [
        ("async def test_two():\n    assert f(2) == 4", "test_two is async"),
        ("def test_two():\n    yield f(2) == 4", "test_two is async or a generator"),
        ("class TestSquare:\n    def test_two(self):\n        assert f(2) == 4", "TestSquare is not a unittest"),
        ("import unittest\nclass TestSquare:\n    def test_two(self): pass", "TestSquare is not a unittest"),
        (case_of("async def test_two(self):\n        self.fail()"), "T.test_two is async"),
    ],
)
def test_what_looks_like_a_test_and_would_not_be_run_is_refused_by_name(tests: str, name: str) -> None:
    for also in ("", "\ndef test_three():\n    assert f(3) == 9"):
        with pytest.raises(TaskError, match=name):
            SCORER(SQUARE, tests + also)


@needs_namespaces
@pytest.mark.parametrize(
    "tests",
    [
        "class TestData:\n    two = 2\nassert f(TestData.two) == 4",
        "for n in range(3):\n    if True:\n        assert f(n) == n * n",
        case_of("def test_two(self):\n        assert f(2) == 4\n    def test_three(self):\n        self.skipTest('')"),
        case_of("@unittest.expectedFailure\n    def test_two(self):\n        self.assertEqual(f(2), 5)"),
        "from __future__ import annotations\nfrom unittest import TestCase\ndef test_two():\n    assert f(2) == 4",
    ],
)
def test_a_text_of_which_one_test_runs_is_enough(tests: str) -> None:
    assert SCORER(SQUARE, tests) == 1.0


@needs_namespaces
def test_code_that_keeps_the_tests_from_running_does_not_pass_them() -> None:
    tests = "for value in f():\n    assert value == 4"
    assert SCORER("def f(): return [4]", tests) == 1.0
    assert SCORER("def f(): return []", tests) == 0.0


RICH = """
import math
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __getitem__(self, i): return self.items[i]
def count(n): yield from range(n)
def sort(values): values.sort()
def bad(): raise ValueError("no")
def pairs(d): return {k: (v, {v}, b"x", None, 1.5, 2j) for k, v in d.items()}
LIMIT = [1, (2, 3)]
abs = None
"""
RICH_TESTS = """
stack = Stack()
stack.push("a")
assert len(stack) == 1 and stack[0] == "a" and stack.pop() == "a"
assert list(count(3)) == [0, 1, 2] and 2 in count(3)
values = [3, 1, 2]
assert sort(values) is None and values == [1, 2, 3]
assert pairs({"a": 1}) == {"a": (1, {1}, b"x", None, 1.5, 2j)}
assert LIMIT == [1, (2, 3)] and abs(-1) == 1
try:
    bad()
except ValueError as error:
    assert str(error) == "no"
else:
    raise AssertionError
try:
    stack.pop()
except IndexError:
    pass
else:
    raise AssertionError
assert stack.items == []
assert Stack() != Stack()
"""


@needs_namespaces
def test_tests_use_what_the_code_defines_as_if_it_were_theirs() -> None:
    assert SCORER(RICH, RICH_TESTS) == 1.0


@needs_sandbox
def test_values_are_compared_as_plain_ones_with_lists_for_tuples() -> None:
    def scores(code: str, value: object) -> float:
        return SCORER(f"def f(): return {code}", [{"call": "f()", "value": value}])

    assert scores("(1, [2, (3,)])", [1, [2, [3]]]) == 1.0
    assert scores("{'a': (1,), 'b': None}", {"a": [1], "b": None}) == 1.0
    assert scores("{1, 2}", {2, 1}) == 1.0
    assert scores("'\\ud800'", "x") == 0.0
    assert scores("print('[null, 5]') or 4", 5) == 0.0
    assert scores("object()", None) == 0.0
    assert scores("'9' * 10**6", "9" * 10**6) == 0.0  # more than is kept of the output


@needs_sandbox
def test_a_program_is_compared_by_what_it_writes() -> None:
    program = Program(stdin="2\n3\n", stdout="5\n")
    assert SCORER("print(int(input()) + int(input()))", program) == 1.0
    assert SCORER("print('5  ')\nprint()", program) == 1.0
    assert SCORER("print(5)\nraise SystemExit(1)", program) == 0.0
    assert SCORER("print(6)", program) == 0.0


@needs_sandbox
def test_part_of_the_tests_is_part_of_the_score_if_that_is_asked_for() -> None:
    cases = [*CALLS, Call(call="f(4)", value=0), {"stdin": "", "stdout": ""}]
    assert unit_tests(partial=True)(SQUARE, cases) == 0.75
    assert unit_tests()(SQUARE, cases) == 0.0
    assert unit_tests(partial=True)("import os\ndef f(x): return x * x if x < 3 else os._exit(0)", CALLS) == 0.5


def test_the_last_block_is_the_code() -> None:
    assert code_in("```\na\n```\nor\n  ```python\nb\nc\n```\n") == "b\nc\n"
    assert code_in("no block") == "no block"
    assert code_in("```python\nnot closed") == "```python\nnot closed"
    assert code_in("```\na\n```\n```python\nnot closed") == "a\n"


def test_a_scorer_of_code_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(SCORER)) == SCORER
    assert rewards.weighted(tests=(1.0, SCORER)).reward_range == (0.0, 1.0)


def test_a_text_of_tests_under_landlock_is_refused_and_not_failed() -> None:
    try:
        check_isolation("landlock")
    except SandboxUnavailable as error:
        pytest.skip(f"this machine has no Landlock: {error}")
    with pytest.raises(SandboxUnavailable, match="Call or Program"):
        unit_tests(isolation="landlock")(SQUARE, TESTS)
    assert unit_tests(isolation="landlock")(SQUARE, CALLS) == 1.0


@pytest.mark.parametrize(
    ("reply", "tests"),
    [
        (
            "import builtins\ndef range(*a): return []\nf = 1\ndel builtins.range",
            "def test():\n    for n in range(5):\n        assert f(n) == n * n\n    assert True",
        ),
        (
            "import builtins\ndef sum(x): return 6\ndef f(x): return 6\ndel builtins.sum",
            "assert f([1, 2]) == sum([1, 2])",
        ),
        (
            "import builtins\ndef abs(x): return 0\ndef f(x): return 6\ndel builtins.abs",
            "assert abs(f(2) - 1.4) < 1e-6",
        ),
        ("def f(x): raise StopIteration", "assert all(map(lambda x: f(x) == x * x, range(5)))"),
        (
            "def f(x): raise StopIteration",
            "for got, want in zip(map(f, range(2)), [0, 1]):\n    assert got == want\nassert True",
        ),
    ],
)
def test_neither_a_hidden_builtin_nor_a_stopped_loop_passes_a_test(reply: str, tests: str) -> None:
    assert SCORER(reply, tests) == 0.0


def test_what_code_writes_in_the_place_of_a_value_ends_nothing() -> None:
    reply = (
        "import os\nfor fd in range(3, 10):\n"
        " try: os.write(fd, b'[null, [\"complex\", [1' + b'0' * 400 + b', 0]]]\\n')\n except OSError: pass\n"
        "f = lambda x: 0"
    )
    assert SCORER(reply, {"call": "f(1)", "value": 1}) == 0.0
