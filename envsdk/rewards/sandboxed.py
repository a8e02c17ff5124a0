"""Runs inside the sandbox, as a program of its own; `programs` adds which function to call. Standard library only.

`test` runs tests in this process, and the code that they test in a child process. The two share no memory. The child is
forked before this process has read the tests and the secret that goes with the verdict, and its standard streams are
closed; on Linux this process lets nobody trace it. What the tests call in the child is asked for over a pipe, and only
plain values come back, so that nothing of the child's (no `__eq__`, no patched builtin) takes part in a comparison.

`answer` runs code and then expressions in it, and writes the values, which are compared elsewhere.
"""

import builtins
import contextlib
import ctypes
import json
import os
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn, cast

_PR_SET_DUMPABLE = 4
_PLAIN = {bool, int, float, str, type(None)}
_LISTS: dict[str, Callable[..., Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def _call(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    return function(*args, **named)


def _item(owner: Any, key: Any) -> Any:
    return owner[key]


_ASKED: dict[str, Callable[..., Any]] = {
    "call": _call,
    "get": getattr,
    "item": _item,
    "iter": iter,
    "next": next,
    "len": len,
}
"""What the tests may ask the child to do with its objects."""
_ASSERTED = "__asserted__"
"""The name of the list in which a text of tests counts its asserts."""


class Values:
    """Values as JSON. What is no plain value stays where it is, and goes by a number."""

    def dump(self, value: Any) -> Any:
        """A value as JSON; only exact types are plain."""
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
        """The value that `dump` wrote."""
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
        """The number by which an object goes."""
        return 0

    def object_of(self, number: int) -> Any:
        """The object of a number; here, one that is equal to no other."""
        return object()


class Pipe(Values):
    """Values over a pipe, one JSON document a line."""

    def __init__(self, read: int, write: int) -> None:
        self._read = os.fdopen(read, "r", encoding="utf-8", errors="surrogatepass")
        self._write = os.fdopen(write, "w", encoding="utf-8", errors="surrogatepass")

    def send(self, value: Any) -> None:
        """Write a value."""
        self._write.write(json.dumps(self.dump(value)) + "\n")
        self._write.flush()

    def receive(self) -> Any:
        """Read a value."""
        line = self._read.readline()
        if not line:
            raise EOFError("the other process has ended")
        return self.load(json.loads(line))


class Served(Pipe):
    """The child's end: holds the objects."""

    def __init__(self, read: int, write: int) -> None:
        super().__init__(read, write)
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def number_of(self, value: Any) -> int:
        """See `Values`; the same object has the same number."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return self._numbers[id(value)]

    def object_of(self, number: int) -> Any:
        """See `Values`."""
        return self._objects[number]

    def serve(self) -> NoReturn:
        """Run the code, then do what is asked for, until nobody asks any more."""
        self.send(tried(lambda: exported(run_code(self.receive()))))
        while True:
            name, args, named = self.receive()
            outcome = tried(lambda name=name, args=args, named=named: _ASKED[name](*args, **named))
            try:
                self.send([*outcome, args])
            except (RecursionError, ValueError) as error:
                self.send([type(error).__name__, str(error), []])


def tried(action: Callable[[], Any]) -> list[Any]:
    """None and a value; or the name of an exception and what it says."""
    try:
        return [None, action()]
    except BaseException as error:
        with contextlib.suppress(Exception):
            return [type(error).__name__, str(error)]
        return ["Exception", ""]


def run_code(code: str) -> dict[str, Any]:
    """Run the reply's code; its names."""
    module = types.ModuleType("reply")
    sys.modules["reply"] = module
    exec(compile(code, "reply.py", "exec"), vars(module))
    return vars(module)


def exported(names: dict[str, Any]) -> dict[str, Any]:
    """What the code defines, without modules."""
    return {name: value for name, value in names.items() if not isinstance(value, types.ModuleType)}


class Remote:
    """An object in the child, for the tests: called, asked for attributes and items, and gone through."""

    def __init__(self, pipe: "Asking", number: int) -> None:
        self.__dict__.update(_pipe=pipe, _number=number)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call it."""
        return self._pipe.ask("call", self, *args, **named)

    def __getattr__(self, name: str) -> Any:
        return self._pipe.ask("get", self, name)

    def __getitem__(self, key: Any) -> Any:
        return self._pipe.ask("item", self, key)

    def __iter__(self) -> Any:
        return self._pipe.ask("iter", self)

    def __next__(self) -> Any:
        return self._pipe.ask("next", self)

    def __len__(self) -> int:
        return self._pipe.ask("len", self)

    def __bool__(self) -> bool:
        raise TypeError("whether an object of the reply is true is for the reply to say: compare a plain value")


class Asking(Pipe):
    """The tests' end."""

    def __init__(self, read: int, write: int) -> None:
        super().__init__(read, write)
        self._objects: dict[int, Remote] = {}

    def number_of(self, value: Any) -> int:
        """See `Values`."""
        if not isinstance(value, Remote):
            raise TypeError(f"a {type(value).__name__} cannot be given to the reply's code: only plain values can")
        return vars(value)["_number"]

    def object_of(self, number: int) -> Remote:
        """See `Values`."""
        return self._objects.setdefault(int(number), Remote(self, int(number)))

    def run(self, code: str) -> dict[str, Any]:
        """Run the reply's code; what it defines."""
        self.send(code)
        error, value = self.receive()
        return _known_by_name(value) if error is None else _fail(error, value)

    def ask(self, what: str, *args: Any, **named: Any) -> Any:
        """Let the child do something. Lists and the like that it was given are then as it left them."""
        self.send([what, args, named])
        error, value, left = self.receive()
        for given, after in zip(args, left, strict=False):
            _update(given, after)
        if error == "StopIteration" and what != "next":
            error = "RuntimeError"  # else it would end a loop over what the code says, with no word
        return value if error is None else _fail(error, value)


def _known_by_name(names: Any) -> dict[str, Any]:
    """What the tests know by name: nothing that would hide a builtin from them, or that Python itself reads."""
    found = cast("dict[Any, Any]", names) if isinstance(names, dict) else {}
    return {
        name: value
        for name, value in found.items()
        if isinstance(name, str) and not (name.startswith("__") or hasattr(builtins, name))
    }


def _update(given: Any, after: Any) -> None:
    if type(given) is not type(after):
        return
    if isinstance(given, list):
        given[:] = after
    elif isinstance(given, (dict, set)):
        given.clear()
        cast("Any", given).update(after)


def _fail(name: str, said: str) -> NoReturn:
    """Raise what the child raised: the builtin exception of that name, or one that is called so."""
    kind: Any = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = type(str(name), (Exception,), {})
    try:
        error = kind(said)
    except TypeError:
        error = Exception(f"{name}: {said}")
    raise error


class NoTestError(Exception):
    """Something in a text of tests looks like a test, and would not be run."""


def run_tests(namespace: dict[str, Any], tests: str) -> int:
    """Run a text of tests: what it says, its functions `test...`, and its classes of `unittest`.

    Returns:
        How many tests ran: asserts, functions, and methods of `unittest` that did not skip.

    Raises:
        NoTestError: If the text has something that looks like a test and is none.
    """
    before = dict(namespace)
    asserted: list[None] = []
    namespace[_ASSERTED] = asserted
    exec(counting_asserts(tests), namespace)
    own = [value for name, value in namespace.items() if before.get(name, namespace) is not value]
    functions = [one for one in own if isinstance(one, types.FunctionType) and one.__name__.startswith("test")]
    classes = [one for one in own if isinstance(one, type)]
    for function in functions:
        check_function(function, function.__name__)
    for kind in classes:
        check_class(kind)
    for function in functions:
        function()
    return sum(map(run_cases, classes)) + len(functions) + len(asserted)


def counting_asserts(tests: str) -> types.CodeType:
    """The code of a text of tests that counts which of its asserts hold."""
    import ast

    class Counting(ast.NodeTransformer):
        def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
            """Follow it with a statement that counts."""
            return [node, *(ast.copy_location(one, node) for one in ast.parse(f"{_ASSERTED}.append(None)").body)]

    return compile(ast.fix_missing_locations(Counting().visit(ast.parse(tests))), "tests.py", "exec")


def check_function(function: object, name: str) -> None:
    """Refuse a test that does nothing when it is called."""
    import inspect

    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_kind(function) for is_kind in kinds):
        raise NoTestError(f"{name} is async or a generator: calling it tests nothing")


def check_class(kind: type[object]) -> None:
    """Refuse a class `Test...` that is none of `unittest`, and methods that test nothing."""
    names = [name for name in dir(kind) if name.startswith("test")]
    if not is_case(kind):
        if names and kind.__name__.startswith("Test") and kind.__module__ == "tests":
            raise NoTestError(f"the class {kind.__name__} is no unittest.TestCase: nobody runs its methods")
        return
    import unittest

    if not issubclass(kind, unittest.IsolatedAsyncioTestCase):
        for name in names:
            check_function(getattr(kind, name), f"{kind.__name__}.{name}")


def is_case(kind: type) -> bool:
    """Whether it is a class of tests of `unittest`."""
    if "unittest" not in sys.modules:
        return False
    import unittest

    return issubclass(kind, unittest.TestCase)


def run_cases(kind: type) -> int:
    """Run a class of tests, if it is one of `unittest`; how many ran and did not skip."""
    if not is_case(kind):
        return 0
    import unittest

    class Result(unittest.TestResult):
        passed = 0

        def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 - the name that `unittest` calls
            """Count it."""
            self.passed += 1

    result = Result()
    unittest.defaultTestLoader.loadTestsFromTestCase(kind).run(result)
    if not result.wasSuccessful():
        raise AssertionError(f"{len(result.errors)} errors, {len(result.failures)} failures")
    return result.passed + len(result.expectedFailures)


def child(read: int, write: int) -> NoReturn:
    """Serve the reply's code; nothing of the standard streams is left to it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    try:
        Served(read, write).serve()
    finally:
        os._exit(1)


def test() -> None:
    """Fork, read what there is to do, and say whether all tests pass.

    Then the secret is on standard output, and behind it how many tests ran, or what only looks like a test.
    """
    to_child, from_child = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(to_child[1])
        os.close(from_child[0])
        child(to_child[0], from_child[1])
    os.close(to_child[0])
    os.close(from_child[1])
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError("this process could not be closed to others")
    task: dict[str, str] = json.load(sys.stdin)
    asking = Asking(from_child[0], to_child[1])
    with open(os.devnull, "w", encoding="utf-8") as nothing, contextlib.redirect_stdout(nothing):  # noqa: PTH123
        names = asking.run(task["code"])
        try:
            outcome: int | str = run_tests({"__name__": "tests", **names}, task["tests"])
        except NoTestError as error:
            outcome = str(error)
    print(task["secret"], json.dumps(outcome), flush=True)
    os._exit(0)


def answer() -> None:
    """Run code and then expressions, and write for each a line: null and its value, or an error."""
    task: dict[str, Any] = json.load(sys.stdin)
    values, output = Values(), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    names = run_code(task["code"])
    for call in task["calls"]:
        outcome = tried(lambda call=call: values.dump(eval(compile(call, "call", "eval"), names)))
        output.write(json.dumps(outcome) + "\n")
        output.flush()
