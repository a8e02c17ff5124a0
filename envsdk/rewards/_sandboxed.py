"""The program that runs inside the sandbox; `programs` adds the call of `test` or `answer`. Standard library only.

`test` runs tests in this process, and the tested code in a child process. The two share no memory. The child is forked
before this process has read the tests and the secret that authenticates the verdict, and the child's standard streams
are closed. On Linux, this process also forbids others to trace it. The tests call the child's objects over a pipe, and
only plain values come back, so nothing of the child (no `__eq__`, no patched builtin) takes part in a comparison.

`answer` runs code, evaluates expressions in it, and prints the values, which are compared elsewhere.
"""

import builtins
import contextlib
import ctypes
import json
import operator
import os
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn, cast

_PR_SET_DUMPABLE = 4
_PLAIN = {bool, int, float, str, type(None)}
_LISTS: dict[str, Callable[..., Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": operator.call,
    "get": getattr,
    "item": operator.getitem,
    "iter": iter,
    "next": next,
    "len": len,
}
"""The operations on the child's objects that the tests may request."""
_ASSERTED = "__asserted__"
"""The name of the list that counts the executed asserts of a string of tests."""


class ValueCodec:
    """Converts values to JSON and back. An object that is not a plain value is represented by a number."""

    def dump(self, value: Any) -> Any:
        """Convert a value to JSON. Instances of subclasses do not count as plain values."""
        kind = cast("type[object]", type(value))
        if kind in _PLAIN:
            return value
        if kind is _LISTS.get(kind.__name__):
            return [kind.__name__, [self.dump(item) for item in value]]
        if kind is dict:
            return ["dict", [[self.dump(key), self.dump(item)] for key, item in value.items()]]
        if kind is bytes:
            return ["bytes", value.hex()]
        if kind is complex:
            return ["complex", [value.real, value.imag]]
        return ["object", self.number_of(value)]

    def load(self, value: Any) -> Any:
        """Convert the result of `dump` back to a value."""
        if not isinstance(value, list):
            return value
        kind, content = cast("list[Any]", value)
        if kind in _LISTS:
            return _LISTS[kind](self.load(item) for item in content)
        if kind == "dict":
            return {self.load(key): self.load(item) for key, item in content}
        if kind == "bytes":
            return bytes.fromhex(content)
        return complex(*content) if kind == "complex" else self.object_of(content)

    def number_of(self, value: Any) -> int:
        """Return the number that represents an object."""
        return 0

    def object_of(self, number: int) -> Any:
        """Return the object of a number; here, an object that equals no other."""
        return object()


class Pipe(ValueCodec):
    """Sends values over a pipe, as one line of JSON each."""

    def __init__(self, read: int, write: int) -> None:
        self._read = os.fdopen(read, "r", encoding="utf-8", errors="surrogatepass")
        self._write = os.fdopen(write, "w", encoding="utf-8", errors="surrogatepass")

    def send(self, value: Any) -> None:
        """Send a value."""
        self._write.write(json.dumps(self.dump(value)) + "\n")
        self._write.flush()

    def receive(self) -> Any:
        """Receive a value."""
        line = self._read.readline()
        if not line:
            raise EOFError("the other process has ended")
        return self.load(json.loads(line))


class ObjectServer(Pipe):
    """The child's end of the pipe, which holds the objects."""

    def __init__(self, read: int, write: int) -> None:
        super().__init__(read, write)
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def number_of(self, value: Any) -> int:
        """See `ValueCodec`. The same object always gets the same number."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return self._numbers[id(value)]

    def object_of(self, number: int) -> Any:
        """See `ValueCodec`."""
        return self._objects[number]

    def serve(self) -> NoReturn:
        """Run the code, then answer requests until the pipe is closed."""
        self.send(
            outcome_of(
                lambda: {
                    name: value
                    for name, value in run_code(self.receive()).items()
                    if not isinstance(value, types.ModuleType)
                }
            )
        )
        while True:
            name, args, named = self.receive()
            outcome = outcome_of(lambda name=name, args=args, named=named: _OPERATIONS[name](*args, **named))
            try:
                self.send([*outcome, args])
            except (RecursionError, ValueError) as error:
                self.send([type(error).__name__, str(error), []])


def outcome_of(action: Callable[[], Any]) -> list[Any]:
    """Return [None, value], or [name of the exception, its text]."""
    try:
        return [None, action()]
    except BaseException as error:
        with contextlib.suppress(Exception):
            return [type(error).__name__, str(error)]
        return ["Exception", ""]


def run_code(code: str) -> dict[str, Any]:
    """Run the reply's code, and return its namespace."""
    module = types.ModuleType("reply")
    sys.modules["reply"] = module
    exec(compile(code, "reply.py", "exec"), vars(module))
    return vars(module)


def request(name: str) -> Callable[..., Any]:
    """Return a method that requests an operation on the proxied object from the child."""

    def ask(self: "Remote", *args: Any, **named: Any) -> Any:
        pipe: ObjectClient = self.__dict__["_pipe"]
        return pipe.ask(name, self, *args, **named)

    return ask


class Remote:
    """A proxy of an object in the child. The tests can call it, iterate over it, and get attributes and items."""

    __call__ = request("call")
    __getattr__ = request("get")
    __getitem__ = request("item")
    __iter__ = request("iter")
    __next__ = request("next")
    __len__ = request("len")

    def __init__(self, pipe: "ObjectClient", number: int) -> None:
        self.__dict__.update(_pipe=pipe, _number=number)

    def __bool__(self) -> bool:
        raise TypeError("the truth value of an object of the reply is not available: compare a plain value instead")


class ObjectClient(Pipe):
    """The tests' end of the pipe."""

    def __init__(self, read: int, write: int) -> None:
        super().__init__(read, write)
        self._objects: dict[int, Remote] = {}

    def number_of(self, value: Any) -> int:
        """See `ValueCodec`."""
        if not isinstance(value, Remote):
            raise TypeError(f"a {type(value).__name__} cannot be passed to the reply's code; expected a plain value")
        return vars(value)["_number"]

    def object_of(self, number: int) -> Remote:
        """See `ValueCodec`."""
        return self._objects.setdefault(int(number), Remote(self, int(number)))

    def run(self, code: str) -> dict[str, Any]:
        """Run the reply's code, and return the names that it defines."""
        self.send(code)
        error, value = self.receive()
        if error is not None:
            _fail(error, value)
        names = cast("dict[Any, Any]", value) if isinstance(value, dict) else {}
        # The tests may use all names but those that hide a builtin, and dunder names.
        return {
            name: value
            for name, value in names.items()
            if isinstance(name, str) and not (name.startswith("__") or hasattr(builtins, name))
        }

    def ask(self, what: str, *args: Any, **named: Any) -> Any:
        """Request an operation from the child.

        If it changes a list, dict or set among the arguments, the tests' object is changed in the same way.
        """
        self.send([what, args, named])
        error, value, left = self.receive()
        for given, after in zip(args, left, strict=False):
            if type(given) is not type(after):
                continue
            if isinstance(given, list):
                given[:] = after
            elif isinstance(given, (dict, set)):
                given.clear()
                cast("Any", given).update(after)
        if error == "StopIteration" and what != "next":
            error = "RuntimeError"  # a StopIteration would silently end a loop in the tests
        return value if error is None else _fail(error, value)


def _fail(name: str, text: str) -> NoReturn:
    """Raise the exception of the child: the builtin exception of that name, or a new class with that name."""
    kind: Any = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = type(str(name), (Exception,), {})
    try:
        error = kind(text)
    except TypeError:
        error = Exception(f"{name}: {text}")
    raise error


class TestWouldNotRun(Exception):
    """A string of tests contains something that looks like a test but would not run."""


def run_tests(namespace: dict[str, Any], tests: str) -> int:
    """Run a string of tests: its statements, its functions `test...`, and its `unittest` classes.

    Returns:
        The number of tests that ran: asserts, functions, and `unittest` methods that were not skipped.

    Raises:
        TestWouldNotRun: If something looks like a test but would not run.
    """
    import ast

    before, tree = dict(namespace), ast.parse(tests)
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block: Any = getattr(node, field, [])
            if isinstance(block, ast.AST):
                continue  # the value of a lambda or of a conditional expression
            for at in range(len(block) - 1, -1, -1):
                if isinstance(block[at], ast.Assert):
                    block.insert(at + 1, ast.copy_location(ast.parse(f"{_ASSERTED}.append(None)").body[0], block[at]))
    asserted: list[None] = []
    namespace[_ASSERTED] = asserted
    exec(compile(ast.fix_missing_locations(tree), "tests.py", "exec"), namespace)
    own = [value for name, value in namespace.items() if before.get(name, namespace) is not value]
    functions = [one for one in own if isinstance(one, types.FunctionType) and one.__name__.startswith("test")]
    classes = [one for one in own if isinstance(one, type)]
    for function in functions:
        check_function(function, function.__name__)
    cases = [kind for kind in classes if is_case(kind)]
    for function in functions:
        function()
    return sum(map(run_cases, cases)) + len(functions) + len(asserted)


def check_function(function: object, name: str) -> None:
    """Raise TestWouldNotRun for a test function that does nothing when it is called."""
    import inspect

    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_kind(function) for is_kind in kinds):
        raise TestWouldNotRun(f"{name} is async or a generator: calling it tests nothing")


def is_case(kind: type[object]) -> bool:
    """Return whether a class is a `unittest.TestCase`.

    Raises:
        TestWouldNotRun: If it is a class `Test...` that `unittest` does not run, or has methods that test nothing.
    """
    unittest: Any = sys.modules.get("unittest")
    names = [name for name in dir(kind) if name.startswith("test")]
    if unittest is None or not issubclass(kind, unittest.TestCase):
        if names and kind.__name__.startswith("Test") and kind.__module__ == "tests":
            raise TestWouldNotRun(f"the class {kind.__name__} is not a unittest.TestCase, so its methods would not run")
        return False
    if not issubclass(kind, unittest.IsolatedAsyncioTestCase):
        for name in names:
            check_function(getattr(kind, name), f"{kind.__name__}.{name}")
    return True


def run_cases(kind: type) -> int:
    """Run the tests of a `unittest` class, and return the number that were not skipped."""
    import unittest

    class Result(unittest.TestResult):
        passed = 0

        def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 - the name that `unittest` calls
            """Count a passed test."""
            self.passed += 1

    result = Result()
    unittest.defaultTestLoader.loadTestsFromTestCase(kind).run(result)
    if not result.wasSuccessful():
        raise AssertionError(f"{len(result.errors)} errors, {len(result.failures)} failures")
    return result.passed + len(result.expectedFailures)


def test() -> None:
    """Fork, read the task, run the tests, and print the verdict if all of them pass.

    The verdict is the secret, followed by the number of tests that ran or by the text of a TestWouldNotRun.
    """
    to_child, from_child = os.pipe(), os.pipe()
    if os.fork() == 0:
        try:
            os.close(to_child[1])
            os.close(from_child[0])
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nothing, stream)
            ObjectServer(to_child[0], from_child[1]).serve()
        finally:
            os._exit(1)
    os.close(to_child[0])
    os.close(from_child[1])
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError("this process could not forbid tracing (prctl PR_SET_DUMPABLE)")
    task: dict[str, str] = json.load(sys.stdin)
    client = ObjectClient(from_child[0], to_child[1])
    with open(os.devnull, "w", encoding="utf-8") as ignored, contextlib.redirect_stdout(ignored):  # noqa: PTH123
        names = client.run(task["code"])
        try:
            outcome: int | str = run_tests({"__name__": "tests", **names}, task["tests"])
        except TestWouldNotRun as error:
            outcome = str(error)
    print(task["secret"], json.dumps(outcome), flush=True)
    os._exit(0)


def answer() -> None:
    """Run code, evaluate expressions in it, and print one line for each: [null, value] or [error, text]."""
    task: dict[str, Any] = json.load(sys.stdin)
    values, output = ValueCodec(), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    names = run_code(task["code"])
    for call in task["calls"]:
        outcome = outcome_of(lambda call=call: values.dump(eval(compile(call, "call", "eval"), names)))
        output.write(json.dumps(outcome) + "\n")
        output.flush()
