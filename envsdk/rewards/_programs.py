"""A scorer of code: it runs the code of a reply in the sandbox, with tests."""

import ast
import inspect
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from .._describing import what_is_invalid
from .._visible import brief
from ..errors import ConfigError, SandboxUnavailable, TaskError
from . import _sandboxed
from ._scorer import check_switches

if TYPE_CHECKING:
    from ..sandbox import SandboxLimits, SandboxResult

_FENCE = "```"
_WHAT_COUNTS = (
    "These count as tests: an assert that is executed, a function named test..., and a method named test... of a "
    "unittest.TestCase that is not skipped. They must not be async, except in a unittest.IsolatedAsyncioTestCase. The "
    "tests must call a function such as check(candidate) themselves"
)


class Program(BaseModel):
    """A test of a program: its standard input and expected standard output.

    White space at the ends of lines is ignored.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    stdin: str = ""
    """The standard input."""
    stdout: str
    """The standard output that is expected."""


class Call(BaseModel):
    """A test of a function: an expression, such as `add(1, 2)`, and its expected value.

    The value consists of numbers, strings, bytes, None, lists, tuples, dicts and sets. A tuple equals a list.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    call: str = Field(min_length=1)
    """The expression."""
    value: Any
    """The value that it has to have."""


_CASES: TypeAdapter[list[Program | Call | str]] = TypeAdapter(list[Program | Call | str])


@dataclass(frozen=True, slots=True, kw_only=True)
class unit_tests:  # noqa: N801 - it is called like a function
    """Score 1 if the code in the reply passes all tests, else 0.

    The code is the last fenced block of the reply, or the whole reply if it has no fenced block. It runs in the sandbox
    (see `envsdk.sandbox`). A test is one of:

    - A `Call` or a `Program`. The value of an expression, or the output of a program, is compared with the expected one
      outside the sandbox. The code never sees what is expected.
    - A string of Python tests. Its statements, functions named `test...` and `unittest` classes run; a string that
      tests nothing raises `TaskError`. The tests use the names that the code defines, but the code runs in a separate
      process. Arguments and results are plain values: numbers, strings, bytes, None, lists, tuples, dicts and sets.
      Other objects stay in the code's process: the tests can call them, iterate over them, and get their attributes and
      items, but cannot compare them or pass functions to them. The tests have to import all other modules that they
      use. These tests need user namespaces: with Landlock, only one process is available.

    Code does not pass a test by ending the process, printing a fake verdict, patching Python, or returning objects that
    are equal to everything. Two things are not protected: behavior that the tests do not check (code may hard-code the
    examples in a string of tests, and its objects may answer each request as they like), and what the tests do with the
    values they get. With `isolation="unsafe_no_isolation"`, nothing is protected.

    Attributes:
        partial: Whether the score is the fraction of tests that pass. A string of tests counts as one test.
        limits: The resource limits of each run; None for the default of `envsdk.sandbox`. All calls share one run.
        isolation: See `envsdk.sandbox.run_python`.

    Raises:
        ConfigError: If an option is not valid.
    """

    partial: bool = False
    limits: "SandboxLimits | None" = None
    isolation: str = "auto"

    def __post_init__(self) -> None:
        check_switches(self, "partial")
        if not isinstance(self.isolation, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"isolation is {brief(self.isolation)}; expected the name of an isolation, such as 'auto'"
            )

    def __call__(self, reply: str, target: Any = None, /) -> float:
        """Score a reply. The target is a test or a list of tests; a `Call` or `Program` may be a mapping.

        Raises:
            TaskError: If the target is not a test; if a string of tests executes no assert, no function `test...` and
                no `unittest` method, regardless of the code; or if it has tests that would not run: async ones, or a
                class `Test...` that is not a `unittest.TestCase`.
            SandboxError: If the sandbox failed. This does not depend on the code.
        """
        code, cases = code_in(reply), _cases(target)
        calls = [case for case in cases if isinstance(case, Call)]
        passed = 0
        if calls:
            task = json.dumps({"code": code, "calls": [case.call for case in calls]})
            lines = self._run(f"{inspect.getsource(_sandboxed)}\nanswer()\n", task).stdout.splitlines()
            passed = sum(_is_right(line, case.value) for line, case in zip(lines, calls, strict=False))
        for case in cases:
            if passed < len(calls) and not self.partial:
                return 0.0  # one test has failed, so the score is 0
            if not isinstance(case, Call):
                has_passed = self._tests(code, case) if isinstance(case, str) else self._program(code, case)
                if not has_passed and not self.partial:
                    return 0.0
                passed += has_passed
        return passed / len(cases) if self.partial else float(passed == len(cases))

    def _program(self, code: str, case: Program) -> bool:
        """Return whether a program prints the expected output."""
        result = self._run(code, case.stdin)
        texts = result.stdout, case.stdout
        printed, expected = ([line.rstrip() for line in text.rstrip().splitlines()] for text in texts)
        return result.ok and not result.stdout_cut and printed == expected

    def _tests(self, code: str, tests: str) -> bool:
        """Return whether a string of tests passes."""
        from ..sandbox import check_isolation

        if check_isolation(cast("Any", self.isolation)) == "landlock":
            raise SandboxUnavailable(
                "a string of tests needs two processes, but Landlock allows one: write the tests as Call or Program, "
                "or use a machine with user namespaces"
            )
        for is_empty, tested in enumerate((code, "")):  # if no test runs, find out whether any runs with empty code
            secret = secrets.token_hex()
            task = json.dumps({"secret": secret, "code": tested, "tests": tests})
            result = self._run(f"{inspect.getsource(_sandboxed)}\ntest()\n", task)
            found, _, outcome = result.stdout.strip().partition(" ")
            if not result.ok or found != secret:
                return False
            ran: int | str = json.loads(outcome)
            if isinstance(ran, str):
                raise TaskError(f"a string of tests has a test that would not run: {ran}. {_WHAT_COUNTS}")
            if ran:
                return not is_empty
        raise TaskError(f"a string of tests tests nothing, so any code would pass. {_WHAT_COUNTS}")

    def _run(self, code: str, stdin: str) -> "SandboxResult":
        from ..sandbox import run_python

        limits = {} if self.limits is None else {"limits": self.limits}
        return run_python(code, stdin=stdin, isolation=cast("Any", self.isolation), **limits)


def code_in(reply: str) -> str:
    """Return the code in a reply: its last fenced block, or the whole reply if it has none."""
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
            f"the target of unit_tests is not valid: {what_is_invalid(error)}. Expected a test or a list of tests, "
            "where a test is a Call, a Program, or a string of Python tests"
        ) from error
    if not cases or any(isinstance(case, str) and not case.strip() for case in cases):
        raise TaskError("the target of unit_tests is empty, or contains an empty test, which any code would pass")
    for tests in (case for case in cases if isinstance(case, str)):
        try:
            nodes = list(ast.walk(ast.parse(tests)))
        except (SyntaxError, ValueError) as error:
            raise TaskError(f"a string of tests is not valid Python, so no code would pass: {error}") from error
        functions = (node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
        has_asserts = any(isinstance(node, ast.Assert) for node in nodes)
        if not has_asserts and not any(function.name.startswith("test") for function in functions):
            raise TaskError(f"a string of tests tests nothing. {_WHAT_COUNTS}")
    return cases


def _is_right(line: str, expected: Any) -> bool:
    """Return whether an output line, which the code may have forged, contains the expected value."""
    try:
        error, value = json.loads(line)
        return error is None and bool(_with_lists(_sandboxed.ValueCodec().load(value)) == _with_lists(expected))
    except Exception:  # the code may write anything
        return False


def _with_lists(value: Any) -> Any:
    """Return a value with its tuples replaced by lists, because JSON has no tuples."""
    if isinstance(value, (list, tuple)):
        return [_with_lists(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in cast("dict[Any, Any]", value).items()}
    return value
