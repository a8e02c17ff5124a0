"""Whatever texts an author gives: a typed error at once, or a trajectory that is written and read back."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from envsdk import Action, Env, EnvConfig, Handoff, HistoryPolicy, Message, ToolEnv, Trajectory, Turn, errors, tool
from envsdk.history import History, Rewrite
from envsdk.rollouts import rollout_many

TEXTS = st.text(st.characters(exclude_categories=()), max_size=6)
"""Any Python text, halves of surrogate pairs included."""


@pytest.fixture(autouse=True)
def unlogged() -> Iterator[None]:
    """Log nothing: pytest's workers cannot send each other halves of surrogate pairs."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


class Mute(Exception):
    """An exception that cannot say what is wrong."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        raise ValueError(self.text)


class Noted(Exception):
    """An exception with a note."""

    def __init__(self, text: str) -> None:
        super().__init__("noted")
        self.add_note(text)


class Says(Env):
    """Its first turn and its next one are functions of a text."""

    def __init__(self, first: Callable[[], Any] = lambda: Turn("Go."), then: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self.first, self.then = first, then

    def start(self) -> Any:
        return self.first()

    def respond(self, reply: Message) -> Any:
        return Turn(terminated=True) if self.then is None else self.then()

    def resume(self, result: Any) -> Turn:
        return Turn(terminated=True)


def raises(error: BaseException) -> Any:
    raise error


class Rewrites(HistoryPolicy):
    """Drops the first message, with a detail in the author's words."""

    detail: str

    def view(self, history: History) -> Rewrite | None:
        return Rewrite(1, (), "edit", self.detail) if len(history.messages) > 2 else None


def schema(text: str, where: str) -> dict[str, Any]:
    parts = {"name": "f", "description": "", "property": "a", "property description": "", "key": "x", where: text}
    properties = {parts["property"]: {"type": "string", "description": parts["property description"]}}
    function = {"name": parts["name"], "description": parts["description"], "extra": {parts["key"]: 1}}
    return {"type": "function", "function": {**function, "parameters": {"type": "object", "properties": properties}}}


def of_model(text: str) -> Env:
    class Config(EnvConfig):
        options: Any = None

    class Configured(Says):
        pass

    Configured.Config = Config
    return Configured(options={text: [text]})


def documented(text: str) -> Env:
    class Documented(ToolEnv):
        def start(self) -> Turn:
            return Turn("Go.")

        def look(self) -> str:
            return text

        look.__doc__ = f"Look {text}"
        look = tool(look)

        def finish(self, reply: Message) -> Turn:
            return Turn(terminated=True)

    return Documented()


PLACES: dict[str, Callable[[str], Any]] = {
    "an exception": lambda text: Says(then=lambda: raises(ValueError(text))),
    "an exception of start": lambda text: Says(lambda: raises(ValueError(text))),
    "an exception that cannot be told": lambda text: Says(then=lambda: raises(Mute(text))),
    "a note": lambda text: Says(then=lambda: raises(Noted(text))),
    "an exception of a sub-agent": lambda text: Says(then=lambda: Handoff(Says(lambda: raises(ValueError(text))))),
    "a mute sub-agent": lambda text: Says(then=lambda: Handoff(Says(lambda: raises(Mute(text))))),
    "reward": lambda text: Says(then=lambda: Turn("Go on.", reward={text: 1.0})),
    "metrics": lambda text: Says(then=lambda: Turn("Go on.", metrics={text: 1.0})),
    "metrics of the first turn": lambda text: Says(lambda: Turn("Go.", metrics={text: 1.0})),
    "context": lambda text: Says(lambda: Turn("Go.", context=text)),
    "context_rewards": lambda text: Says(then=lambda: Turn("Go.", context_rewards={text: 1.0})),
    "role of a handoff": lambda text: Says(then=lambda: Handoff(Says(), role=text)),
    "task of a handoff": lambda text: Says(then=lambda: Handoff(Says(), text)),
    "task of a handoff, nested": lambda text: Says(then=lambda: Handoff(Says(), {"a": [text], text: 1})),
    "message": lambda text: Says(lambda: Turn(text)),
    "system": lambda text: Says(lambda: Turn("Go.", system=text)),
    "prefill": lambda text: Says(lambda: Turn("Go.", prefill=text)),
    "continues": lambda text: Says(then=lambda: Turn(text, continues=True)),
    "stop": lambda text: Says(lambda: Turn("Go.", stop=[text])),
    "sampling": lambda text: Says(lambda: Turn("Go.", sampling={text: text})),
    "info": lambda text: Says(lambda: Turn("Go.", info={text: text})),
    "detail of a rewrite": lambda text: Says(then=lambda: Turn("Go on."), history=Rewrites(detail=text)),
    "config": of_model,
    "docstring of a tool": documented,
    "tasks": lambda text: Says(tasks=[{"a": text}]),
    "keys of tasks": lambda text: Says(tasks=[{text: 1}]),
    "tasks that are texts": lambda text: Says(tasks=[text]),
    **{
        f"{where} of a schema": lambda text, where=where: Says(lambda: Turn("Go.", tools=[schema(text, where)]))
        for where in ("name", "description", "property", "property description", "key")
    },
}


def is_read_back(trajectory: Trajectory) -> bool:
    line = trajectory.to_json()
    return Trajectory.from_json(line).to_json() == line


def refused_or_recorded(text: str, make: Callable[[str], Env], **options: Any) -> None:
    try:
        env = make(text)
    except errors.EnvsdkError:
        return
    try:
        env.reset(seed=0, **options)
        count = 0
        while env.trajectory is None and count < 3:
            env.step([5, *env.pending()[1]["stop_token_ids"][:1]])
            count += 1
    except (ValueError, Mute, Noted, errors.EnvsdkError) as error:
        if not env._envsdk.agent:
            assert isinstance(error, errors.EnvsdkError)
            return
        assert is_read_back(env.fail(error))
    else:
        assert is_read_back(env.trajectory or env.fail(ValueError(text)))


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=5, suppress_health_check=list(HealthCheck))
@example("\ud800")
@example("a\udfff")
@given(text=TEXTS)
def test_a_text_of_an_author_is_refused_at_once_or_recorded(place: str, text: str) -> None:
    refused_or_recorded(text, PLACES[place])


@pytest.mark.parametrize("option", ["episode_id", "group_id", "task"])
@settings(max_examples=5)
@example("\ud800")
@given(text=TEXTS)
def test_a_text_among_the_options_of_reset_is_refused_at_once_or_recorded(option: str, text: str) -> None:
    refused_or_recorded(text, lambda _: Says(), options={option: text})


@pytest.mark.parametrize(
    "extra", [lambda text: {text: 1}, lambda text: {"a": text}, lambda text: {"a": [{text: text}]}]
)
@settings(max_examples=5)
@example("\ud800")
@given(text=TEXTS)
def test_a_text_in_the_extra_of_an_action_is_refused_at_once_or_recorded(extra: Any, text: str) -> None:
    env = Says()
    env.reset(seed=0)
    try:
        env.step(Action([5], extra=extra(text)))
    except errors.ActionError:
        env.step([5])
    assert is_read_back(env.trajectory or env.fail(ValueError(text)))


@pytest.mark.parametrize("error", [ValueError("bad \ud800"), Mute(""), Noted("\udfff")], ids=repr)
def test_a_failed_episode_of_rollout_many_is_recorded_whatever_its_error_contains(error: Exception) -> None:
    class Raises(Env):
        def start(self) -> Turn:
            return Turn("Go.")

        def respond(self, reply: Message) -> Turn:
            raise error

    (trajectory,) = rollout_many(Raises, "null", seeds=[0])
    assert trajectory.status == "error"
    assert trajectory.error is not None
    assert trajectory.error.startswith(f"{type(error).__name__}: ")
    assert is_read_back(trajectory)


def test_an_episode_that_fails_while_a_reply_goes_on_is_recorded() -> None:
    env = Says(then=lambda: Turn("And", continues=True))
    env.reset(seed=0)
    env.step([5])
    env.step([5])
    trajectory = env.fail(ValueError("no more"))
    assert is_read_back(trajectory)
    assert [step.reply for step in trajectory.steps] == [None, None]


def test_an_episode_whose_history_policy_has_a_function_is_recorded() -> None:
    class Asks(HistoryPolicy):
        function: Callable[[History], Rewrite | None]

        def view(self, history: History) -> Rewrite | None:
            return self.function(history)

    def keep(history: History) -> None:
        return None

    env = Says(history=Asks(function=keep))
    env.reset(seed=0)
    env.step([5])
    assert env.trajectory is not None
    assert is_read_back(env.trajectory)
    assert env.trajectory.history["function"].endswith("keep")
