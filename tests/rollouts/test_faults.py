"""Servers and environments that misbehave at random, all at the same time: every episode is accounted for."""

import asyncio
import gc
import random
import threading
import time
import warnings
from collections import Counter
from typing import Any

import pytest
from model_servers import Fault, ModelServer

from envsdk import Env, Message, Trajectory, Turn, errors
from envsdk.policies import VLLM
from envsdk.policies import _client as client
from envsdk.rollouts import Rollouts
from envsdk.rollouts import _player as player

WAYS = ("fine", "raises in start", "raises in respond", "hangs in start", "hangs in respond", "hangs in a thread")


def way_of(seed: int | None) -> str:
    """What goes wrong in the environment of an episode: nothing in nine of ten."""
    rng = random.Random(seed)
    return rng.choice(WAYS[1:]) if rng.random() < 0.1 else "fine"


class Misbehaves(Env):
    """Two steps, unless something goes wrong."""

    async def start(self) -> Turn:
        self.said = 0
        await self.misbehave("start")
        return Turn("Go.", max_tokens=8)

    async def respond(self, reply: Message) -> Turn:
        await self.misbehave("respond")
        self.said += 1
        return Turn("More.", max_tokens=8) if self.said < 2 else Turn("Done.", reward=1.0, terminated=True)

    async def misbehave(self, method: str) -> None:
        way = way_of(self.episode.seed)
        if way == f"raises in {method}":
            raise RuntimeError(way)
        if way == f"hangs in {method}":
            await asyncio.sleep(1000)


class HangsInThread(Misbehaves):
    blocking = True

    def start(self) -> Turn:  # type: ignore[override]
        self.said = 0
        if way_of(self.episode.seed) == "hangs in a thread":
            time.sleep(3)
        return Turn("Go.", max_tokens=8)


class RandomFaults:
    """What the server does wrong: something in a share of its responses."""

    def __init__(self, share: float) -> None:
        self.rng, self.share = random.Random(0), share
        self.done = Counter[str]()

    def __bool__(self) -> bool:
        return self.rng.random() < self.share

    def popleft(self) -> Fault:
        def without(name: str) -> Any:
            def change(value: Any) -> Any:
                choice = value["choices"][0]
                if name == "ids":
                    choice["token_ids"] = choice["token_ids"][:-1]
                elif name == "logprobs":
                    choice["logprobs"] = None
                else:
                    choice["token_ids"] = [10**7 for _ in choice["token_ids"]]
                return value

            return change

        faults = {
            "429": Fault(429, headers={"Retry-After": "0"}),
            "500": Fault(500),
            "503": Fault(503, text=b"<html>"),
            "refuse": Fault(how="refuse"),
            "reset": Fault(how="reset"),
            "short": Fault(how="short"),
            "truncated": Fault(how="truncated"),
            "hang": Fault(how="hang"),
            "slow": Fault(how="slow"),
            "ids": Fault(change=without("ids")),
            "logprobs": Fault(change=without("logprobs")),
            "vocabulary": Fault(change=without("vocabulary")),
        }
        name = list(faults)[self.done.total() % len(faults)]  # each, also in few requests
        self.done[name] += 1
        return faults[name]


@pytest.mark.parametrize(
    ("seeds", "group_size"), [(40, 2), pytest.param(500, 4, marks=pytest.mark.full, id="2,000 episodes")]
)
@pytest.mark.parametrize("kind", [Misbehaves, pytest.param(HangsInThread, marks=pytest.mark.full)])
# httpcore loses a connection that is cancelled at its deadline while it opens; the garbage collector closes it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_episode_is_accounted_for(
    kind: type[Env], seeds: int, group_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_FIRST_WAIT_S", 0.005)
    monkeypatch.setattr(client, "_MAX_WAIT_S", 0.02)
    monkeypatch.setattr(player, "_GRACE_S", 1.0)
    threads = set(threading.enumerate())

    async def run() -> tuple[Rollouts, list[Trajectory], set[str]]:
        policy = VLLM(server.url, timeout_s=0.5, max_retries=1, seed=1, check=False)
        rollouts = Rollouts(
            kind,
            policy,
            seeds=range(seeds),
            group_size=group_size,
            env_options={"tokenizer": "embedded"},
            max_concurrency=64,
            method_timeout_s=1.5,
            max_retries=1,
            retry_wait_s=0.01,
        )
        trajectories = await rollouts.arun()
        await policy.aclose()
        await asyncio.sleep(0)
        left = {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}
        return rollouts, trajectories, left

    with ModelServer(stop_logit=9.0) as server:
        server.faults = faults = RandomFaults(0.12 if seeds > 40 else 0.4)  # type: ignore[assignment]
        rollouts, trajectories, left = asyncio.run(run())
    total = seeds * group_size
    assert [one.id for one in trajectories] == [job.id for job in rollouts._jobs]
    statistics = rollouts.statistics
    assert statistics.episodes == total == len(trajectories)
    failed = [one for one in trajectories if one.status == "error"]
    assert statistics.failures == Counter(one.error_kind for one in failed)
    assert sum(statistics.tally.errors.values()) == len(failed)
    assert statistics.tally.scored + len(failed) == total
    assert len(faults.done) == 12  # everything has gone wrong
    for one in trajectories:
        way = way_of(one.seed)
        is_of_env = way != "fine" and (way == "hangs in a thread") == (kind is HangsInThread or False)
        if one.status == "error":
            assert one.samples() == []
            assert one.error_kind is not None
            assert one.error
        else:
            assert one.reward == 1.0
            for sample in one.samples():
                sample.validate()
        if kind is Misbehaves and way not in ("fine", "hangs in a thread"):
            assert one.error_kind in ("environment", "policy", "infrastructure")
            assert one.status == "error"
        if is_of_env and kind is HangsInThread:
            assert one.error_kind == "environment"
            assert (one.error or "").startswith("DeadlineExceeded: start() of HangsInThread")
        if one.error_kind == "policy":
            assert (one.error or "").startswith("ServerReplyError")
        if one.error_kind == "infrastructure":
            assert (one.error or "").startswith("PolicyUnavailable")
    assert statistics.failures["environment"]
    assert left == set()
    deadline = time.monotonic() + 600
    while set(threading.enumerate()) - threads and time.monotonic() < deadline:
        time.sleep(0.05)
    assert set(threading.enumerate()) - threads == set()


def test_a_server_that_cannot_be_reached_at_the_beginning_ends_the_run() -> None:
    with ModelServer() as server:
        url = server.url
    rollouts = Rollouts(Misbehaves, VLLM(url), seeds=range(9), env_options={"tokenizer": "embedded"})
    with pytest.raises(errors.RunFailed, match=f"no reply was sampled.*no connection to {url} can be opened"):
        rollouts.run()
    assert not rollouts.statistics.play.retries


class RepliesLater(Env):
    """Needs the event loop in each turn."""

    def start(self) -> Turn:
        return Turn("Go.")

    async def respond(self, reply: Message) -> Turn:
        await asyncio.sleep(0.001)
        return Turn("More.", terminated=len(self.messages()) > 40)


@pytest.mark.full
def test_a_method_that_a_deadline_cancels_before_it_ran_leaves_no_coroutine() -> None:
    options = {"renderer": "qwen3", "tokenizer": "embedded"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(6):  # the episodes are ended at many different places
            Rollouts(
                RepliesLater,
                "null",
                seeds=range(40),
                group_size=1,
                env_options=options,
                episode_timeout_s=0.01 + 0.008 * step,
                max_retries=0,
                max_concurrency=40,
            ).run()
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_a_server_that_is_lost_is_reported_at_once_and_its_requests_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "_FIRST_WAIT_S", 0.01)
    asyncio.run(_lose_a_server(caplog))


async def _lose_a_server(caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"seeds": [0], "env_options": {"tokenizer": "embedded"}, "max_retries": 0}
    with ModelServer(stop_logit=9.0) as server:
        policy = VLLM(server.url, max_retries=2, check=False)
        await Rollouts(Misbehaves, policy, **options).arun()
    rollouts = Rollouts(Misbehaves, policy, **options)
    (trajectory,) = await rollouts.arun()
    assert trajectory.error_kind == "infrastructure"
    assert rollouts.statistics.play.request_retries["connection"] == 2
    (lost,) = [text for text in caplog.messages if text.startswith(f"no connection to {server.url} can be opened")]
    assert lost.endswith("Its requests are sent again, up to 2 times")
    with ModelServer(stop_logit=9.0, port=int(server.url.rpartition(":")[2])):
        again = Rollouts(Misbehaves, policy, **options)
        assert [one.error for one in await again.arun()] == [None]
    assert caplog.messages[-1] == f"{server.url} answers again"
    assert not again.statistics.play.request_retries
    await policy.aclose()
