"""A `RemoteEnv` against the same environment on this machine. The calls pass as JSON, without a network."""

import asyncio
import functools
import json
import os
from collections.abc import Mapping
from typing import Any, cast

import pytest

import envsdk
from envsdk import Edit, Env, Handoff, Limits, Mask, Message, Opening, Turn
from envsdk.adapters import RemoteEnv
from envsdk.authoring.adapters import _remote
from envsdk.authoring.adapters._hosted import EnvsBySplit, HostedEnv, MakeEnv, describe
from envsdk.authoring.adapters._remote import Observed, Session, io_thread
from envsdk.authoring.adapters._wire import Call, MessageTable, TurnData
from envsdk.errors import ConfigError, EnvsdkError, EpisodeError, RemoteEnvError, TaskError, TurnError

SERVED: dict[str, MakeEnv] = {}
"""The environments of the server, by URL."""


class NearSession:
    """A session without a network: what it exchanges passes as JSON."""

    def __init__(self, url: str, *_: Any) -> None:
        self.url, self.lock, self.is_lost = url, asyncio.Lock(), True
        self.thread = io_thread(os.getpid())
        self.seen: list[str] = []

    read = Session.read

    def get(self, page: str) -> bytes:
        split = page.partition("split=")[2] or None
        return describe(EnvsBySplit(SERVED[self.url])[split]).model_dump_json().encode()

    async def begin(self) -> None:
        self.host, self.is_lost = HostedEnv(SERVED[self.url]), False

    async def exchange(self, message: Mapping[str, Any]) -> Observed:
        self.seen.append(json.dumps(message))
        call = json.loads(self.seen[-1])["data"]["call"]
        return Observed(observation={"answer": await asyncio.to_thread(self.host.call, call)})

    async def close(self) -> None:
        self.is_lost = True


@pytest.fixture(autouse=True)
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_remote, "Session", NearSession)


def remote(make: MakeEnv, **options: Any) -> RemoteEnv:
    SERVED["http://near"] = make
    return RemoteEnv("http://near", **options)


def both(make: MakeEnv, seed: int = 0, policy: str = "reference", **options: Any) -> tuple[bytes, bytes]:
    """The records of an episode on this machine and on the server."""
    here, there = make(**options), remote(make, **options)
    return envsdk.rollout(here, policy, seed=seed).to_json(), envsdk.rollout(there, policy, seed=seed).to_json()


@pytest.mark.parametrize("policy", ["reference", "null", "random"])
@pytest.mark.parametrize(
    "name", ["GuessNumber", "Calculator", "Delegate", "KuhnPoker", "SearchInline", "WordGuess", "RetailDesk"]
)
def test_a_remote_episode_is_the_local_one(name: str, policy: str):
    here, there = both(functools.partial(envsdk.make, f"envsdk/{name}-v1"), seed=3, policy=policy)
    assert here == there


def test_images_arrive_as_they_are():
    here, there = both(functools.partial(envsdk.make, "envsdk/CropZoom-v1"))
    assert here == there


def test_the_history_policy_is_the_clients():
    make = functools.partial(envsdk.make, "envsdk/MathChat-v0")
    here, there = both(make, history="strip")
    assert here == there
    assert b"thinking_stripped" in there


def test_a_message_is_sent_once():
    env = remote(functools.partial(envsdk.make, "envsdk/Calculator-v1"))
    envsdk.rollout(env, "reference", seed=0)
    calls = [Call.model_validate_json(json.loads(seen)["data"]["call"]) for seen in env._envsdk_session.seen]
    whole = [message for call in calls for message in call.messages if not isinstance(message, int)]
    assert {message["role"] for message in whole} == {"system", "assistant"}
    assert any(isinstance(message, int) for call in calls for message in call.messages)


class Everything(Env):
    """Returns turns with every argument."""

    def start(self) -> Turn:
        return Turn(
            "Begin.", system="S", tools=[{"type": "function", "function": {"name": "f"}}], info={"a": [1, None]}
        )

    def respond(self, reply: Message) -> Turn:
        match sum(message.role == "assistant" for message in self.messages()):
            case 1:
                return Turn(" more", continues=True, reward={"a": 0.1, "b": 0.2}, metrics={"m": 1}, max_tokens=50)
            case 2:
                first = self.messages()[1]
                return Turn([first, "Other."], edit=Edit(1, "again"), mask=Mask([(0, 1)]), reward=None, stop=["x", "y"])
            case 3:
                opening = Opening("judge", "main", 2)
                return Turn("Judge.", context="judge", opening=opening, sampling={"temperature": 0.5})
            case _:
                return Turn(
                    "End.", terminated=True, context_rewards={"judge": 0.25}, keep_reply=None, info={"end": True}
                )

    def reference_reply(self) -> str:
        return "Some words that are long"


def test_every_argument_of_a_turn_arrives():
    limits = {"max_steps": 6}
    here, there = both(Everything, limits=limits)
    assert here == there


def test_turns_are_read_as_they_were_written():
    sender, receiver = MessageTable(), MessageTable()
    for turn in (
        Turn([Message(role="tool", content="r", name="f", tool_call_id="1")], up_to="x", train_dropped=False),
        Turn("a", prefill=Message(role="assistant", reasoning="Hm", content="")),
        Turn("b", prefill="<think>", truncated=False, context="player1"),
        Turn("c", schema={"type": "object"}, tool_choice="none"),
    ):
        written = TurnData.of(turn, sender).model_dump_json(exclude_defaults=True)
        read = TurnData.model_validate_json(written).turn(receiver)
        assert {name: getattr(read, name) for name in Turn.__slots__} == {
            name: getattr(turn, name) for name in Turn.__slots__
        }


def test_what_is_not_json_is_refused_with_its_name():
    with pytest.raises(TurnError, match=r"info=.*a set is not a JSON value"):
        TurnData.of(Turn("a", info={"seen": {1}}), MessageTable())


class Failing(Env):
    def start(self) -> Turn:
        return Turn("Begin.")

    def respond(self, reply: Message) -> Turn:
        raise ZeroDivisionError("of the author")


def test_an_exception_is_raised_with_its_class():
    env = remote(Failing)
    with pytest.raises(ZeroDivisionError, match="of the author"):
        envsdk.rollout(env, "null", seed=0)
    assert not env._envsdk_session.is_lost


class Rows(Env):
    def start(self) -> Turn:
        return Turn(f"{self.task} {self.np_random.random()}")

    def respond(self, reply: Message) -> Turn:
        return Turn(terminated=True, reward=1.0)


def test_the_seed_picks_the_row_that_it_picks_here():
    make = functools.partial(Rows, tasks=[{"n": n} for n in range(7)])
    env, here = remote(make), make()
    for seed in range(7):
        there = envsdk.rollout(env, "null", seed=seed)
        assert there.to_json() == envsdk.rollout(here, "null", seed=seed).to_json()
    env.reset(seed=0, options={"task": 3})
    assert env.task == {"n": 3}
    with pytest.raises(TaskError):
        env.reset(seed=0, options={"task": 7})


def test_a_second_reset_knows_nothing_of_the_first():
    env = remote(functools.partial(envsdk.make, "envsdk/Delegate-v1"))
    first = envsdk.rollout(env, "reference", seed=1).to_json()
    env.reset(seed=2)
    assert envsdk.rollout(env, "reference", seed=1).to_json() == first


class OwnRenderers(Rows):
    def renderer_of(self, role: str) -> Any:
        return self.renderer


class FilteredHistory(Rows):
    def respond(self, reply: Message) -> Any:
        return Handoff(Rows(), history=lambda messages: messages)


def test_what_cannot_be_remote_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match="renderer_of"):
        remote(OwnRenderers)
    with pytest.raises(ConfigError, match="its context_tools change the context"):
        remote(functools.partial(envsdk.make, "envsdk/Calculator-v1", context_tools=["fold"]))
    env = remote(FilteredHistory)
    with pytest.raises(ValueError, match=r"function as history=.*'fresh' or 'full'"):
        envsdk.rollout(env, "null", seed=0)
    env = remote(Rows)
    env.reset(seed=0)
    with pytest.raises(EpisodeError, match="run on a server"):
        env.fork()


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_remote, "PROTOCOL", 99)
    with pytest.raises(ConfigError, match="Install the same version on both sides"):
        remote(Rows)


def test_a_call_that_is_sent_again_is_not_run_again():
    host = HostedEnv(functools.partial(envsdk.make, "envsdk/GuessNumber-v1"))
    agents = [{"steps": 0, "sampled": 0, "tool_calls": 0, "limits": Limits(max_steps=5).model_dump()}]
    call = {"number": 1, "method": "start", "agents": agents, "seed": 0}
    first = host.call(json.dumps(call))
    assert host.call(json.dumps(call)) == first
    with pytest.raises(RemoteEnvError, match="expected 2"):
        host.call(json.dumps({**call, "number": 3}))


@pytest.mark.parametrize(
    "call",
    [
        "",
        "[]",
        "{}",
        '{"number": 1, "method": "close"}',
        '{"number": 1, "method": "start", "protocol": 2}',
        '{"number": 1, "method": "respond"}',
        '{"number": 1, "method": "start", "env": 7}',
        '{"number": 1, "method": "__init__", "env": -1}',
        '{"number": "1", "method": "start"}',
        "[" * 100_000,
    ],
)
def test_a_malformed_call_is_a_typed_error(call: str):
    with pytest.raises(RemoteEnvError):
        HostedEnv(Rows).call(call)


def lied_to(answer: Any, *, at: str = "respond") -> RemoteEnv:
    """An environment whose server answers the calls of a method with something else."""

    class Lying(NearSession):
        async def exchange(self, message: Mapping[str, Any]) -> Observed:
            honest = await super().exchange(message)
            return Observed(observation={"answer": answer}) if at in self.seen[-1] else honest

    SERVED["http://lies"] = Rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_remote, "Session", Lying)
        return RemoteEnv("http://lies")


@pytest.mark.parametrize(
    "answer",
    [
        None,
        5,
        "",
        "{}",
        "[" * 100_000,
        '{"turn":' * 1000,
        '{"task": ' + "[" * 100_000,
        '{"task": ' + "1" * 5000 + "}",
        '{"turn": {"messages": [7]}}',
        '{"turn": {"messages": [-1]}}',
        '{"turn": {"messages": [{"role": "nobody"}]}}',
        '{"turn": {"messages": [], "reward": {"a": NaN}}}',
        '{"turn": {"messages": [], "reward": {"a": 1e999}}}',
        '{"turn": {"messages": [], "metrics": {"a": 1e39}}}',
        '{"turn": {"messages": [], "edit": [-1]}}',
        '{"turn": {"messages": [], "mask": [[[1, 0]]]}}',
        '{"turn": {"messages": [], "opening": ["a", "none", 5]}}',
        '{"turn": {"messages": [], "terminated": true, "truncated": true}}',
        '{"turn": {"messages": [], "tools": [{"a": 1}]}}',
        '{"turn": {"messages": [], "tools": [{"type": "function", "function": {"name": 5}}]}}',
        '{"turn": {"messages": [], "context_rewards": {"none": 1.0}}}',
        '{"turn": {"messages": ["a"]}}',
        '{"handoffs": []}',
        '{"handoffs": [{"env": 0, "role": "a", "full_history": false, "adds_reward": true, "timeout_s": null,'
        ' "limits": {}, "history": null, "tools": []}]}',
        '{"handoffs": [{"env": 1, "role": "a", "full_history": false, "adds_reward": true, "timeout_s": -1,'
        ' "limits": {"max_steps": -1}, "history": "no such policy", "tools": []}]}',
        '{"reply": 5}',
        '{"reply": {"role": "nobody"}}',
    ],
)
def test_an_answer_that_is_not_valid_is_a_typed_error(answer: Any):
    for method in ("start", "respond", "null_reply"):
        with pytest.raises(EnvsdkError):
            envsdk.rollout(lied_to(answer, at=method), "null", seed=0)


@pytest.mark.parametrize(
    "name", ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "StopIteration", "ExceptionGroup", "open", "__doc__"]
)
def test_an_exception_that_would_end_more_than_the_episode_is_a_runtime_error(name: str):
    with pytest.raises(RuntimeError, match=f"{name}: of the author"):
        envsdk.rollout(lied_to(json.dumps({"error": [name, "of the author"]})), "null", seed=0)


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "5",
        "[]",
        "{}",
        b"\xff",
        "[" * 100_000,
        '{"data": []}',
        '{"data": {"observation": 5}}',
        '{"type": "error", "data": {"message": 5}}',
        '{"type": "error", "data": {"code": "OTHER"}}',
    ],
)
def test_a_frame_that_is_not_an_answer_is_a_typed_error(frame: Any):
    SERVED["http://near"] = Rows
    with pytest.raises(RemoteEnvError):
        Session._observed(cast("Any", NearSession("http://near")), frame)


def test_json_that_takes_too_much_memory_is_not_parsed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ENVSDK_MAX_RECORD_MIB", "1")
    with pytest.raises(RemoteEnvError, match="memory"):
        Session._observed(cast("Any", NearSession("http://near")), '{"data": {"observation": {"a": [' + "[]," * 2**20)


@pytest.mark.parametrize(
    ("page", "error", "message"),
    [
        ({"protocol": 2, "envsdk": "9.0"}, ConfigError, "same version"),
        ({"protocol": "x"}, RemoteEnvError, "cannot be read"),
        ([], RemoteEnvError, "cannot be read"),
        ({"n_rows": 2**80}, RemoteEnvError, "n_rows"),
        ({"limits": {"max_steps": -1}}, RemoteEnvError, "max_steps"),
    ],
)
def test_a_description_that_is_not_valid_is_a_typed_error(
    page: Any, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
):
    honest = json.loads(describe(Rows()).model_dump_json())
    given = page if page == [] or "envsdk" in page else {**honest, **page}
    monkeypatch.setattr(NearSession, "get", lambda *_: json.dumps(given).encode())
    with pytest.raises(error, match=message):
        RemoteEnv("http://near")
