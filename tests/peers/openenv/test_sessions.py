"""Sessions of a `RemoteEnv` in processes and threads: forks, pickles, garbage, calls that hang, endless answers."""

import contextlib
import gc
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from openenv_servers import eventually, running

import envsdk
from envsdk import Env, Message, Turn
from envsdk.adapters import RemoteEnv, openenv_app
from envsdk.errors import RemoteEnvError

OPEN = list["Waiting"]()
"""The environments of the server that are not closed."""
GO_ON = threading.Event()


class Waiting(Env):
    """Waits in `respond` for a reply that is not empty."""

    def start(self) -> Turn:
        OPEN.append(self)
        return Turn(f"Begin {self.np_random.random()}.")

    def respond(self, reply: Message) -> Turn:
        if reply.content:
            GO_ON.wait(60)
        return Turn(terminated=True, reward=1.0)

    def close(self) -> None:
        super().close()
        if self in OPEN:
            OPEN.remove(self)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(openenv_app(Waiting)) as url:
        yield url
        GO_ON.set()  # a method that still waits would hold the server up


@pytest.fixture(autouse=True)
def fresh() -> None:
    GO_ON.clear()


def reply(env: RemoteEnv, text: str = "") -> Any:
    return env.renderer.reply(Message(role="assistant", content=text))


def test_a_session_ends_with_its_environment(url: str):
    for copied in (lambda env: env, lambda env: pickle.loads(pickle.dumps(env))):
        env = copied(RemoteEnv(url))
        env.reset(seed=0)
        assert eventually(lambda: len(OPEN) == 1)
        del env
        gc.collect()
        assert eventually(lambda: not OPEN)


def test_a_call_fails_when_its_environment_is_closed(url: str):
    env, failed = RemoteEnv(url), list[BaseException]()
    env.reset(seed=0)

    def step() -> None:
        try:
            env.step(reply(env, "wait"))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    time.sleep(0.5)
    begun = time.monotonic()
    env._envsdk_session.thread.run(env._envsdk_session.close())
    thread.join(30)
    assert isinstance(failed[0], RemoteEnvError) and time.monotonic() - begun < 20
    GO_ON.set()
    assert envsdk.rollout(env, "null", seed=1).reward == 1.0
    env.close()
    assert eventually(lambda: not OPEN)


def test_two_servers_have_their_own_sessions(url: str):
    with running(openenv_app("envsdk/GuessNumber-v1")) as other:
        one, two = RemoteEnv(url), RemoteEnv(other)
        one.reset(seed=0)
        expected = envsdk.rollout("envsdk/GuessNumber-v1", "reference", seed=3).to_json()
        assert envsdk.rollout(two, "reference", seed=3).to_json() == expected
        assert one.step(reply(one)).reward == 1.0
        one.close()
        two.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_does_not_touch_the_session_of_its_parent(url: str):
    env = RemoteEnv(url)
    env.reset(seed=0)
    process = os.fork()
    if process == 0:
        code = 1
        with contextlib.suppress(BaseException):
            try:
                env.step(reply(env))
            except RemoteEnvError:
                code = 2
            if code == 2 and envsdk.rollout(env, "null", seed=1).reward == 1.0:
                env.close()
                code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert env.step(reply(env)).reward == 1.0
    env.close()


def test_a_worker_process_plays_a_pickled_environment(url: str):
    program = (
        "import pickle, sys, envsdk; env = pickle.load(sys.stdin.buffer); "
        "t = envsdk.rollout(env, 'null', seed=5); sys.stdout.buffer.write(t.to_json()); env.close()"
    )
    env = RemoteEnv(url)
    done = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(env), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout == envsdk.rollout(env, "null", seed=5).to_json()
    env.close()


def test_an_answer_without_an_end_is_cut_at_the_time_limit():
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n[")
                while True:
                    connection.sendall(b" ")
                    time.sleep(0.1)

        threading.Thread(target=answer, daemon=True).start()
        begun = time.monotonic()
        with pytest.raises(RemoteEnvError, match="cannot be read"):
            RemoteEnv(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout_s=1)
        assert time.monotonic() - begun < 30
