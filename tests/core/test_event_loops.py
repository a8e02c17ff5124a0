"""Where `rollout`, `rollout_many` and `step` wait: one event loop for all calls, in a notebook as in a program."""

import asyncio
import contextlib
import contextvars
import gc
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest
from toy_policies import ANY_TOKENIZER, in_any_vocabulary

import envsdk
from envsdk import Action, Env, Handoff, Message, ToolEnv, Turn, errors, tool
from envsdk.authoring import _event_loops as event_loops
from envsdk.rollouts import rollout_many


class Says(Env):
    """Ends with the first reply."""

    def start(self) -> Any:
        return Turn("Go.")

    def respond(self, reply: Message) -> Any:
        return Turn(reward=1.0, terminated=True)


async def in_a_loop(function: Callable[[], Any]) -> Any:
    """Call a plain function where an event loop is running, as the cells of a notebook are."""
    return function()


def outside(function: Callable[[], Any]) -> Any:
    return function()


def inside(function: Callable[[], Any]) -> Any:
    return asyncio.run(in_a_loop(function))


EVERYWHERE = pytest.mark.parametrize("where", [outside, inside])


class Client:
    """Bound to the event loop of its first use, as clients of HTTP are."""

    tokenizer = ANY_TOKENIZER

    def __init__(self) -> None:
        self.loops: set[asyncio.AbstractEventLoop] = set()

    async def __call__(self, prompt: Any, **_: Any) -> Action:
        self.loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return Action([5])


@EVERYWHERE
def test_a_client_that_is_bound_to_its_loop_serves_all_rollouts(where: Callable[..., Any]) -> None:
    client = Client()

    def play() -> None:
        for seed in range(3):
            assert envsdk.rollout(Says(), client, seed=seed).reward == 1.0
        rollout_many(Says, client, seeds=range(3))

    where(play)
    assert len(client.loops) == 1


def test_an_environment_that_is_stepped_waits_in_the_loop_of_the_rollouts() -> None:
    seen = []

    class Waits(Says):
        async def respond(self, reply: Message) -> Turn:
            seen.append(asyncio.get_running_loop())
            return Turn(terminated=True)

    env = Waits()
    env.reset(seed=0)
    env.step([5])
    envsdk.rollout(env, "null", seed=0)
    env.close()
    envsdk.rollout(env, "null", seed=0)
    assert len(set(map(id, seen))) == 1


@EVERYWHERE
def test_what_an_environment_makes_is_used_in_the_thread_that_made_it(where: Callable[..., Any]) -> None:
    class Desk(Says):
        def start(self) -> Turn:
            self.connection = sqlite3.connect(":memory:")
            return Turn("Go.")

        def respond(self, reply: Message) -> Turn:
            (one,) = self.connection.execute("select 1").fetchone()
            self.connection.close()
            return Turn(reward=one, terminated=True)

    assert where(lambda: [envsdk.rollout(Desk(), "null", seed=seed).reward for seed in range(2)]) == [1.0, 1.0]
    assert [one.reward for one in where(lambda: rollout_many(Desk, "null", seeds=range(2)))] == [1.0, 1.0]


class Connected(Says):
    """Has a connection that its maker's thread alone may use."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.connection = sqlite3.connect(":memory:")

    def start(self) -> Turn:
        self.connection.execute("select 1")
        return Turn("Go.")

    def close(self) -> None:
        self.connection.close()
        super().close()


def test_where_no_loop_is_running_everything_stays_in_the_callers_thread() -> None:
    env = Connected()
    assert envsdk.rollout(env, "null", seed=0).reward == 1.0
    env.close()


def test_an_error_of_the_other_thread_names_the_way_to_stay_in_this_one() -> None:
    env = Connected()
    with pytest.raises(sqlite3.ProgrammingError) as caught:
        inside(lambda: envsdk.rollout(env, "null", seed=0))
    assert any("await envsdk.arollout" in note for note in caught.value.__notes__)
    assert asyncio.run(envsdk.arollout(env, "null", seed=0)).reward == 1.0
    env.close()


@EVERYWHERE
def test_a_tool_may_roll_out_another_environment(where: Callable[..., Any]) -> None:
    class Asks(ToolEnv):
        def start(self) -> Turn:
            return Turn("Go.")

        @tool
        def ask(self, depth: int) -> float:
            """Ask another one."""
            return envsdk.rollout(Nested(depth=depth), "reference", seed=0).reward if depth else 1.0

        def finish(self, reply: Message) -> Turn:
            return Turn(reward=float(self.messages()[-2].content), terminated=True)

    class Nested(Asks):
        def __init__(self, depth: int = 3) -> None:
            super().__init__()
            self.depth = depth

        def reference_reply(self) -> Message | str:
            if len(self.messages()) > 1:
                return "Done."
            call = {"name": "ask", "arguments": {"depth": self.depth - 1}}
            return Message(role="assistant", tool_calls=[call])

    assert where(lambda: envsdk.rollout(Nested(), "reference", seed=0).reward) == 1.0


@EVERYWHERE
def test_context_variables_of_the_caller_are_there_in_every_call(where: Callable[..., Any]) -> None:
    variable = contextvars.ContextVar("variable", default=0)
    seen = []

    @in_any_vocabulary
    def policy(prompt: Any, **_: Any) -> Action:
        seen.append(variable.get())
        variable.set(99)
        return Action([5])

    def play() -> None:
        for value in (1, 2):
            variable.set(value)
            envsdk.rollout(Says(), policy, seed=0)

    where(play)
    assert seen == [1, 2]


@EVERYWHERE
@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_what_an_author_raises_comes_out_with_its_traceback(where: Callable[..., Any], kind: type) -> None:
    class Raises(Says):
        def respond(self, reply: Message) -> Turn:
            raise kind("no answer")

    def play() -> None:
        with pytest.raises(kind, match="no answer") as caught:
            envsdk.rollout(Raises(), "null", seed=0)
        assert caught.traceback[-1].name == "respond"
        assert envsdk.rollout(Says(), "null", seed=0).reward == 1.0

    where(play)


@EVERYWHERE
def test_an_interrupt_ends_the_episode_and_the_next_one_runs(where: Callable[..., Any]) -> None:
    ended = []

    @in_any_vocabulary
    async def policy(prompt: Any, **_: Any) -> Action:
        threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)
        raise AssertionError

    def play() -> float:
        with pytest.raises(KeyboardInterrupt):
            envsdk.rollout(Says(), policy, seed=0)
        assert ended == [True]
        return envsdk.rollout(Says(), "null", seed=0).reward

    if where is inside:  # as in a notebook, whose loop leaves interrupts to Python
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(in_a_loop(play)) == 1.0
        loop.close()
    else:
        assert play() == 1.0


class Starts(Says):
    """Starts a task that it never waits for."""

    ran: ClassVar[list[str]] = []

    async def start(self) -> Turn:
        self.background = asyncio.create_task(self.note())
        await asyncio.sleep(0)
        return Turn("Go.")

    async def note(self) -> None:
        mine = self.episode_id
        while True:
            await asyncio.sleep(0)
            self.ran.append(f"{mine} in {self.episode_id}")

    async def respond(self, reply: Message) -> Turn:
        await asyncio.sleep(0)
        return Turn(terminated=True)


class Fails(Starts):
    """Starts a task, and then fails."""

    async def respond(self, reply: Message) -> Turn:
        raise ValueError("no answer")


class FailsAtOnce(Starts):
    """Starts a task, and then fails before anything was said."""

    async def start(self) -> Turn:
        await super().start()
        raise ValueError("no task")


class Delegates(Says):
    """Its sub-agent starts a task."""

    def respond(self, reply: Message) -> Any:
        return Handoff(Starts())

    def resume(self, result: Any) -> Turn:
        return Turn(terminated=True)


def by_rollout(env: Env, seed: int) -> None:
    with contextlib.suppress(ValueError):
        envsdk.rollout(env, "null", seed=seed)


def by_rollout_many(env: Env, seed: int) -> None:
    rollout_many(lambda: env, "null", seeds=[seed, seed + 100], max_concurrency=1)


def by_step(env: Env, seed: int) -> None:
    try:
        env.reset(seed=seed)
        while env.trajectory is None:
            env.step([5])
    except ValueError as error:
        env.fail(error)


def by_steps_that_are_left(env: Env, seed: int) -> None:
    with contextlib.suppress(ValueError):
        env.reset(seed=seed)


async def tasks_now() -> set[Any]:
    return asyncio.all_tasks() - {asyncio.current_task()}


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("make", [Starts, Fails, FailsAtOnce, Delegates])
@pytest.mark.parametrize("play", [by_rollout, by_rollout_many, by_step, by_steps_that_are_left])
def test_a_task_that_an_environment_starts_ends_with_its_episode(make: type[Env], play: Callable[..., None]) -> None:
    Starts.ran.clear()
    before = event_loops.run(tasks_now())
    env = make()
    for seed in range(3):
        play(env, seed)
    env.close()
    assert event_loops.run(tasks_now()) == before
    assert Starts.ran or (make, play) == (Delegates, by_steps_that_are_left)
    for one in Starts.ran:
        mine, _, running = one.partition(" in ")
        assert mine == running


def test_a_task_of_a_notebooks_episode_ends_with_it() -> None:
    env = Starts()

    def play() -> bool:
        envsdk.rollout(env, "null", seed=0)
        return env.background.cancelled()

    assert inside(play)


def test_a_task_is_there_from_one_step_to_the_next() -> None:
    class Prefetches(Says):
        async def start(self) -> Turn:
            self.reward = asyncio.create_task(asyncio.sleep(0.001, result=0.5))
            return Turn("Go.")

        async def respond(self, reply: Message) -> Turn:
            return Turn(reward=await self.reward, terminated=True)

    env = Prefetches()
    env.reset(seed=0)
    assert env.step([5]).reward == envsdk.rollout(Prefetches(), "null", seed=0).reward == 0.5


def test_a_refused_rollout_leaves_the_tasks_of_the_running_episode() -> None:
    env = Starts()
    env.reset(seed=0)
    with pytest.raises(errors.TaskError):
        envsdk.rollout(env, "null", options={"task": 3})
    assert not env.background.done()
    env.close()
    assert env.background.cancelled()


@EVERYWHERE
def test_a_task_of_a_policys_client_lives_on(where: Callable[..., Any]) -> None:
    class Engine(Client):
        worker: asyncio.Task[None] | None = None

        async def __call__(self, prompt: Any, **_: Any) -> Action:
            if self.worker is None:
                self.worker = asyncio.create_task(asyncio.sleep(60))
            await asyncio.sleep(0)
            assert not self.worker.done()
            return Action([5])

        async def close(self) -> None:
            assert self.worker is not None
            self.worker.cancel()

    engine = Engine()

    def play() -> None:
        for seed in range(3):
            assert envsdk.rollout(Starts(), engine, seed=seed).status == "terminated"
        event_loops.run(engine.close())

    where(play)


def test_threads_have_loops_of_their_own_that_end_with_them() -> None:
    clients = [Client() for _ in range(4)]
    threads = [threading.Thread(target=envsdk.rollout, args=(Says(), client), kwargs={"seed": 0}) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del thread, threads
    gc.collect()
    loops = [loop for client in clients for loop in client.loops]
    assert len(set(map(id, loops))) == 4
    assert all(loop.is_closed() for loop in loops)


def test_step_of_an_environment_that_waits_still_needs_astep_where_a_loop_is_running() -> None:
    class Waits(Says):
        async def start(self) -> Turn:
            return Turn("Go.")

    with pytest.raises(errors.EpisodeError, match="astep"):
        inside(lambda: Waits().reset(seed=0))


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_has_loops_of_its_own_and_every_process_ends() -> None:
    program = """
        import asyncio, os
        import envsdk
        from envsdk import Action

        async def policy(prompt, **_):
            asyncio.get_running_loop().create_task(asyncio.sleep(60))  # left behind
            await asyncio.sleep(0.001)
            return Action([5])

        policy.tokenizer = "any"

        def play():
            return envsdk.rollout("envsdk/KuhnPoker-v1", policy, seed=0).status

        async def inside():
            return play()

        play(), asyncio.run(inside())
        child = os.fork()
        print(play(), asyncio.run(inside()), flush=True)
        if child:
            assert os.waitpid(child, 0)[1] == 0
            print(play(), asyncio.run(inside()), flush=True)
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("terminated") == 6  # two processes may write at the same time


# Every method that an author may write as `async def`.


class Every(ToolEnv):
    """Comes through all hooks of a ToolEnv: a bad reply, a tool, a handoff, the end."""

    def start(self) -> Turn:
        return Turn("Go.")

    @tool
    def look(self) -> str:
        """Look."""
        return "seen"

    def after_tools(self, reply: Message, results: list[Message]) -> Turn:
        return Turn(results)

    def on_bad_reply(self, reply: Message, corrections: list[Message], in_a_row: int) -> Turn:
        return Turn(corrections)

    def finish(self, reply: Message) -> Any:
        return Handoff(Says())

    def after_handoff(self, result: Any) -> Turn:
        return Turn(reward=result.reward, terminated=True)


class Two(Env):
    """Comes through all hooks of an Env."""

    def start(self) -> Turn:
        return Turn("Go.")

    def respond(self, reply: Message) -> Any:
        return Handoff(Says())

    def resume(self, result: Any) -> Turn:
        return Turn(reward=result.reward, terminated=True)


def may_be_awaited(method: Any) -> bool:
    return "Awaitable" in str(getattr(method, "__annotations__", {}).get("return"))


HOOKS = [
    (env, name)
    for env, base in ((Two, Env), (Every, ToolEnv))
    for name in dir(base)
    if may_be_awaited(getattr(base, name)) or (base is Env and name in ("start", "respond", "resume"))
]


def waiting(env: type[Env], name: str) -> type[Env]:
    plain: Any = getattr(env, name)

    async def method(self: Any, *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return plain(self, *arguments)

    def wrapper(self: Any, *arguments: Any) -> Awaitable[Any]:
        return method(self, *arguments)

    vars(wrapper)["__wrapped__"] = method  # as functools.wraps leaves it
    return type(env.__name__, (env,), {name: wrapper})


def actions(env: Env) -> list[Any]:
    look = Message(role="assistant", tool_calls=[{"name": "look"}])
    nobody = Message(role="assistant", tool_calls=[{"name": "nobody"}])
    replies = [nobody, look, "Done.", "Well."] if isinstance(env, Every) else ["Done.", "Well."]
    messages = [Message(role="assistant", content=one) if isinstance(one, str) else one for one in replies]
    return [env.renderer.reply(message) for message in messages]


def test_the_table_of_hooks_has_them_all() -> None:
    assert {name for _, name in HOOKS} == {
        *("start", "respond", "resume"),
        *("finish", "after_tools", "on_bad_reply", "after_handoff"),
    }


@pytest.mark.parametrize(("env", "name"), HOOKS)
def test_every_hook_of_an_author_may_wait(env: type[Env], name: str) -> None:
    made = waiting(env, name)()
    made.reset(seed=0)
    for action in actions(made):
        result = made.step(action)
    assert (result.terminated, result.reward) == (True, 2.0)

    replies = iter(actions(made))
    assert envsdk.rollout(made, in_any_vocabulary(lambda *_, **__: Action(next(replies))), seed=0).reward == 2.0


AT_EXIT = """
import asyncio
from envsdk.authoring import _event_loops as event_loops

async def wait_in_a_thread():
    return await asyncio.to_thread(sum, [1, 2])

async def main():
    return event_loops.run(wait_in_a_thread())

print(event_loops.run(wait_in_a_thread()), asyncio.run(main()))
"""


def test_a_process_whose_episodes_waited_in_threads_ends_without_a_word() -> None:
    ended = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=600, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("3 3\n", "", 0)


def test_a_call_that_is_cancelled_before_its_coroutine_begins_ends_without_a_trace():
    thread = event_loops.MethodThread()
    has_started = threading.Event()

    async def never_begins() -> None:
        raise AssertionError("it was cancelled")

    def method() -> Awaitable[None]:
        has_started.set()
        while not call.is_cancelled:
            pass
        return never_begins()  # a coroutine that is not awaited warns, which fails the test

    call = event_loops.MethodCall(method)

    async def cancel() -> None:
        task = asyncio.ensure_future(thread.result(call))
        await asyncio.to_thread(has_started.wait)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(cancel())
    assert thread.wait(lambda: 1) == 1
    with pytest.raises(asyncio.CancelledError):
        call.future.result(timeout=600)
    assert not thread.is_busy
    gc.collect()
