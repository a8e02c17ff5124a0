"""Malformed requests, many of them: only they are refused, nothing of the inside is shown, and other sessions go on."""

import gzip
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import httpx
import pytest
import soundness
import zstandard
from commanded_policies import Commanded
from malformed_requests import Malformed, Mutations
from scripted_sessions import RunningGateway, ScriptedSession

from envsdk import Trajectory
from envsdk.gateway._outside import PlayedSessions
from envsdk.gateway._serving import BackgroundServer
from envsdk.gateway._standalone import SessionLimits

INSIDE = ("Traceback", 'File "', ".py", "object at 0x", "site-packages", "swordfish", "pydantic.dev")
BATCH = 50
OPTIONS: dict[str, Any] = {"renderer": "qwen3", "tokenizer": "embedded", "limits": {"max_steps": 100_000}}


@pytest.fixture
def many(is_full: bool) -> int:
    return 20_000 if is_full else 150


def send(client: httpx.Client, request: Malformed) -> httpx.Response | None:
    """Send a request; None if the client itself refuses it."""
    headers = {name.encode(): value.encode("latin-1") for name, value in request.headers.items()}
    try:
        built = client.build_request(request.method, request.path, content=request.content, headers=headers.items())
    except httpx.InvalidURL:
        return None
    return client.send(built)


def check_refused(request: Malformed, response: httpx.Response) -> None:
    assert response.status_code < 500, (request, response.text)
    if response.status_code >= 400 and request.method != "HEAD":
        assert response.json()["error"]["message"], (request, response.text)
    shown = response.text if response.status_code >= 400 else ""
    assert not [inside for inside in INSIDE if inside in shown], (request, response.text)


class Attacked:
    """A server that is sent malformed requests, in batches.

    Args:
        client: The client.
        open_session: Opens a session to attack, and closes the one before; returns its id and its key.
        witness: Asks in another session, and checks the answer.
    """

    def __init__(
        self, client: httpx.Client, open_session: Callable[[], tuple[str, str]], witness: Callable[[], None]
    ) -> None:
        self.client, self.open_session, self.witness = client, open_session, witness
        self.statuses: Counter[int] = Counter()

    def attack(self, mutations: Mutations, many: int) -> None:
        for number in range(many):
            if number % BATCH == 0:
                session_id, key = self.open_session()
                self.witness()
            request = mutations.request(session_id, key)
            response = send(self.client, request)
            if response is not None:
                check_refused(request, response)
                self.statuses[response.status_code] += 1
        self.witness()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(600)
        assert not thread.is_alive()


def test_a_standalone_gateway_refuses_malformed_requests_and_other_sessions_go_on(
    many: int,
) -> None:
    trajectories: dict[str, Trajectory] = {}

    def keep(trajectory: Trajectory) -> None:
        trajectories[trajectory.id] = trajectory

    sessions = PlayedSessions(Commanded(), OPTIONS, on_trajectory=keep)
    limits = SessionLimits(max_sessions=100_000)
    with RunningGateway(sessions, session_limits=limits) as url, httpx.Client(base_url=url, timeout=600) as client:
        attacked_ids: list[str] = []

        def open_session() -> tuple[str, str]:
            for session_id in attacked_ids:
                assert client.post(f"/sessions/{session_id}/close").status_code == 200
            session = client.post("/sessions", json={}).json()
            attacked_ids[:] = [session["id"]]
            return session["id"], session["key"]

        said: list[dict[str, str]] = []
        witness = client.post("/sessions", json={"episode_id": "witness"}).json()

        def ask() -> None:
            said.append({"role": "user", "content": f"swordfish {len(said)}"})
            body = {"model": "m", "messages": said}
            headers = {"authorization": f"Bearer {witness['key']}"}
            answer = client.post("/v1/chat/completions", json=body, headers=headers).json()
            said.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            assert said[-1]["content"] == f"answer to {said[-2]['content']}"

        ask()
        tasks = _tasks(client, open_session()[0])
        attacked = Attacked(client, open_session, ask)
        attacked.attack(Mutations(Random(0), client.get("/openapi.json").json()["paths"]), many)
        print(f"{many} malformed requests, by status: {dict(sorted(attacked.statuses.items()))}")
        opened = client.get("/health").json()["open_sessions"] - 2  # requests opened them, too
        # Each has three: the playing of its episode, the attempt at it, and the call of a method. They end with it.
        assert _tasks(client, open_session()[0]) <= tasks + 3 * opened
        client.post(f"/sessions/{witness['id']}/close")
    ended = trajectories["witness"]
    assert (ended.status, len(ended.steps), ended.breaks) == ("terminated", len(said) // 2, [])
    for trajectory in trajectories.values():
        soundness.check(trajectory)
        were_all_refused = "requests were refused" in (trajectory.error or "")
        assert trajectory.error is None or were_all_refused, trajectory.error


def _tasks(client: httpx.Client, session_id: str) -> int:
    body = {"model": "m", "messages": [{"role": "user", "content": "tasks"}]}
    reply = client.post(f"/s/{session_id}/v1/chat/completions", json=body).json()
    return int(reply["choices"][0]["message"]["content"].split()[0])


def test_the_server_in_the_background_refuses_malformed_requests_and_other_sessions_go_on(many: int) -> None:
    server = BackgroundServer()
    witness = ScriptedSession("witness")
    server.sessions.add(witness)
    with httpx.Client(base_url=server.base_url(witness).partition("/s/")[0], timeout=600) as client:

        def open_session() -> tuple[str, str]:
            session = ScriptedSession("attacked")
            server.sessions.add(session)
            return session.id, session.key

        def ask() -> None:
            body = {"model": "m", "messages": [{"role": "user", "content": "swordfish"}]}
            headers = {"authorization": f"Bearer {witness.key}"}
            answer = client.post("/v1/chat/completions", json=body, headers=headers).json()
            assert answer["choices"][0]["message"]["content"] == "witness: swordfish"

        routes = ("chat/completions", "responses", "messages", "messages/count_tokens")
        paths = {f"{root}/v1/{name}": {"post": {}} for root in ("", "/s/{session_id}") for name in routes}
        attacked = Attacked(client, open_session, ask)
        attacked.attack(Mutations(Random(1), paths), many // 2)
        print(f"{many // 2} malformed requests, by status: {dict(sorted(attacked.statuses.items()))}")
    server.stop()
    assert len(witness.asked) == len(range(0, many // 2, BATCH)) + 1


BODIES: dict[str, tuple[Callable[[], bytes], dict[str, str], int, str]] = {
    "size": (lambda: b'{"a": "' + bytes(64 * 2**20) + b'"}', {}, 413, "larger than 67108864 bytes"),
    "depth": (lambda: b"[" * 100_000, {}, 400, "not JSON"),
    "depth of closed lists": (lambda: b"[" * 100_000 + b"]" * 100_000, {}, 400, "not JSON"),
    "count of lists": (lambda: b'{"a": [' + b"[]," * 20_000_000 + b"1]}", {}, 413, "more than 300,000 values"),
    "count of messages": (
        lambda: b'{"messages": [' + b"{}," * 20_000_000 + b"{}]}",
        {},
        413,
        "more than 300,000 values",
    ),
    "expansion": (
        lambda: zlib.compress(bytes(2**26 + 1)),
        {"content-encoding": "deflate"},
        413,
        "larger than 67108864 bytes",
    ),
    "expansion of zstd": (
        lambda: zstandard.compress(bytes(2**26 + 1)),
        {"content-encoding": "zstd"},
        413,
        "larger than",
    ),
    "unknown encoding": (lambda: b"{}", {"content-encoding": "br"}, 415, "gzip"),
    "another encoding": (lambda: b"{}", {"content-encoding": "gzip"}, 400, "gzip"),
    "no end": (lambda: gzip.compress(b'{"model": "m"}')[:-9], {"content-encoding": "gzip"}, 400, "its end is missing"),
}


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("attack", BODIES)
def test_a_body_that_costs_too_much_is_refused_with_its_limit(attack: str) -> None:
    make, headers, status, why = BODIES[attack]
    server, session = BackgroundServer(), ScriptedSession()
    server.sessions.add(session)
    headers = {"content-type": "application/json", **headers}
    answer = httpx.post(f"{server.base_url(session)}/v1/chat/completions", content=make(), headers=headers, timeout=600)
    server.stop()
    assert (answer.status_code, session.asked) == (status, [])
    assert why in answer.json()["error"]["message"]


def test_text_with_many_commas_and_braces_counts_as_one_value() -> None:
    server, session = BackgroundServer(), ScriptedSession()
    server.sessions.add(session)
    body = {"model": "m", "messages": [{"role": "user", "content": '{"a": [1, 2]}, \\' * 100_000}]}
    assert httpx.post(f"{server.base_url(session)}/v1/chat/completions", json=body, timeout=600).status_code == 200
    server.stop()
