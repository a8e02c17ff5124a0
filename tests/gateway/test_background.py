"""The server of a process: started when it is first used, one for each process, and quiet at the end."""

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from typing import Any

import httpx
import pytest
from scripted_sessions import ScriptedSession

from envsdk.gateway._serving import BackgroundServer, background_server

BODY: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def asked(server: BackgroundServer, session: ScriptedSession, text: str = "hi") -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return httpx.post(f"{server.base_url(session)}/v1/chat/completions", json=body, timeout=600)


def test_a_process_has_one_server_whichever_thread_asks_first() -> None:
    found: list[BackgroundServer] = []
    threads = [threading.Thread(target=lambda: found.append(background_server())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


def test_the_server_is_on_loopback() -> None:
    session = ScriptedSession()
    assert background_server().base_url(session).startswith("http://127.0.0.1:")
    assert f"{background_server().base_url(session)}/v1".endswith(f"/s/{session.id}/v1")


@pytest.mark.full
def test_a_stopped_server_answers_those_who_wait_and_is_replaced() -> None:
    server, session = BackgroundServer(), ScriptedSession()
    server.sessions.add(session)
    answers: list[httpx.Response] = []
    waiting = threading.Thread(target=lambda: answers.append(asked(server, session, "wait")))
    waiting.start()
    while not session.asked:
        time.sleep(0.01)
    server.stop()
    waiting.join()
    assert answers[0].status_code == 503
    assert answers[0].json()["error"]["message"] == "the gateway is shutting down"
    assert session.abandoned == session.asked
    assert not server.is_running
    with pytest.raises(httpx.ConnectError):
        asked(server, session)


def _child(parent_url: str, results: Any) -> None:
    server, session = background_server(), ScriptedSession("child")
    server.sessions.add(session)
    reply = asked(server, session).json()["choices"][0]["message"]["content"]
    results.put((reply, server.base_url(session).startswith(parent_url)))


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_starts_a_server_of_its_own() -> None:
    server, session = background_server(), ScriptedSession("parent")
    server.sessions.add(session)
    assert asked(server, session).status_code == 200
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    children = [context.Process(target=_child, args=(server.base_url(session)[:22], results)) for _ in "ab"]
    for child in children:
        child.start()
    assert [results.get(timeout=600) for _ in children] == [("child: hi", False)] * 2
    for child in children:
        child.join(600)
        assert child.exitcode == 0
    assert asked(server, session).json()["choices"][0]["message"]["content"] == "parent: hi"
    server.sessions.remove(session.id)
    results.close()


PROGRAM = """
import asyncio, os, sys, threading, time
import httpx
from scripted_sessions import ScriptedSession
from envsdk.gateway._serving import background_server

server, session = background_server(), ScriptedSession()
server.sessions.add(session)
url = f"{server.base_url(session)}/v1" + "/chat/completions"

def ask(text):
    return httpx.post(url, json={"model": "m", "messages": [{"role": "user", "content": text}]}, timeout=600)

print(ask("hi").json()["choices"][0]["message"]["content"], flush=True)  # or a fork would print it, too
if "waiting" in sys.argv:
    threading.Thread(target=lambda: print(ask("wait").status_code), daemon=True).start()
    while len(session.asked) < 2:
        time.sleep(0.01)
if "fork" in sys.argv:
    child = os.fork()
    if child == 0:
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
if "error" in sys.argv:
    sys.exit(1)
"""


@pytest.mark.full
@pytest.mark.parametrize("how", ["", "fork", "error", "waiting"])
def test_a_program_ends_quietly(how: str) -> None:
    program = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, how],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert program.stderr == ""
    assert program.stdout.splitlines()[0] == "session: hi"
    assert program.returncode == (1 if how == "error" else 0)
    if how == "fork":
        assert program.stdout.splitlines()[1] == "3"
