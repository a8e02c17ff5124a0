"""Clients that do wrong things: each gets a typed error or a clean close, and other sessions are untouched."""

import contextlib
import json
import os
import random
import socket
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openenv.core import GenericEnvClient
from openenv_servers import eventually, served
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from envsdk.adapters import RemoteEnv
from envsdk.authoring.adapters._remote import io_thread
from envsdk.errors import ConfigError, RemoteEnvError

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""The client of websockets leaves the socket of a connection that the server closed to the garbage collector."""
TOKEN = "0123456789abcdef-a-token"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server with a token, small messages and 20 sessions."""
    file: Path = tmp_path_factory.mktemp("token") / "token.txt"
    file.write_text(f"{TOKEN}\n")
    options = ("--token-file", str(file), "--max-message-mib", "1", "--max-sessions", "20", "--idle-timeout-s", "30")
    with served("envsdk/GuessNumber-v1", "--port", "0", *options) as (url, _):
        yield url


def connected(url: str, query: str = "", token: str | None = TOKEN) -> ClientConnection:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return connect(f"{url.replace('http', 'ws')}/ws{query}", additional_headers=headers, proxy=None, max_size=None)


def exchanged(connection: ClientConnection, message: Any) -> dict[str, Any]:
    connection.send(message if isinstance(message, (str, bytes)) else json.dumps(message))
    return json.loads(connection.recv(timeout=120))


def status_of(url: str, token: str | None, **headers: str) -> int:
    given = headers if token is None else {**headers, "Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=given), timeout=60) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_wrong_token_is_refused_over_http_and_websocket(guarded: str):
    for token in (None, "", "wrong", TOKEN[:-1], f"{TOKEN}x", "\u00e9" * 24):
        if token is None or token.isascii():
            assert status_of(f"{guarded}/schema", token) == 401
            with pytest.raises(InvalidStatus):
                connected(guarded, token=token)
    assert status_of(f"{guarded}/schema", TOKEN) == 200
    assert status_of(f"{guarded}/health", None) == 200
    with pytest.raises(ConfigError, match="refuses the token"):
        RemoteEnv(guarded, token="wrong" * 5)


def test_without_a_token_pages_of_other_sites_are_refused(server: str):
    url = f"{server}/GuessNumber-v1/schema"
    assert status_of(url, None) == 200
    assert status_of(url, None, Origin="https://evil.example") == 403
    assert status_of(url, None, Host="evil.example") == 403


def test_a_host_that_others_reach_needs_a_token():
    import subprocess
    import sys

    command = [sys.executable, "-m", "envsdk", "serve", "envsdk/GuessNumber-v1", "--host", "0.0.0.0", "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, "give --token-file" in ended.stderr) == (2, True)


def test_a_large_message_closes_only_its_session(guarded: str):
    with connected(guarded) as other, connected(guarded) as connection:
        assert exchanged(other, {"type": "reset", "data": {"seed": 1}})["type"] == "observation"
        with pytest.raises(ConnectionClosed) as closed:
            exchanged(connection, {"type": "step", "data": {"content": "x" * 2**21}})
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
        assert exchanged(other, {"type": "step", "data": {"content": "5"}})["type"] == "observation"


def test_a_large_request_is_refused(guarded: str):
    body = json.dumps({"jsonrpc": "2.0", "method": "x" * 2**21}).encode()
    request = urllib.request.Request(f"{guarded}/mcp", body, {"Authorization": f"Bearer {TOKEN}"})
    with pytest.raises((urllib.error.HTTPError, ConnectionError, urllib.error.URLError)) as refused:
        urllib.request.urlopen(request, timeout=60)
    assert getattr(refused.value, "code", 413) == 413


def test_an_unknown_session_is_an_error(guarded: str):
    with connected(guarded, "?session_id=none") as connection:
        answer = json.loads(connection.recv(timeout=60))
        assert (answer["type"], answer["data"]["code"]) == ("error", "SESSION_ERROR")
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=60)


def created(url: str) -> str:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create", "params": {}}).encode()
    request = urllib.request.Request(f"{url}/mcp", body, {"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["result"]["session_id"]


def test_a_session_has_one_client(guarded: str):
    session = created(guarded)
    with connected(guarded, f"?session_id={session}") as first:
        assert exchanged(first, {"type": "reset", "data": {"seed": 1}})["type"] == "observation"
        with connected(guarded, f"?session_id={session}") as second:
            assert "already has an attached" in json.loads(second.recv(timeout=60))["data"]["message"]
        assert exchanged(first, {"type": "step", "data": {"content": "5"}})["type"] == "observation"


MALFORMED = (
    '{"type": "step", "data": {"content": 5}}',
    '{"type": "step", "data": {"content": "\\ud800"}}',
    '{"type": "step", "data": {"tokens": [1]}}',
    '{"type": "step", "data": {"tool_calls": [{"a": {}}]}}',
    '{"type": "step", "data": {"tool_calls": [{"name": "f", "arguments": {"x": 1e999}}]}}',
    '{"type": "step", "data": {"call": "[]"}}',
    '{"type": "step", "data": {"call": "{\\"number\\": 1, \\"method\\": \\"start\\"}"}}',
    '{"type": "step", "data": {"call": "{\\"number\\": 99, \\"method\\": \\"start\\"}"}}',
    '{"type": "reset", "data": {"seed": -1}}',
    '{"type": "reset", "data": {"seed": true}}',
    '{"type": "reset", "data": {"unknown": 1}}',
    '{"type": "reset", "data": {"split": "none"}}',
    '{"type": "reset", "data": {"task": 5}}',
    '{"type": "reset", "data": {"level": []}}',
    '{"type": "reset", "data": {"episode_id": "\\ud800"}}',
    '{"type": "reset", "data": []}',
    '{"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}}',
    '{"type": []}',
    '{"type": "state", "more": 1}',
    "{",
    "",
    "\x00",
)
ENDING = ("[]", "5", "null", '"reset"', "[" * 50_000, "1" * 5000, b"\x80abc", "NaN")
"""Messages that OpenEnv's server does not expect; it ends the session."""


def test_malformed_messages_do_not_disturb_other_sessions(guarded: str, compared: Counter[str]):
    rng = random.Random(0)
    with connected(guarded) as other:
        first = exchanged(other, {"type": "reset", "data": {"seed": 4}})
        sent = 0
        while sent < 20_000:
            with connected(guarded) as connection:
                try:
                    for _ in range(2000):
                        message: Any = rng.choice(MALFORMED) if rng.random() < 0.999 else rng.choice(ENDING)
                        if rng.random() < 0.2 and isinstance(message, str) and message:
                            at = rng.randrange(len(message))
                            message = message[:at] + chr(rng.randrange(32, 127)) + message[at + 1 :]
                        sent += 1
                        answer = exchanged(connection, message)
                        compared[answer["type"]] += 1
                except ConnectionClosed:
                    compared["closed"] += 1
        for message in ENDING:
            with connected(guarded) as connection:
                try:
                    assert exchanged(connection, message)["type"] == "error"
                except ConnectionClosed as closed:
                    assert closed.rcvd is not None
        assert exchanged(other, {"type": "reset", "data": {"seed": 4}}) == first


def never_reading(url: str) -> socket.socket:
    """A WebSocket that sends messages whose answers quote them, and reads nothing."""
    host, port = url.removeprefix("http://").split(":")
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect((host, int(port)))
    lines = (f"GET /ws HTTP/1.1\r\nHost: {host}:{port}", "Upgrade: websocket", "Connection: Upgrade")
    key = ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")
    raw.sendall("\r\n".join((*lines, *key, f"Authorization: Bearer {TOKEN}", "", "")).encode())
    assert b"101 Switching" in raw.recv(100)
    payload = json.dumps({"type": "step", "data": {"content": 5, "metadata": {"x": "y" * 2**19}}}).encode()
    raw.settimeout(2)
    with contextlib.suppress(OSError):  # until the server reads no more
        for _ in range(100):
            raw.sendall(b"\x81\xff" + len(payload).to_bytes(8) + bytes(4) + payload)
    return raw


def test_a_slow_reader_does_not_stop_others_and_is_closed(guarded: str):
    with contextlib.closing(never_reading(guarded)) as raw:
        with connected(guarded) as other:
            assert exchanged(other, {"type": "reset", "data": {"seed": 4}})["type"] == "observation"
        raw.settimeout(120)
        with contextlib.suppress(ConnectionResetError):
            while raw.recv(2**20):  # what was sent before it was closed
                time.sleep(1.5)


def test_more_sessions_than_allowed_are_refused_and_places_come_back():
    reset = {"type": "reset", "data": {"seed": 1}}
    options = ("--port", "0", "--max-sessions", "3")
    with served("envsdk/GuessNumber-v1", *options) as (url, _), connected(url) as one, connected(url) as two:
        with connected(url) as three:
            assert [exchanged(each, reset)["type"] for each in (one, two, three)] == ["observation"] * 3
            with connected(url) as refused:
                assert json.loads(refused.recv(timeout=60))["data"]["code"] == "CAPACITY_REACHED"
        env = RemoteEnv(url)  # it waits for a place
        env.reset(seed=1)
        with connected(url) as refused:
            assert json.loads(refused.recv(timeout=60))["data"]["code"] == "CAPACITY_REACHED"
        env.close()
        with connected(url) as admitted:
            assert exchanged(admitted, reset)["type"] == "observation"


def test_a_server_that_is_killed_is_a_typed_error():
    with served("envsdk/GuessNumber-v1", "--port", "0") as (url, process):
        env = RemoteEnv(url, reconnect_s=0.5)
        env.reset(seed=0)
        client = GenericEnvClient(base_url=url).sync()
        client.connect()
        client.reset(seed=0)
        process.kill()
        process.wait()
        with pytest.raises(RemoteEnvError, match="cannot be reached"):
            env.step([1, 2, int(env.pending()[1]["stop_token_ids"][0])])
        with pytest.raises(Exception, match=r"(?i)connect|closed|close frame"):
            client.step({"content": "5"})
        env.close()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in /proc")
def test_clients_that_vanish_leave_nothing():
    with served("envsdk/GuessNumber-v1", "--port", "0", "--idle-timeout-s", "5") as (url, process):

        def left() -> tuple[int, int]:
            folder = Path(f"/proc/{process.pid}")
            return len([*(folder / "fd").iterdir()]), len([*(folder / "task").iterdir()])

        with GenericEnvClient(base_url=url).sync() as client:
            client.reset(seed=0)
        assert eventually(lambda: left()[1] < 4)
        files, threads = left()
        envs = [RemoteEnv(url) for _ in range(20)]
        for env in envs:
            env.reset(seed=0)
        assert left()[0] >= files + 20 and left()[1] >= threads + 20
        for env in envs:
            io_thread(os.getpid()).run(aborted(env))
        assert eventually(lambda: left()[0] <= files + 2 and left()[1] <= threads + 2)
        with pytest.raises(RemoteEnvError, match="no longer has the session"):
            envs[0].step([int(envs[0].pending()[1]["stop_token_ids"][0])])


async def aborted(env: RemoteEnv) -> None:
    """Break the TCP connection of a session, as a network does."""
    env._envsdk_session._connection.transport.abort()
