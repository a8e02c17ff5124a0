"""An author may give any name to an attribute or a method of an environment, or is told at once that it is taken."""

import copy
import functools
import re
from typing import Any

import cloudpickle
import numpy as np
import pytest

import envsdk
from envsdk import Env, Message, ToolCall, ToolEnv, Turn, tool
from envsdk.authoring._driver import Driver
from envsdk.authoring._mistakes import DECLARATIONS, METHODS
from envsdk.errors import ReservedName, TaskError

POPULAR = re.findall(
    r"\w+",
    """
    _answer _answered _agent _history _runner _config _episode _state _messages _prompt _reply
    _tools _functions _call _run _cut _failed _now _note _line _drive _begin _prepare _started
    _limits _renderer _own_renderer _inherits _handed_over _bad_replies _env answer state score done
    reply turn turns steps player board game dataset rng seed question agent driver env policy model
    tokenizer task tasks result results
    """,
)
NAMES = sorted(
    name
    for name in {*dir(Env), *dir(ToolEnv), *dir(Driver), *POPULAR}
    if not name.startswith(("__", "_envsdk")) and name not in DECLARATIONS
)
FREE = [name for name in NAMES if name not in {*dir(Env), *dir(ToolEnv)}]
ROWS = [pytest.param(name, marks=pytest.mark.full) if name in FREE and FREE.index(name) % 8 else name for name in NAMES]
"""The names that are free are alike: a short run takes one of eight."""
VALUES: list[Any] = [[], "text", 7, None, True, {"a": 1}, np.arange(3)]


class Talk(Env):
    """Two questions."""

    def __init__(self, hook: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self.hook_of_test = hook or (lambda env, where: None)
        self.hook_of_test(self, "init")

    def start(self) -> Turn:
        self.hook_of_test(self, "start")
        self.asked = 1
        return Turn(f"Which of {self.np_random.integers(9)}?")

    def respond(self, reply: Message) -> Turn:
        self.hook_of_test(self, "respond")
        self.asked += 1
        return Turn(f"And {self.np_random.integers(9)}?", reward=0.5, terminated=self.asked > 3)

    def reference_reply(self) -> Message:
        return Message(role="assistant", content="Hm.")


class Look(ToolEnv):
    """Three looks."""

    def __init__(self, hook: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self.hook_of_test = hook or (lambda env, where: None)
        self.hook_of_test(self, "init")

    def start(self) -> Turn:
        self.hook_of_test(self, "start")
        self.seen = 0
        return Turn(f"Look {self.np_random.integers(9)}.")

    @tool
    def look(self, place: int) -> str:
        """Look somewhere."""
        self.hook_of_test(self, "respond")
        self.seen += 1
        return f"{place}: {self.np_random.integers(9)}"

    def finish(self, reply: Message) -> Turn:
        return Turn(reward=float(self.seen), terminated=True)

    def reference_reply(self) -> Message:
        calls = (ToolCall(name="look", arguments={"place": self.seen}),)
        return Message(role="assistant", content="Hm.", tool_calls=calls if self.seen < 3 else ())


def played(env: Env) -> list[Any]:
    """What an episode gives, played in every way: rolled out, stepped, forked, copied and pickled."""
    policy = "reference"
    records = [envsdk.rollout(env, policy, seed=1).to_json()]
    records += [envsdk.rollout(copy.deepcopy(cloudpickle.loads(cloudpickle.dumps(env))), policy, seed=1).to_json()]
    env.reset(seed=1)
    env.step(env.renderer.reply(env.reference_reply()))
    fork = env.fork()
    try:
        records += [envsdk.rollout(one, policy, reset=False).to_json() for one in (fork, env)]
    finally:
        fork.close()
    env.close()
    return records


EXPECTED = {kind: played(kind()) for kind in (Talk, Look)}


def set_at(places: tuple[str, ...], name: str, value: Any, env: Any, at: str) -> None:
    if at in places:
        setattr(env, name, value)


def sets(name: str, value: Any, *places: str) -> Any:
    return functools.partial(set_at, places, name, value)


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("kind", [Talk, Look], ids=["Env", "ToolEnv"])
@pytest.mark.parametrize("name", [row for row in ROWS if row != "tasks"])
def test_any_attribute_of_an_author_works_or_is_refused_where_it_is_set(name: str, kind: Any) -> None:
    value = VALUES[len(name) % len(VALUES)]
    try:
        setattr(kind(), name, value)
    except ReservedName as error:
        assert name in str(error)
        for place in ("start", "respond"):
            with pytest.raises(ReservedName):
                played(kind(hook=sets(name, value, place)))
    else:
        assert played(kind(hook=sets(name, value, "init", "start", "respond"))) == EXPECTED[kind]


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("kind", [Talk, Look], ids=["Env", "ToolEnv"])
@pytest.mark.parametrize("name", ROWS)
def test_any_name_in_a_class_body_or_a_mixin_works_or_is_refused_where_the_class_is_made(name: str, kind: Any) -> None:
    value: Any = [] if name in METHODS or len(name) % 2 else lambda self: 7  # a method of theirs is theirs to write
    bodies = {"class body": ((kind,), {name: value}), "mixin": ((type("Mixin", (), {name: value}), kind), {})}
    outcomes = []
    for bases, body in bodies.values():
        try:
            made = type(kind.__name__, bases, {**body, "__module__": __name__})
        except ReservedName as error:
            assert name in str(error)
            outcomes.append("refused")
        else:
            outcomes.append(played(made()))
    assert outcomes in (["refused"] * 2, [EXPECTED[kind]] * 2)


@pytest.mark.parametrize("value", [[], "tasks.jsonl", 7, {"a": 1}, np.arange(0)], ids=repr)
def test_tasks_are_set_to_a_list_of_tasks(value: Any) -> None:
    with pytest.raises(TaskError, match=r"task"):
        Talk().tasks = value


@pytest.mark.parametrize(
    "name", ["_history", "_answer", "_agent", "_renderer", "_limits", "_functions", "agent", "driver"]
)
def test_what_only_the_sdk_used_is_the_authors(name: str) -> None:
    env = Look(hook=sets(name, "mine", "respond"))
    assert played(env) == EXPECTED[Look]
    assert getattr(env, name) == "mine"


@pytest.mark.parametrize(
    "name", ["messages", "prompt", "name", "context", "history", "reset", "step", "fork", "config"]
)
def test_what_users_of_an_environment_call_is_refused_with_another_name_to_take(name: str) -> None:
    with pytest.raises(ReservedName, match=rf"self\.{name} hides `{name}`.*take another name, such as `my_{name}`"):
        setattr(Talk(), name, [])
    with pytest.raises(ReservedName, match=rf"Named\.{name} hides `{name}`"):
        type("Named", (Talk,), {name: []})


def test_all_that_the_sdk_keeps_has_one_prefix() -> None:
    for kind in (Talk, Look):
        env = kind()
        env.reset(seed=0)
        gymnasiums = {"_np_random", "_np_random_seed", "observation_space", "action_space", "render_mode"}
        authors = {"hook_of_test", "asked", "seen", "task", "tasks"}
        assert all(name.startswith("_envsdk") for name in vars(env).keys() - gymnasiums - authors)


def test_a_class_may_not_use_the_names_of_the_sdk() -> None:
    with pytest.raises(ReservedName, match=r"Named\._envsdk_prepare hides"):
        type("Named", (Look,), {"_envsdk_prepare": None})


def test_a_method_that_the_sdk_calls_is_no_flag() -> None:
    with pytest.raises(ReservedName, match=r"self\.finish is set to True; expected a function"):
        Look().finish = True
    with pytest.raises(ReservedName, match=r"Named\.finish is not callable"):
        type("Named", (Look,), {"finish": False})
    Talk().finish = True
