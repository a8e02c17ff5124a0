"""What newcomers get wrong: each mistake has an error that says what to do."""

import asyncio
import functools
import gc
import importlib
import inspect
import linecache
import re
import shlex
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import gymnasium
import numpy as np
import pytest
from core.mistakes import MISTAKES, PRELUDE
from documentation.names import public_names
from typer.testing import CliRunner

import envsdk
from envsdk import Action, Env, Handoff, Message, ToolEnv, Turn, _registry, arollout, errors, tool
from envsdk.authoring import _driver
from envsdk.authoring._tool_env import ToolEnvConfig
from envsdk.cli import app
from envsdk.rollouts import arollout_many, rollout_many


class Says(Env):
    def start(self) -> Any:
        return Turn("Go.")

    def respond(self, reply: Message) -> Any:
        return Turn(reward=1.0, terminated=True)


class Calls(ToolEnv):
    def start(self) -> Any:
        return Turn("Go.")

    @tool
    def look(self) -> Any:
        """Look."""
        return "seen"

    def finish(self, reply: Message) -> Any:
        return Turn(terminated=True)


def rollout(env: Any, policy: Any = "null", **options: Any) -> Any:
    return envsdk.rollout(env, policy, seed=0, **options)


# What a method returns.


def generator() -> Any:
    yield Turn("Go.")


async def coroutine() -> Turn:
    return Turn("Go.")


async def async_generator() -> Any:
    yield Turn("Go.")


class Later:
    """What can be awaited, and is no coroutine."""

    def __await__(self) -> Any:
        return iter(())


WRONG = {
    "None": (lambda: None, "None, not a Turn: is a `return` missing"),
    "text": (lambda: "Well.", "the string 'Well.', not a Turn: return Turn('Well.')"),
    "dict": (lambda: {"messages": "a", "reward": 1}, "a mapping with messages, reward, not a Turn"),
    "generator": (generator, "a generator, not a Turn: it has a `yield`"),
    "async generator": (async_generator, "a generator, not a Turn: it has a `yield`"),
    "class": (lambda: Turn, "the class Turn, not a Turn"),
    "tuple": (
        lambda: ("obs", 1.0, True, False, {}),
        "a tuple, not a Turn, a Handoff, or a list of them that is not empty: ('obs'",
    ),
    "array": (lambda: np.zeros(3), "a ndarray, not a Turn"),
}
METHODS = [
    *((Says, name) for name in ("start", "respond", "resume")),
    *((Calls, name) for name in ("start", "finish", "after_tools", "on_bad_reply", "after_handoff")),
]


def with_method(base: type[Env], name: str, value: Callable[[], Any], is_async: bool = False) -> type[Env]:
    def method(self: Any, *_: Any) -> Any:
        return value()

    async def waiting(self: Any, *_: Any) -> Any:
        return value()

    members: dict[str, Any] = {name: waiting if is_async else method}
    if name == "resume":
        members["respond"] = lambda self, reply: Handoff(Says())
    if name == "after_handoff":
        members["finish"] = lambda self, reply: Handoff(Says())
    return type("Mistaken", (base,), members)


def come_to(name: str, env: Env) -> None:
    env.reset(seed=0)
    calls = {"after_tools": [{"name": "look"}], "on_bad_reply": [{"name": "nobody"}]}.get(name, [])
    for _ in range(2):
        env.step(env.renderer.reply(Message(role="assistant", content="a", tool_calls=calls)))


@pytest.mark.matrix(pairs=True)
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize(("base", "name"), METHODS)
def test_what_is_no_turn_names_the_method_the_class_and_the_line(
    base: type[Env], name: str, kind: str, is_async: bool
) -> None:
    value, words = WRONG[kind]
    cls = with_method(base, name, value, is_async)
    line = inspect.getsourcelines(getattr(cls, name))[1]
    with pytest.raises(errors.TurnError) as raised:
        come_to(name, cls())
    assert f"Mistaken.{name}() (test_mistakes.py, line {line}) returned {words}" in str(raised.value)


@pytest.mark.matrix
@pytest.mark.parametrize("returned", [coroutine, Later])
@pytest.mark.parametrize(("base", "name"), METHODS)
def test_a_forgotten_await_says_so(base: type[Env], name: str, returned: Callable[[], Any]) -> None:
    with pytest.raises(errors.TurnError, match="an `await` is missing"):
        come_to(name, with_method(base, name, returned, is_async=True)())


# What newcomers write.

NAMES = compile(PRELUDE, "prelude.py", "exec")
ALL = [(part, *mistake) for part, mistakes in MISTAKES.items() for mistake in mistakes]


def fault_of(code: str) -> tuple[str, str, bool]:
    """Run code, and return the error that it raises, or else its first warning: the type, the text, and if it is ours.

    The text is what a traceback ends with, so it includes what Python itself adds.
    """
    if code.startswith("$ "):
        result = CliRunner().invoke(app, shlex.split(code)[2:])
        if isinstance(result.exception, SystemExit):
            return "SystemExit", " ".join(re.sub("[\u2500-\u257f]", "", result.output).split()), True
        assert result.exception is not None, result.output
        return type(result.exception).__name__, str(result.exception), isinstance(result.exception, errors.EnvsdkError)
    names: dict[str, Any] = {"__name__": "mistake"}
    Path("mistake.py").write_text(code, encoding="utf-8")
    linecache.checkcache("mistake.py")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            exec(NAMES, names)
            exec(compile(code, "mistake.py", "exec"), names)
        except Exception as error:
            text = "".join(traceback.format_exception_only(error)).partition(": ")[2]
            return type(error).__name__, text, type(error).__module__ == "envsdk.errors"
        finally:
            names.clear()
            if "async" in code:
                gc.collect()  # a coroutine that was not awaited is reported here
    own = [one for one in warned if issubclass(one.category, errors.MistakeWarning)]
    return ("MistakeWarning", f"{own[0].filename}:{own[0].lineno}: {own[0].message}", True) if own else ("", "", False)


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder, no network, and environments that are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    offline = {"HF_HUB_OFFLINE": "1", "HTTPS_PROXY": "http://127.0.0.1:9", "TIKTOKEN_CACHE_DIR": "none"}
    for name, value in offline.items():
        monkeypatch.setenv(name, value)
    _registry.load_plugins()
    monkeypatch.setattr(_registry, "_envs", dict(_registry._envs))
    known = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(known)


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("part", MISTAKES)
def test_each_mistake_has_an_error_or_a_warning_that_says_what_to_do(part: str) -> None:
    wrong: list[str] = []
    for code, kind, words in MISTAKES[part]:
        found, text, _ = fault_of(code)
        if found != kind or words not in " ".join(text.split()):
            wrong.append(f"{code}\n  expected {kind}: {words}\n  got      {found}: {text}")
    assert not wrong, "\n".join(wrong)


def test_at_most_2_percent_of_the_mistakes_have_a_raw_error_and_none_is_silent() -> None:
    """A raw error is one of Python or a library that does not say what to do. Python reports the lookups in objects."""
    ours = {name for name, one in vars(errors).items() if isinstance(one, type)} | {"SystemExit", "NotImplementedError"}
    raw = [
        code for _, code, kind, words in ALL if kind not in ours and not re.search("Did you mean|has attributes", words)
    ]
    silent = [code for _, code, kind, words in ALL if not (kind and words)]
    print(f"{len(ALL)} mistakes: {len(raw)} with a raw error, {len(silent)} with none")
    assert len(raw) <= 0.02 * len(ALL), raw
    assert not silent


def test_every_public_class_and_function_names_an_unknown_argument_and_its_own() -> None:
    for module, names in public_names():
        for name in names if module != "envsdk.errors" else ():
            public = getattr(importlib.import_module(module), name)
            made: Any = public if inspect.isfunction(public) else getattr(public, "__init__", None)
            if not inspect.isfunction(made) or inspect.isabstract(public) or getattr(public, "_is_protocol", False):
                continue
            if made.__module__.startswith("envsdk"):
                with pytest.raises(errors.ConfigError, match=r"no_such_argument|needs"):
                    made = public(no_such_argument=1)
                    asyncio.run(made)  # of an async function


def test_a_method_that_blocks_an_event_loop_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blocks(Says):
        async def respond(self, reply: Message) -> Any:
            return Turn(terminated=True)

    async def play() -> None:
        await asyncio.gather(arollout(Blocks(), seed=0), arollout(Blocks(), seed=1))

    monkeypatch.setattr(_driver, "_LONG_S", 0.0)  # so that any method does
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(play())
    place = f"test_mistakes.py:{inspect.getsourcelines(Blocks.respond)[1]}: Blocks.respond() kept the event loop"
    assert any(place in f"{Path(one.filename).name}:{one.lineno}: {one.message}" for one in warned)


# What looks like a mistake, and is none.


def test_rollout_and_gather_take_ids() -> None:
    assert rollout("envsdk/MathChat-v0", "reference").reward == pytest.approx(1.0)
    assert len(rollout_many("envsdk/MathChat-v0", "reference", seeds=range(2))) == 2
    assert len(asyncio.run(arollout_many("envsdk/MathChat-v0", "reference", seeds=np.arange(2)))) == 2


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("compact:every=2", {"name": "compact", "every": 2, "keep_last": 0, "keep_images": None}),
        ('{"name": "compact", "every": 2}', {"name": "compact", "every": 2, "keep_last": 0, "keep_images": None}),
        ("keep", {"name": "keep"}),
    ],
)
def test_a_history_is_written_as_on_the_command_line(text: str, options: dict[str, Any]) -> None:
    assert Says(history=text).history.specification() == options
    assert envsdk.make("envsdk/MathChat-v0", history=text).history.specification() == options


def test_a_renderer_is_written_as_on_the_command_line() -> None:
    for renderer in ("qwen3:enable_thinking=false", '{"name": "qwen3", "enable_thinking": false}'):
        given = Says(renderer=renderer).renderer.specification()
        assert given == Says(renderer={"name": "qwen3", "enable_thinking": False}).renderer.specification()


def test_an_error_of_the_author_that_has_nothing_to_do_with_tasks_stays_as_it_is() -> None:
    class Other(Says):
        def start(self) -> Any:
            nothing: Any = None
            return Turn(nothing["question"])

    with pytest.raises(TypeError, match="not subscriptable"):
        rollout(Other())


def test_respond_of_a_tool_env_may_add_to_what_it_does() -> None:
    class Adds(Calls):
        async def respond(self, reply: Message) -> Any:
            turn = await super().respond(reply)
            turn.reward = 0.5
            turn.rewards = {"reward": 0.5}
            return turn

    assert rollout(Adds()).reward == 0.5


class PolicyClass:
    def __init__(self, model: str) -> None:
        pass

    def __call__(self, prompt: Any, **_: Any) -> Action:
        return Action([5])


def test_a_policy_may_be_a_partial_or_an_object_that_can_be_called() -> None:
    def policy(scale: float, prompt: Any, **_: Any) -> Action:
        return Action([5])

    assert rollout(Says(tokenizer="embedded"), functools.partial(policy, 1.0)).reward == 1.0
    assert rollout(Says(tokenizer="embedded"), PolicyClass("a")).reward == 1.0


def test_a_tool_env_may_have_its_tools_from_its_first_turn_or_its_attribute() -> None:
    def look() -> str:
        """Look."""
        return ""

    class FirstTurn(ToolEnv):
        def start(self) -> Turn:
            return Turn("Go.", tools=[tool(look)])

        def finish(self, reply: Message) -> Turn:
            return Turn(terminated=True)

    class Attribute(FirstTurn):
        tools = (look,)

        def start(self) -> Turn:
            return Turn("Go.")

    assert [rollout(env()).status for env in (FirstTurn, Attribute)] == ["terminated"] * 2


def test_configs_of_their_own_are_fine() -> None:
    class Own(Calls):
        class Config(ToolEnvConfig):
            size: int = 3

    assert Own(size=4).config.size == 4


# What is not a mistake, or another one.


def test_the_error_of_a_property_is_its_own():
    class Broken(Says):
        @property
        def board(self) -> Any:
            return self.grid_typo  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]

        def start(self) -> Turn:
            return Turn(str(self.board))

    with pytest.raises(AttributeError, match="grid_typo"):
        Broken().reset(seed=0)


def test_an_error_elsewhere_in_a_line_is_not_taken_for_a_missing_task():
    class Caches(Says):
        def start(self) -> Turn:
            self.task_cache: Any = None
            return Turn(f"{self.task} {self.task_cache['k']}")

    with pytest.raises(TypeError, match="not subscriptable"):
        Caches().reset(seed=0)


def test_an_environment_may_follow_a_protocol():
    class Named(Protocol):
        label: str

    class Follows(Says, Named):
        label = "mine"

    assert rollout(Follows()).reward == 1.0


def test_respond_of_a_tool_env_may_run_the_tools_in_any_way():
    class ByClass(Calls):
        async def respond(self, reply: Message) -> Any:
            return await ToolEnv.respond(self, reply)

    class ByHelper(Calls):
        def respond(self, reply: Message) -> Any:
            return self.answer(reply)

        def answer(self, reply: Message) -> Any:
            return super().respond(reply)

    for made in (ByClass, ByHelper):
        assert rollout(made()).status == "terminated"


def test_what_a_class_takes_from_others_is_checked_too():
    class Mixin:
        @tool
        def look(self) -> str:
            """Look."""
            return "seen"

    class Base(Says):
        pass

    with pytest.raises(errors.ConfigError, match="an Env, which does not run tools"):
        type("Wrong", (Mixin, Env), {})
    with pytest.raises(errors.ConfigError, match="replaces the method that runs the tools"):
        type("Wrong", (Base, ToolEnv), {})()


def test_default_limits_that_are_a_mapping_are_refused():
    with pytest.raises(errors.ConfigError, match=r"default_limits is .*expected Limits"):
        type("Wrong", (Says,), {"default_limits": {"max_steps": 3}})


def test_a_state_that_lacks_the_sdks_own_is_explained():
    class Forgets(Says):
        def __getstate__(self) -> dict[str, Any]:
            return {"x": 1}

    env = Forgets()
    env.reset(seed=0)
    with pytest.raises(errors.ConfigError, match=r"start from super\(\).__getstate__\(\)"):
        env.fork()
