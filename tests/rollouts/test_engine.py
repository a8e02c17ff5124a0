"""The engine: many episodes, each with deadlines, of which none holds up or ends the others."""

import asyncio
import gc
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from toy_policies import in_any_vocabulary

import envsdk
from envsdk import Action, Env, Handoff, HandoffResult, Message, ToolCall, ToolEnv, Trajectory, Turn, errors, tool
from envsdk.rollouts import Rollouts, rollout_many
from envsdk.rollouts import _player as player


class Counts(Env):
    """Three steps; it may raise or hang in any method, as its subclasses tell."""

    def start(self) -> Turn | Handoff:
        self.said = 0
        return Turn("Go.")

    def respond(self, reply: Message) -> Turn:
        self.said += 1
        return Turn("More.", reward=0.0) if self.said < 3 else Turn("Done.", reward=1.0, terminated=True)


@in_any_vocabulary
async def answers(prompt: np.ndarray, **_: object) -> Action:
    await asyncio.sleep(0)
    return Action([5], [-0.5])


def contents(trajectories: list[Trajectory]) -> list[bytes]:
    return [trajectory.to_json() for trajectory in trajectories]


@pytest.mark.parametrize("env", ["envsdk/Delegate-v1", "envsdk/KuhnPoker-v1"])
def test_the_number_of_concurrent_episodes_does_not_change_them(env: str) -> None:
    for policy in ("reference", "random"):
        one = Rollouts(env, policy, seeds=range(2), group_size=3, max_concurrency=1).run()
        many = Rollouts(env, policy, seeds=range(2), group_size=3, max_concurrency=256).run()
        assert contents(one) == contents(many)
        assert [trajectory.id for trajectory in one[:3]] == [f"{env}/0", f"{env}/0#1", f"{env}/0#2"]
        single = envsdk.rollout(env, policy, seed=1, options={"group_id": f"{env}/1"})
        assert single.to_json() == one[3].to_json()


def test_tasks_are_the_first_of_the_environment_or_given() -> None:
    options = {"tasks": [{"secret": n} for n in (3, 4, 5)]}
    first = Rollouts("envsdk/GuessNumber-v1", tasks=2, group_size=2, env_options=options).run()
    assert [(one.group_id, one.task) for one in first[::2]] == [
        ("envsdk/GuessNumber-v1/task-0", {"secret": 3}),
        ("envsdk/GuessNumber-v1/task-1", {"secret": 4}),
    ]
    given = Rollouts("envsdk/GuessNumber-v1", tasks=[{"secret": 9}], group_size=1).run()
    assert given[0].task == {"secret": 9}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either seeds"),
        ({"seeds": [0], "tasks": 1}, "either seeds"),
        ({"seeds": 0}, "seeds is 0"),
        ({"seeds": ["a"]}, "seed is 'a'"),
        ({"tasks": 3}, r"seeds=range\(3\)"),
        ({"tasks": "abc"}, "a sequence of tasks"),
        ({"seeds": [0], "group_size": 0}, "group_size is 0"),
        ({"seeds": [0], "max_concurrency": 1.5}, "max_concurrency is 1.5"),
        ({"seeds": [0], "policy_timeout_s": 0}, "policy_timeout_s is 0"),
        ({"seeds": [0], "on_stale": "mark"}, "'drop' or 'keep'"),
        ({"seeds": [0], "max_retries": -1}, "max_retries is -1"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        Rollouts(Counts, answers, **arguments)


def test_an_environment_that_is_made_already_is_refused_with_what_to_pass() -> None:
    for play in (Rollouts, rollout_many):
        with pytest.raises(errors.ConfigError, match=r"functools.partial\(MyEnv, history='strip'\)"):
            play(Counts(), answers, seeds=[0])  # type: ignore[arg-type]
        play(partial(Counts, history="strip"), answers, seeds=[0])


def test_groups_come_whole_and_say_so() -> None:
    class Fails(Counts):
        def respond(self, reply: Message) -> Turn:
            if self.episode_id.endswith("/1#2"):
                raise RuntimeError("no")
            return super().respond(reply)

    async def collect() -> list[Any]:
        return [group async for group in Rollouts(Fails, answers, seeds=range(3), group_size=4).groups()]

    groups = {group.id: group for group in asyncio.run(collect())}
    assert [group.is_whole for _, group in sorted(groups.items())] == [True, False, True]
    assert [one.id for one in groups["Fails/1"].trajectories] == ["Fails/1", "Fails/1#1", "Fails/1#2", "Fails/1#3"]


# Errors.


class Breaks(Counts):
    """Fails in the method and the way that its options name."""

    where = ""
    hangs = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.begun = time.monotonic()
        if self.where == "__init__" and type(self).made:
            self.fail_now()
        type(self).made += 1

    made = 0

    def fail_now(self) -> None:
        if not self.hangs:
            raise RuntimeError(f"{self.where} is broken")
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            time.sleep(0.01)

    def start(self) -> Turn | Handoff:
        if self.where == "start":
            self.fail_now()
        return super().start()

    def respond(self, reply: Message) -> Turn:
        if self.where == "respond":
            self.fail_now()
        return super().respond(reply)

    def close(self) -> None:
        if self.where == "close":
            self.fail_now()
        super().close()


class BreaksAsync(Breaks):
    """The same with `async def`."""

    async def start(self) -> Turn | Handoff:  # type: ignore[override]
        await self.hang_or_not("start")
        return super().start()

    async def respond(self, reply: Message) -> Turn:  # type: ignore[override]
        await self.hang_or_not("respond")
        return super().respond(reply)

    async def hang_or_not(self, where: str) -> None:
        if self.hangs and self.where == where:
            await asyncio.sleep(1000)


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("blocking", [None, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("where", ["start", "respond"])
@pytest.mark.parametrize("base", [Breaks, BreaksAsync])
def test_a_method_that_raises_or_hangs_costs_its_own_episode(
    base: type[Env], where: str, blocking: bool, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type("Kind", (base,), {"where": where, "blocking": blocking, "hangs": hangs, "made": 0})
    before = threading.active_count()
    rollouts = Rollouts(kind, answers, seeds=range(3), group_size=1, method_timeout_s=0.2 if hangs else 60)
    trajectories = rollouts.run()
    assert [one.status for one in trajectories] == ["error"] * 3
    assert {one.error_kind for one in trajectories} == {"environment"}
    expected = "DeadlineExceeded" if hangs else "RuntimeError"
    assert all((one.error or "").startswith(expected) for one in trajectories)
    assert [one.reward for one in trajectories] == [0.0] * 3  # and nobody trains on it:
    assert [one.samples() for one in trajectories] == [[], [], []]
    assert rollouts.statistics.failures == {"environment": 3}
    assert rollouts.statistics.tally.errors == {expected: 3}
    deadline = time.monotonic() + 600
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.02)  # threads that hung end once their method returns
    assert threading.active_count() <= before


@pytest.mark.parametrize("blocking", [None, False, True])
def test_an_environment_that_cannot_be_made_again_fails_only_its_episodes(blocking: bool) -> None:
    kind = type("Kind", (Breaks,), {"where": "__init__", "made": 0, "blocking": blocking})
    rollouts = Rollouts(kind, answers, seeds=range(4), group_size=1, max_concurrency=2)
    trajectories = rollouts.run()
    assert {one.status for one in trajectories} == {"terminated", "error"}
    assert len(trajectories) == 4
    failed = [one for one in trajectories if one.status == "error"]
    assert {Trajectory.from_json(one.to_json()).error_kind for one in failed} == {"environment"}
    assert {one.group_id for one in trajectories} == {f"Kind/{seed}" for seed in range(4)}


@pytest.mark.parametrize("hangs", [False, True])
def test_a_close_that_fails_or_hangs_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture, hangs: bool) -> None:
    kind = type("Kind", (Breaks,), {"where": "close", "made": 0, "hangs": hangs})
    trajectories = Rollouts(kind, answers, seeds=range(3), group_size=1, method_timeout_s=0.3 if hangs else 60).run()
    assert [one.status for one in trajectories] == ["terminated"] * 3
    assert "could not be closed" in caplog.text


class WaitsForOthers(Counts):
    """In the episode of seed 1, code of the author blocks its thread until the other episodes have ended."""

    where = ""
    others_ended = threading.Event()

    def block(self, where: str) -> None:
        if where == self.where and self.episode.seed == 1:
            assert self.others_ended.wait(60)

    def start(self) -> Turn | Handoff:
        self.block("start")
        return Handoff(Asks(self)) if self.where in ("resume", "sub-agent") else super().start()

    def resume(self, result: HandoffResult) -> Turn | Handoff:
        self.block("resume")
        return Counts.start(self)

    def respond(self, reply: Message) -> Turn:
        self.block("respond")
        return super().respond(reply)

    def reference_reply(self) -> str:
        self.block("reference_reply")
        return "Go."


class Asks(Env):
    """The sub-agent of `WaitsForOthers`."""

    def __init__(self, parent: WaitsForOthers) -> None:
        super().__init__()
        self.parent = parent

    def start(self) -> Turn:
        self.parent.block("sub-agent")
        return Turn("Go.")

    def respond(self, reply: Message) -> Turn:
        return Turn("Done.", terminated=True)

    def reference_reply(self) -> str:
        return "Go."


class WaitsForOthersAsync(WaitsForOthers):
    """The same, where an `async def` blocks its event loop."""

    async def start(self) -> Turn | Handoff:  # type: ignore[override]
        return super().start()

    async def respond(self, reply: Message) -> Turn:  # type: ignore[override]
        return super().respond(reply)


class WaitsInTool(ToolEnv):
    where = ""
    others_ended = threading.Event()

    def start(self) -> Turn:
        return Turn("Go.")

    @tool
    def look(self) -> str:
        """Look."""
        if self.episode.seed == 1:
            assert self.others_ended.wait(60)
        return "seen"

    @tool
    async def look_async(self) -> str:
        """Look, and block the event loop."""
        return self.look.function()

    def finish(self, reply: Message) -> Turn:
        return Turn("Done.", reward=1.0, terminated=True)

    def reference_reply(self) -> Message:
        name = "look_async" if self.where == "an async tool" else "look"
        is_first = self.messages()[-1].role == "user"
        return Message(
            role="assistant", content="Hm.", tool_calls=[ToolCall(name=name, arguments={})] if is_first else []
        )


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        *((WaitsForOthers, where) for where in ("respond", "sub-agent", "reference_reply")),
        (WaitsForOthersAsync, "start"),
        (WaitsInTool, "an async tool"),
        *(pytest.param(WaitsForOthers, where, marks=pytest.mark.full) for where in ("start", "resume")),
        *(pytest.param(WaitsForOthersAsync, where, marks=pytest.mark.full) for where in ("respond", "sub-agent")),
        pytest.param(WaitsInTool, "a tool", marks=pytest.mark.full),
    ],
)
def test_code_of_an_author_that_blocks_holds_no_other_episode_up(
    kind: type[Env], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int | None] = []
    others_ended = threading.Event()

    def note(trajectory: Trajectory) -> None:
        ended.append(trajectory.seed)
        if len(ended) == 5:
            others_ended.set()

    kind = type("Kind", (kind,), {"where": where, "others_ended": others_ended})
    options = {"method_timeout_s": None, "group_size": 1, "on_trajectory": note}
    trajectories = Rollouts(kind, "reference", seeds=range(6), **options).run()  # type: ignore[arg-type]
    assert [one.error for one in trajectories] == [None] * 6
    assert ended[-1] == 1


def test_more_methods_that_wait_than_may_compute_hold_no_other_one_up() -> None:
    everyone_waits = threading.Barrier(6)

    class Waits(Counts):
        def start(self) -> Turn | Handoff:
            everyone_waits.wait(60)
            return super().start()

    rollouts = Rollouts(Waits, answers, seeds=range(6), group_size=1, max_threads=2, method_timeout_s=None)
    assert [one.error for one in rollouts.run()] == [None] * 6


def test_an_async_method_that_blocks_its_event_loop_for_ever_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player, "_GRACE_S", 0.2)
    release = threading.Event()

    class Blocks(BreaksAsync):
        async def respond(self, reply: Message) -> Turn:
            if self.episode.seed == 1:
                release.wait(60)
            return await super().respond(reply)

    rollouts = Rollouts(Blocks, answers, seeds=range(3), group_size=1, method_timeout_s=0.3)
    trajectories = rollouts.run()
    release.set()
    assert [one.status for one in trajectories] == ["terminated", "error", "terminated"]
    assert "respond() of Blocks took longer than 0.3 s" in (trajectories[1].error or "")
    assert rollouts.statistics.play.abandoned == 1


def test_a_parent_goes_on_after_a_sub_agent_that_never_returns() -> None:
    release = threading.Event()

    class Child(Env):
        def start(self) -> Turn:
            release.wait(60)
            return Turn("Go.")

    class Parent(Counts):
        def start(self) -> Turn | Handoff:
            return Handoff(Child())

        def resume(self, result: HandoffResult) -> Turn | Handoff:
            assert "start() of Child took longer than 0.3 s" in (result.error or "")
            return Counts.start(self)

    (trajectory,) = Rollouts(Parent, answers, seeds=[0], group_size=1, method_timeout_s=0.3).run()
    release.set()
    assert (trajectory.status, trajectory.error) == ("terminated", None)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_code_of_an_environment_runs_in_one_thread_with_one_event_loop(asynchronous: bool) -> None:
    places = set[int]()

    class Base(Counts):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.note()

        def note(self) -> None:
            places.add(threading.get_ident())

        def start(self) -> Turn | Handoff:
            self.note()
            return super().start()

        def respond(self, reply: Message) -> Turn:
            self.note()
            return super().respond(reply)

        def reference_reply(self) -> str:
            self.note()
            return "Go."

        def close(self) -> None:
            self.note()
            super().close()

    class WithLoop(Base):
        async def start(self) -> Turn | Handoff:  # type: ignore[override]
            self.done = asyncio.get_running_loop().create_future()
            self.background = asyncio.create_task(self.work())
            return Base.start(self)

        async def work(self) -> None:
            self.done.set_result(None)

        async def respond(self, reply: Message) -> Turn:  # type: ignore[override]
            await self.done
            return Base.respond(self, reply)

    kind = WithLoop if asynchronous else Base
    rollouts = Rollouts(kind, "reference", seeds=range(4), group_size=1, max_concurrency=1)
    assert [one.error for one in rollouts.run()] == [None] * 4
    assert len(places) == 1
    assert threading.get_ident() not in places


def test_an_environment_that_never_blocks_may_run_in_the_event_loop_of_the_rollout() -> None:
    places = set[int]()

    class Shares(Counts):
        blocking = False

        async def respond(self, reply: Message) -> Turn:  # type: ignore[override]
            places.add(threading.get_ident())
            return super().respond(reply)

    assert [one.error for one in Rollouts(Shares, answers, seeds=range(3), group_size=1).run()] == [None] * 3
    assert places == {threading.get_ident()}


@pytest.mark.full
def test_a_coroutine_that_ignores_that_it_is_cancelled_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player, "_GRACE_S", 0.2)
    release = threading.Event()

    class Ignores(BreaksAsync):
        async def respond(self, reply: Message) -> Turn:
            while self.episode_id == "Ignores/1" and not release.is_set():
                try:
                    await asyncio.sleep(0.05)
                except asyncio.CancelledError:
                    continue
            return await super().respond(reply)

    async def run() -> list[Trajectory]:
        rollouts = Rollouts(Ignores, answers, seeds=range(3), group_size=1, method_timeout_s=0.2)
        trajectories = await rollouts.arun()
        assert rollouts.statistics.play.abandoned == 1
        release.set()
        await asyncio.sleep(0.2)
        return trajectories

    trajectories = asyncio.run(run())
    assert [one.status for one in trajectories] == ["terminated", "error", "terminated"]


def test_an_episode_has_a_deadline() -> None:
    @in_any_vocabulary
    async def slow(prompt: np.ndarray, **_: object) -> Action:
        await asyncio.sleep(0.15)
        return Action([5], [-0.5])

    rollouts = Rollouts(Counts, slow, seeds=range(2), group_size=1, episode_timeout_s=0.25)
    trajectories = rollouts.run()
    assert [one.error_kind for one in trajectories] == ["environment"] * 2
    assert all("the episode took longer than 0.25 s" in (one.error or "") for one in trajectories)
    assert [len(one.steps) for one in trajectories] == [1, 1]


def test_sys_exit_in_a_method_ends_its_episode_and_not_the_program() -> None:
    class Exits(Counts):
        def respond(self, reply: Message) -> Turn:
            raise SystemExit(3)

    trajectory = Rollouts(Exits, answers, seeds=[0], group_size=1).run()[0]
    assert "called sys.exit(3)" in (trajectory.error or "")


def test_a_policy_that_fails_for_a_while_begins_the_episode_again() -> None:
    calls = Counter[str]()

    @in_any_vocabulary
    async def flaky(prompt: np.ndarray, *, episode_id: str, **_: object) -> Action:
        calls[episode_id] += 1
        if calls[episode_id] == 2:
            raise errors.PolicyUnavailable("the server is gone")
        return Action([5], [-0.5])

    rollouts = Rollouts(Counts, flaky, seeds=range(3), group_size=2, retry_wait_s=0.01)
    assert {one.status for one in rollouts.run()} == {"terminated"}
    assert rollouts.statistics.play.retries == {"PolicyUnavailable": 6}
    assert set(calls.values()) == {5}  # one step of the first attempt, its error, and three steps


@pytest.mark.parametrize(
    ("error", "kind", "attempts"),
    [
        (errors.PolicyUnavailable("gone"), "infrastructure", 3),
        (ConnectionError("gone"), "infrastructure", 3),
        (errors.ServerReplyError("no ids"), "policy", 1),
        (ValueError("a bug"), "policy", 1),
    ],
)
def test_errors_of_a_policy_have_a_kind(error: Exception, kind: str, attempts: int) -> None:
    calls = []

    @in_any_vocabulary
    async def policy(prompt: np.ndarray, **_: object) -> Action:
        calls.append(1)
        raise error

    rollouts = Rollouts(Counts, policy, seeds=[0], group_size=1, retry_wait_s=0.01)
    (trajectory,) = rollouts.run()
    assert (trajectory.status, trajectory.error_kind, len(calls)) == ("error", kind, attempts)
    assert rollouts.statistics.failures == {kind: 1}


def test_an_illegal_action_is_an_error_of_the_policy() -> None:
    @in_any_vocabulary
    def policy(prompt: np.ndarray, **_: object) -> Action:
        return Action([10**9])

    assert Rollouts(Counts, policy, seeds=[0], group_size=1).run()[0].error_kind == "policy"


def test_a_policy_that_hangs_is_an_infrastructure_error() -> None:
    @in_any_vocabulary
    async def hangs(prompt: np.ndarray, *, episode_id: str, **_: object) -> Action:
        if episode_id == "Counts/1":
            await asyncio.sleep(1000)
        return Action([5], [-0.5])

    options: dict[str, Any] = {"policy_timeout_s": 0.1, "max_retries": 1, "retry_wait_s": 0.01}
    rollouts = Rollouts(Counts, hangs, seeds=range(3), group_size=1, **options)
    trajectories = rollouts.run()
    assert [one.error_kind for one in trajectories] == [None, "infrastructure", None]
    assert rollouts.statistics.play.retries == {"DeadlineExceeded": 1}


def test_a_policy_of_another_vocabulary_ends_the_run(caplog: pytest.LogCaptureFixture) -> None:
    async def policy(prompt: np.ndarray, **_: object) -> Action:
        return Action([5], [-0.5])

    with pytest.raises(errors.TokenizerMismatch):
        Rollouts(Counts, policy, seeds=range(3)).run()
    gc.collect()
    assert "never retrieved" not in caplog.text  # the other episodes fail in the same way


def test_fail_fast_ends_the_run_with_the_first_traceback(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(Counts):
        def respond(self, reply: Message) -> Turn:
            raise RuntimeError(f"the bug of {self.episode_id}")

    rollouts = Rollouts(Fails, answers, seeds=range(50), group_size=1, fail_fast=3, max_concurrency=1)
    with caplog.at_level(logging.WARNING), pytest.raises(errors.RunFailed, match="the bug of Fails/0") as raised:
        rollouts.run()
    assert "in respond" in str(raised.value)
    assert rollouts.statistics.episodes == 3
    assert [bool(record.exc_info) for record in caplog.records] == [True, False, False]


def test_errors_that_are_not_in_a_row_do_not_end_the_run() -> None:
    class Fails(Counts):
        def respond(self, reply: Message) -> Turn:
            if (self.episode.seed or 0) % 2:
                raise RuntimeError("odd")
            return super().respond(reply)

    rollouts = Rollouts(Fails, answers, seeds=range(20), group_size=1, fail_fast=2, max_concurrency=1)
    assert Counter(one.status for one in rollouts.run()) == {"terminated": 10, "error": 10}


# Leaving.


def test_a_run_that_is_left_early_leaves_no_task_and_no_thread() -> None:
    class Blocks(Counts):
        blocking = True

    before = threading.active_count()

    async def leave() -> int:
        async with Rollouts(Blocks, answers, seeds=range(100), group_size=4, max_concurrency=20) as rollouts:
            async for _ in rollouts:
                break
        return len(asyncio.all_tasks())

    assert asyncio.run(leave()) == 1
    deadline = time.monotonic() + 600
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threading.active_count() <= before


def test_an_episode_that_is_cancelled_again_while_its_method_ends_is_awaited() -> None:
    ended: list[str] = []

    class EndsSlowly(Counts):
        async def respond(self, reply: Message) -> Turn:  # type: ignore[override]
            began.set()
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.1)
                ended.append(self.episode_id)
            raise AssertionError

    began = threading.Event()

    async def leave() -> set[str]:
        running = asyncio.create_task(Rollouts(EndsSlowly, answers, seeds=range(2), group_size=1).arun())
        await asyncio.to_thread(began.wait, 60)
        running.cancel()
        await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return {task.get_name() for task in asyncio.all_tasks() if "_Play" in repr(task)}

    assert asyncio.run(leave()) == set()
    assert ended


def test_an_object_runs_once() -> None:
    rollouts = Rollouts(Counts, answers, seeds=range(2), group_size=1)
    rollouts.run()
    with pytest.raises(errors.ConfigError, match="begun already"):
        rollouts.run()


def test_a_callback_that_raises_ends_the_run_with_its_error() -> None:
    def fails(trajectory: Trajectory) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Rollouts(Counts, answers, seeds=range(20), on_trajectory=fails).run()


def test_a_slow_reader_holds_the_run_up() -> None:
    async def read() -> None:
        rollouts = Rollouts(Counts, answers, seeds=range(100), group_size=1, max_concurrency=4)
        async for _ in rollouts:
            await asyncio.sleep(0.02)
            break
        assert rollouts.statistics.episodes <= 12
        await rollouts.aclose()

    asyncio.run(read())


# Weights.


class Server:
    """A policy that samples two tokens and then waits, until it is aborted or told to go on."""

    tokenizer = "any"

    def __init__(self) -> None:
        self.aborted, self.go_on = asyncio.Event(), asyncio.Event()
        self.running = 0
        self.versions: list[int] = []

    async def __call__(self, prompt: np.ndarray, **_: object) -> Action:
        self.running += 1
        try:
            waiting = [asyncio.create_task(event.wait()) for event in (self.aborted, self.go_on)]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            return Action([5, 5], [-0.5, -0.5], "stop" if self.go_on.is_set() else "abort")
        finally:
            self.running -= 1

    async def abort(self) -> None:
        self.aborted.set()
        await asyncio.sleep(0.01)
        self.aborted.clear()

    def use_weights(self, version: int) -> None:
        self.versions.append(version)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(600):
        while not holds():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("is_by_role", [False, True])
def test_a_pause_aborts_replies_that_continue_with_the_new_weights(is_by_role: bool) -> None:
    async def run() -> list[Trajectory]:
        server = Server()
        policy = {"main": server} if is_by_role else server
        rollouts = Rollouts(Counts, policy, seeds=range(4), group_size=2)
        rollouts.resume(policy_version=1)
        playing = asyncio.create_task(rollouts.arun())
        await until(lambda: server.running == 8)
        await rollouts.pause()
        assert server.running == 0
        await asyncio.sleep(0.05)
        assert server.running == 0
        server.go_on.set()
        rollouts.resume(policy_version=2)
        trajectories = await playing
        assert server.versions == [1, 2]
        return trajectories

    trajectories = asyncio.run(run())
    assert {one.status for one in trajectories} == {"terminated"}
    for one in trajectories:
        versions = [[part.policy_version for part in step.parts] for step in one.steps]
        assert versions == [[1, 2], [2], [2]]
        assert [step.stop - step.action_start for step in one.steps] == [4, 2, 2]


def test_a_pause_without_abort_waits_for_the_replies() -> None:
    async def run() -> list[Trajectory]:
        server = Server()
        rollouts = Rollouts(Counts, server, seeds=range(2), group_size=1)
        playing = asyncio.create_task(rollouts.arun())
        await until(lambda: server.running == 2)
        pausing = asyncio.create_task(rollouts.pause(abort=False))
        await asyncio.sleep(0.05)
        assert server.running == 2
        server.go_on.set()
        await pausing
        assert server.running == 0
        rollouts.resume()
        return await playing

    assert {len(step.parts) for one in asyncio.run(run()) for step in one.steps} == {1}


@pytest.mark.parametrize("on_stale", ["drop", "keep"])
def test_stale_episodes_are_dropped_or_kept(on_stale: Any) -> None:
    async def run() -> tuple[Rollouts, list[Trajectory]]:
        new = asyncio.Event()

        @in_any_vocabulary
        async def policy(prompt: np.ndarray, *, episode_id: str, **_: object) -> Action:
            if episode_id == "Counts/0":
                await new.wait()
            return Action([5], [-0.5], policy_version=1)

        rollouts = Rollouts(Counts, policy, seeds=range(2), group_size=1, max_staleness=1, on_stale=on_stale)
        rollouts.resume(policy_version=1)
        playing = asyncio.create_task(rollouts.arun())
        await until(lambda: rollouts.statistics.episodes == 1)
        rollouts.resume(policy_version=3)
        new.set()
        return rollouts, await playing

    rollouts, trajectories = asyncio.run(run())
    assert rollouts.statistics.stale == 1
    assert [one.id for one in trajectories] == (["Counts/1"] if on_stale == "drop" else ["Counts/0", "Counts/1"])
    assert rollouts.is_stale(trajectories[0]) or on_stale == "drop"


# Statistics.


def test_rollout_many_runs_in_the_order_of_the_seeds() -> None:
    found = rollout_many(Counts, answers, seeds=[3, 1, 3])
    assert [one.id for one in found] == ["Counts/3", "Counts/1", "Counts/3#1"]
