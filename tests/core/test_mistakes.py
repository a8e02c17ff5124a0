"""What newcomers get wrong: each mistake has an error that says what to do."""

import asyncio
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pytest
from pydantic import BaseModel

import envsdk
from envsdk import Action, Env, Handoff, Message, ToolEnv, Turn, errors, tool
from envsdk.authoring._env import EnvConfig
from envsdk.authoring._tool_env import ToolEnvConfig
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


# What a class is.


def no_super() -> None:
    class Forgets(Says):
        def __init__(self, size: int = 3) -> None:
            self.size = size

    rollout(Forgets())


def no_super_reset() -> None:
    class Forgets(Says):
        def __init__(self) -> None:
            pass

    Forgets().reset(seed=0)


def config_of_pydantic() -> None:
    class Wrong(Says):
        class Config(BaseModel):  # pyright: ignore[reportIncompatibleVariableOverride]
            size: int = 3


def config_of_an_env() -> None:
    class Wrong(Calls):
        class Config(EnvConfig):
            size: int = 3


def config_object() -> None:
    class Wrong(Says):
        Config = EnvConfig()  # type: ignore[assignment]


def tool_in_env() -> None:
    class Wrong(Says):
        @tool
        def look(self) -> str:
            """Look."""
            return ""


def responds() -> None:
    class Wrong(ToolEnv):
        @tool
        def look(self) -> str:
            """Look."""
            return ""

        def start(self) -> Turn:
            return Turn("Go.")

        def respond(self, reply: Message) -> Any:
            return Turn(terminated=True)

    Wrong()


def forgotten_tool() -> None:
    class Wrong(ToolEnv):
        def start(self) -> Turn:
            return Turn("Go.")

        def search(self, query: str) -> str:
            """Search."""
            return query

        def finish(self, reply: Message) -> Turn:
            return Turn(terminated=True)

    rollout(Wrong())


def async_close() -> None:
    class Wrong(Says):
        async def close(self) -> None:  # type: ignore[override]
            pass


def async_reference() -> None:
    class Wrong(Says):
        async def reference_reply(self) -> str:  # type: ignore[override]
            return "a"


def wrong_name_in_docstring() -> None:
    @tool
    def price(item: str) -> str:
        """Look up a price.

        Args:
            itme: What it is of.
        """
        return item


def reads_no_task() -> None:
    class Wrong(Says):
        def start(self) -> Turn:
            return Turn(self.task["question"])

    rollout(Wrong())


def reads_no_task_later() -> None:
    class Wrong(Says):
        async def respond(self, reply: Message) -> Turn:
            return Turn(reward=float(reply.content == self.task.answer), terminated=True)

    rollout(Wrong())


def needs_keywords(prompt: Any) -> Action:
    return Action([5])


def needs_some(prompt: Any, *, stop_token_ids: Any, max_tokens: Any) -> Action:
    return Action([5])


class PolicyClass:
    def __init__(self, model: str) -> None:
        pass

    def __call__(self, prompt: Any, **_: Any) -> Action:
        return Action([5])


class Reward(Says):
    def respond(self, reply: Message) -> Any:
        return Turn(reward=coroutine(), terminated=True)  # type: ignore[arg-type]


class NamedReward(Says):
    def respond(self, reply: Message) -> Any:
        return Turn(reward={"a": coroutine()}, terminated=True)  # type: ignore[dict-item]


class RewardOfText(Says):
    def respond(self, reply: Message) -> Any:
        return Turn(reward="1", terminated=True)  # type: ignore[arg-type]


class Text(Says):
    def start(self) -> Any:
        return Turn(coroutine())  # type: ignore[arg-type]


ENV, CONFIG, POLICY = errors.EnvsdkError, errors.ConfigError, errors.PolicyError
MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "__init__ without super()": (no_super, CONFIG, "Forgets.__init__() (test_mistakes.py, line"),
    "__init__ without super(), reset": (no_super_reset, CONFIG, "before super().__init__(**options) has run"),
    "a Config of pydantic": (config_of_pydantic, CONFIG, "expected a subclass of EnvConfig: class Config(EnvConfig)"),
    "a Config of an Env in a ToolEnv": (config_of_an_env, CONFIG, "expected a subclass of ToolEnvConfig"),
    "a Config that is an object": (config_object, CONFIG, "Wrong.Config is EnvConfig()"),
    "@tool in an Env": (tool_in_env, CONFIG, "class Wrong(ToolEnv), and write finish() instead of respond()"),
    "respond in a ToolEnv": (responds, CONFIG, "write finish(reply) for a reply without a call"),
    "a forgotten @tool": (forgotten_tool, CONFIG, "Is @tool missing above search()?"),
    "async close": (async_close, CONFIG, "Wrong.close() (test_mistakes.py, line"),
    "async reference_reply": (async_reference, CONFIG, "make it a plain `def`"),
    "a wrong name under Args": (wrong_name_in_docstring, CONFIG, "'itme', which is not one of its parameters; did"),
    "self.task without tasks": (reads_no_task, errors.TaskError, "reads self.task, which is None (line"),
    "self.task.answer without tasks": (reads_no_task_later, errors.TaskError, "Wrong.respond() (test_mistakes.py,"),
    "a task that is an object": (lambda: Says(tasks=[{"a": object()}]).reset(), errors.TaskError, "cannot be recorded"),
    "a task that is a function": (lambda: Says(tasks=[{"a": len}]).reset(), errors.TaskError, "cannot be recorded"),
    "a given task that is an object": (
        lambda: Says().reset(options={"task": object()}),
        errors.TaskError,
        "a string, a number, a list, a mapping",
    ),
    "a reward that is not awaited": (lambda: rollout(Reward()), errors.TurnError, "reward of a Turn is an awaitable"),
    "a named reward that is not awaited": (lambda: rollout(NamedReward()), errors.TurnError, "`await` is missing"),
    "a reward that is a text": (lambda: rollout(RewardOfText()), errors.TurnError, "(a string is not a number)"),
    "a text that is not awaited": (lambda: rollout(Text()), errors.TurnError, "messages of a Turn is an awaitable"),
    "rollout(class)": (lambda: rollout(Says), CONFIG, "got the class Says; expected an instance, Says()"),
    "rollout(None)": (lambda: rollout(None), CONFIG, "expected an Env, or the id of a registered"),
    "rollout(unknown id)": (lambda: rollout("envsdk/MathCat-v0"), errors.UnknownName, "Did you mean 'envsdk/MathChat"),
    "make(a class without its module)": (lambda: envsdk.make("Spell"), errors.UnknownName, "call it, or register it"),
    "rollout_many(env)": (lambda: rollout_many(Says(), seeds=[0]), CONFIG, "expected a way to make an environment"),
    "rollout_many(seeds=generator)": (lambda: rollout_many(Says, seeds=(i for i in range(2))), CONFIG, "list(seeds)"),
    "rollout_many(function of a class)": (lambda: rollout_many(lambda: Says, seeds=[0]), CONFIG, "the class Says;"),
    "a policy without **_": (lambda: rollout(Says(), needs_keywords), POLICY, "write needs_keywords(prompt, *,"),
    "a policy that takes some": (lambda: rollout(Says(), needs_some), POLICY, "`**_` takes the arguments that"),
    "a policy by role without **_": (lambda: rollout(Says(), {"main": needs_some}), POLICY, "needs_some(prompt, *"),
    "a class of policies": (lambda: rollout(Says(), PolicyClass), POLICY, "it is a class: pass an instance"),
    "a policy in rollout_many": (lambda: rollout_many(Says, needs_some, seeds=[0]), POLICY, "`**_` takes"),
    "register_env without a namespace": (
        lambda: envsdk.register_env("NoSlash", Says),
        CONFIG,
        "expected namespace/Name-v0, such as 'you/NoSlash-v0'",
    ),
    "register_env without a version": (lambda: envsdk.register_env("me/My Env", Says), CONFIG, "'you/MyEnv-v0'"),
    "a history that is misspelled": (lambda: Says(history="compct:every=2"), errors.UnknownName, "mean 'compact'"),
    "a history with a wrong option": (lambda: Says(history="compact:evry=2"), CONFIG, "evry"),
    "a history that is no pair": (lambda: Says(history="compact:2"), CONFIG, "name:key=value"),
    "a renderer that is no pair": (lambda: Says(renderer="qwen3:2"), CONFIG, "name:key=value"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_has_an_error_that_says_what_to_do(mistake: str) -> None:
    make, kind, words = MISTAKES[mistake]
    with pytest.raises(kind, match=re.escape(words)) as raised:
        make()
    assert isinstance(raised.value, ENV)


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
