"""A scorer of code: runs a reply's code in the sandbox, with tests."""

import ast
import functools
import importlib.resources
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ..errors import ConfigError, TaskError, what_is_invalid
from .sandboxed import Values
from .scorer import check_switches

if TYPE_CHECKING:
    from ..sandbox import SandboxLimits, SandboxResult

_FENCE = "```"
_WHAT_COUNTS = (
    "What counts is an assert that is run, a function test..., and a method test... of a unittest.TestCase that does "
    "not skip; none of them async, but in a unittest.IsolatedAsyncioTestCase. A function such as check(candidate) has "
    "to be called"
)


class Program(BaseModel):
    """A test of a program: what it reads, and what it has to write. White space at the ends of lines does not count."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stdin: str = ""
    stdout: str


class Call(BaseModel):
    """A test of a function: an expression, such as `add(1, 2)`, and its value, a plain one. Tuples count as lists."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    call: str = Field(min_length=1)
    value: Any


_CASES: TypeAdapter[list[Program | Call | str]] = TypeAdapter(list[Program | Call | str])


@dataclass(frozen=True, slots=True, kw_only=True)
class unit_tests:  # noqa: N801 - it is called like a function
    """1 if the code in the reply passes all tests, else 0.

    The code is what stands in the reply's last fenced block, or all of it if there is none. It runs in the sandbox, see
    `envsdk.sandbox`. A test is

    - a `Call` or a `Program`: the value of an expression, or the output of a program, is compared outside the sandbox;
      the code never sees what is expected;
    - a text of tests: statements, functions `test...` and classes of `unittest` are run; a text of which nothing tests
      anything is refused, see below. They call what the code
      defines as if it were theirs, but it runs in another process. They give it plain values and get plain values:
      numbers, texts, bytes, None, lists, tuples, dicts, sets. Objects of the code's own stay there: the tests can call
      them, get attributes and items, and go through them, but not compare them, nor give them functions of theirs.
      Whatever else they use, they import themselves. This takes namespaces: under Landlock there is one process only.

    Ending the process, writing what a verdict might look like, patching Python, or objects that are equal to everything
    do not pass a test. What is not protected: what the tests do not test (code may know the examples of a text of tests
    by heart, and an object of its own may answer each question as it likes), and what the tests themselves do with the
    values that they get. With `isolation="unsafe_no_isolation"`, nothing is.

    Attributes:
        partial: Whether the score is the share of the tests that pass. A text of tests counts as one.
        limits: What the code may use in each run; by default that of `envsdk.sandbox`. All calls together are one run.
        isolation: What `envsdk.sandbox.run_python` takes.

    Raises:
        ConfigError: For an option that is not valid.
    """

    partial: bool = False
    limits: "SandboxLimits | None" = None
    isolation: str = "auto"

    def __post_init__(self) -> None:
        check_switches(self, "partial")
        if not isinstance(self.isolation, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"isolation is {self.isolation!r:.80}; expected its name, such as 'auto'")

    def __call__(self, reply: str, target: Any = None, /) -> float:
        """Score a reply; the target is a test or a list of them. A mapping with the fields of one is one, too.

        Raises:
            TaskError: If the target is none; if no assert, no function `test...` and no method of `unittest` of a text
                is run, whatever the code; or if a text has tests that would not be run: async ones, or a class
                `Test...` that is no `unittest.TestCase`.
            SandboxError: If the code could not be run; it says nothing about the code.
        """
        code, cases = code_in(reply), _cases(target)
        calls = [case for case in cases if isinstance(case, Call)]
        passed = self._calls(code, calls) if calls else 0
        for case in cases:
            if passed < len(calls) and not self.partial:
                return 0.0  # what is left makes no difference
            if not isinstance(case, Call):
                has_passed = self._tests(code, case) if isinstance(case, str) else self._program(code, case)
                if not has_passed and not self.partial:
                    return 0.0
                passed += has_passed
        return passed / len(cases) if self.partial else float(passed == len(cases))

    def _calls(self, code: str, cases: Sequence[Call]) -> int:
        """How many calls have the right value."""
        task = json.dumps({"code": code, "calls": [case.call for case in cases]})
        lines = self._run(f"{_harness()}\nanswer()\n", task).stdout.splitlines()
        return sum(_is_right(line, case.value) for line, case in zip(lines, cases, strict=False))

    def _program(self, code: str, case: Program) -> bool:
        """Whether a program writes what it should."""
        result = self._run(code, case.stdin)
        return result.ok and not result.stdout_cut and _lines(result.stdout) == _lines(case.stdout)

    def _tests(self, code: str, tests: str) -> bool:
        """Whether a text of tests passes."""
        from ..sandbox import SandboxUnavailable, check_isolation

        if check_isolation(cast("Any", self.isolation)) == "landlock":
            raise SandboxUnavailable(
                "tests as a text need two processes, and under Landlock there is one: write them as Call or Program, "
                "or run them where there are user namespaces"
            )
        ran = self._passed(code, tests)
        if ran == 0 and self._passed("", tests) == 0:  # it is not the code that keeps them from running
            raise TaskError(f"nothing in a text of tests tests anything, so any code would pass. {_WHAT_COUNTS}")
        return bool(ran)

    def _passed(self, code: str, tests: str) -> int | None:
        """How many tests of a text ran; None if not all passed."""
        secret = secrets.token_hex()
        task = json.dumps({"secret": secret, "code": code, "tests": tests})
        result = self._run(f"{_harness()}\ntest()\n", task)
        said, _, outcome = result.stdout.strip().partition(" ")
        if not result.ok or said != secret:
            return None
        ran: int | str = json.loads(outcome)
        if isinstance(ran, str):
            raise TaskError(f"a text of tests has a test that would not be run: {ran}. {_WHAT_COUNTS}")
        return ran

    def _run(self, code: str, stdin: str) -> "SandboxResult":
        from ..sandbox import run_python

        limits = {} if self.limits is None else {"limits": self.limits}
        return run_python(code, stdin=stdin, isolation=cast("Any", self.isolation), **limits)


def code_in(reply: str) -> str:
    """The code in a reply: what stands in its last fenced block, or all of it if there is none."""
    block: list[str] | None = None
    last: list[str] | None = None
    for line in reply.splitlines():
        if not line.lstrip().startswith(_FENCE):
            if block is not None:
                block.append(line)
        elif block is None:
            block = []
        else:
            last, block = block, None
    return reply if last is None else "\n".join(last) + "\n"


def _cases(target: Any) -> list[Program | Call | str]:
    given: Any = list(cast("Sequence[Any]", target)) if isinstance(target, (list, tuple)) else [target]
    try:
        cases = _CASES.validate_python(given)
    except ValidationError as error:
        raise TaskError(
            f"the target of unit_tests is no test and no list of tests: {what_is_invalid(error)}. A test is a Call, a "
            "Program, or a text"
        ) from error
    if not cases or any(isinstance(case, str) and not case.strip() for case in cases):
        raise TaskError("the target of unit_tests has no test, or an empty one, which any code would pass")
    for case in cases:
        if isinstance(case, str):
            _check_text(case)
    return cases


def _check_text(tests: str) -> None:
    """Refuse a text of tests that is no Python, or in which nothing can test anything.

    Raises:
        TaskError: Then.
    """
    try:
        nodes = list(ast.walk(ast.parse(tests)))
    except (SyntaxError, ValueError) as error:
        raise TaskError(f"a text of tests is no Python, so no code would pass: {error}") from error
    functions = (node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    has_asserts = any(isinstance(node, ast.Assert) for node in nodes)
    if not has_asserts and not any(function.name.startswith("test") for function in functions):
        raise TaskError(f"nothing in a text of tests tests anything. {_WHAT_COUNTS}")


@functools.cache
def _harness() -> str:
    return importlib.resources.files(__package__ or "").joinpath("sandboxed.py").read_text("utf-8")


def _is_right(line: str, expected: Any) -> bool:
    """Whether a line that the code had a hand in says a value."""
    try:
        error, value = json.loads(line)
        return error is None and bool(_with_lists(Values().load(value)) == _with_lists(expected))
    except Exception:  # whatever the code wrote there
        return False


def _with_lists(value: Any) -> Any:
    """A value with lists in place of tuples, which JSON has not."""
    if isinstance(value, (list, tuple)):
        return [_with_lists(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in cast("dict[Any, Any]", value).items()}
    return value


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
