"""Programs ask the model over real HTTP: who they are, what is refused and how, and what others notice of it."""

import asyncio
import contextlib
import gzip
import json
import logging
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from protocol_bodies import ROUTES, body_of, check_error, text_of, until
from scripted_sessions import SECRET, ScriptedSession

from envsdk.errors import ConfigError
from envsdk.gateway._app import ServerLimits, model_app
from envsdk.gateway._protocols import WIRE_FORMATS
from envsdk.gateway._serving import BackgroundServer
from envsdk.gateway._sessions import Sessions, TokenBucket
from envsdk.images import Image

PROTOCOLS = ("chat", "responses", "anthropic")


def assert_error(protocol: str, response: httpx.Response, status: int) -> str:
    """Check that a response is an error in a protocol's form, and return its message."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert "Traceback" not in response.text
    return check_error(protocol, response.json())


@pytest.fixture(scope="module")
def server() -> Iterator[BackgroundServer]:
    server = BackgroundServer(ServerLimits(max_body_bytes=100_000, body_timeout_s=0.5, max_waiting=8))
    yield server
    server.stop()


@pytest.fixture
def session(server: BackgroundServer) -> Iterator[ScriptedSession]:
    session = ScriptedSession()
    server.sessions.add(session)
    yield session
    server.sessions.remove(session.id)


@pytest.fixture
def url(server: BackgroundServer, session: ScriptedSession) -> str:
    return f"{server.base_url(session)}/v1"


@pytest.fixture
def root(server: BackgroundServer, session: ScriptedSession) -> str:
    return server.base_url(session).removesuffix(f"/s/{session.id}")


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=600) as client:
        yield client


# Who asks.


@pytest.mark.matrix
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("way", ["bearer", "x-api-key", "path", "path and key", "lower-case bearer"])
@pytest.mark.parametrize("base", ["/v1", "", "/v1/v1"])
def test_a_session_is_identified_by_its_key_or_by_the_path(
    http: httpx.Client, root: str, session: ScriptedSession, protocol: str, way: str, base: str
) -> None:
    headers = {
        "bearer": {"authorization": f"Bearer {session.key}"},
        "lower-case bearer": {"authorization": f"bearer {session.key}"},
        "x-api-key": {"x-api-key": session.key},
        "path": {"authorization": "Bearer sk-any"},
        "path and key": {"authorization": f"Bearer {session.key}"},
    }[way]
    path = f"/s/{session.id}" if way.startswith("path") else ""
    response = http.post(f"{root}{path}{base}{ROUTES[protocol]}", json=body_of(protocol, "hi"), headers=headers)
    assert response.status_code == 200, response.text
    assert text_of(protocol, response.json()) == "session: hi"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_without_the_key_of_an_open_session_nothing_is_answered(
    http: httpx.Client, root: str, session: ScriptedSession, protocol: str
) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic x"}, {"x-api-key": session.id}):
        response = http.post(f"{root}/v1{ROUTES[protocol]}", json=body_of(protocol, "hi"), headers=headers)
        assert_error(protocol, response, 401)
        assert response.headers["www-authenticate"] == "Bearer"
    response = http.post(f"{root}/s/{session.key}/v1{ROUTES[protocol]}", json=body_of(protocol, "hi"))
    assert_error(protocol, response, 404)
    assert session.asked == []


def test_the_key_of_another_session_than_the_one_in_the_path_is_refused(
    http: httpx.Client, server: BackgroundServer, url: str, session: ScriptedSession
) -> None:
    other = ScriptedSession("other")
    server.sessions.add(other)
    headers = {"authorization": f"Bearer {other.key}"}
    response = http.post(f"{url}/chat/completions", json=body_of("chat", "hi"), headers=headers)
    assert "a different session" in assert_error("chat", response, 401)
    server.sessions.remove(other.id)


def test_a_removed_session_is_unknown(
    http: httpx.Client, server: BackgroundServer, url: str, session: ScriptedSession
) -> None:
    server.sessions.remove(session.id)
    assert_error("chat", http.post(f"{url}/chat/completions", json=body_of("chat", "hi")), 404)


def test_two_sessions_may_not_have_one_id_or_key(server: BackgroundServer, session: ScriptedSession) -> None:
    twin = ScriptedSession()
    twin.key = session.key
    with pytest.raises(ConfigError, match="token_urlsafe"):
        server.sessions.add(twin)


# What is refused.


@pytest.mark.matrix
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("status", "content", "content_type"),
    [
        (400, b"{", "application/json"),
        (400, b"", "application/json"),
        (400, b'"\xff"', "application/json"),
        (400, b'{"a": NaN}', "application/json"),
        (400, b'"\\ud800"', "application/json"),
        (400, b"[" * 5000 + b"]" * 5000, "application/json"),
        (400, b"[]", "application/json; charset=utf-8"),
        (400, b"null", "APPLICATION/JSON"),
        (415, b"{}", "text/plain"),
        (415, b"{}", "application/x-www-form-urlencoded"),
        (415, b"{}", None),
        (413, b'"' + b"a" * 100_000 + b'"', "application/json"),
    ],
)
def test_a_body_that_is_not_a_request_is_refused_in_the_form_of_the_protocol(
    http: httpx.Client, url: str, protocol: str, status: int, content: bytes, content_type: str | None
) -> None:
    headers = {"content-type": content_type} if content_type else {}
    assert_error(protocol, http.post(f"{url}{ROUTES[protocol]}", content=content, headers=headers), status)


@pytest.mark.parametrize(
    ("encoding", "encode"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("zstd", zstandard.compress)]
)
def test_an_encoded_body_is_read(http: httpx.Client, url: str, encoding: str, encode: Callable[[bytes], bytes]) -> None:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    content = encode(json.dumps(body_of("chat", "hi")).encode())
    assert http.post(f"{url}/chat/completions", content=content, headers=headers).status_code == 200


def test_a_body_without_a_length_is_limited_while_it_is_read(http: httpx.Client, url: str) -> None:
    chunks = (b" " * 1000 for _ in range(200))
    headers = {"content-type": "application/json"}
    assert_error("chat", http.post(f"{url}/chat/completions", content=chunks, headers=headers), 413)
    assert http.post(f"{url}/chat/completions", json=body_of("chat", "hi")).status_code == 200


@pytest.mark.full
def test_a_body_that_does_not_arrive_is_refused_in_time(http: httpx.Client, url: str) -> None:
    def slow() -> Iterator[bytes]:
        yield b"{"
        time.sleep(0.8)
        yield b"}"

    headers = {"content-type": "application/json"}
    assert_error("chat", http.post(f"{url}/chat/completions", content=slow(), headers=headers), 408)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_unknown_routes_and_methods_are_refused_in_the_form_of_the_protocol(
    http: httpx.Client, url: str, root: str, protocol: str
) -> None:
    assert_error(protocol, http.post(f"{url}{ROUTES[protocol]}/an/unknown", json={}), 404)
    assert_error(protocol, http.post(f"{url}{ROUTES[protocol]}/", json={}), 404)
    response = http.get(f"{url}{ROUTES[protocol]}")
    assert_error(protocol, response, 405)
    assert response.headers["allow"] == "POST"
    assert_error(protocol, http.request("WEIRD", f"{url}{ROUTES[protocol]}"), 405)
    assert_error("anthropic", http.get(f"{root}/unknown", headers={"anthropic-version": "2023-06-01"}), 404)


def test_management_is_no_part_of_the_server_in_the_background(http: httpx.Client, root: str) -> None:
    for path in ("/sessions", "/metrics", "/health", "/openapi.json"):
        assert http.get(root + path).status_code == 404


def test_a_token_bucket_lets_a_burst_through_and_then_the_rate() -> None:
    bucket = TokenBucket(per_s=2.0, burst=3, at_s=0.0)
    assert [bucket.take(0.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert [bucket.take(0.5), bucket.take(0.5)] == [0.0, 0.5]
    assert [bucket.take(100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


@pytest.mark.parametrize("options", [{"requests_per_s": 0}, {"requests_per_s": float("nan")}, {"burst": 0}])
def test_impossible_rates_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Sessions(**options)


def test_impossible_limits_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_body_bytes"):
        ServerLimits(max_body_bytes=0)


def test_a_session_that_asks_too_often_is_told_when_to_come_back(session: ScriptedSession) -> None:
    sessions = Sessions(requests_per_s=0.5, burst=2)
    sessions.add(session)
    transport = httpx.ASGITransport(model_app(sessions, limits=ServerLimits()))

    async def ask() -> list[httpx.Response]:
        headers = {"x-api-key": session.key}
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as client:
            return [await client.post(f"/v1{ROUTES[p]}", json=body_of(p, "hi")) for p in ("chat", *PROTOCOLS)]

    first, second, *refused = asyncio.run(ask())
    assert first.status_code == second.status_code == 200
    for protocol, response in zip(PROTOCOLS[1:], refused, strict=True):
        assert_error(protocol, response, 429)
        assert response.headers["retry-after"] == "2"


def test_a_session_may_not_have_any_number_of_requests_waiting(
    http: httpx.Client, url: str, session: ScriptedSession
) -> None:
    with httpx.Client(timeout=0.5, limits=httpx.Limits(max_connections=100)) as impatient:

        def wait() -> None:
            with pytest.raises(httpx.ReadTimeout):
                impatient.post(f"{url}/chat/completions", json=body_of("chat", "wait"))

        threads = [threading.Thread(target=wait) for _ in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: len(session.asked) == 8)
        response = http.post(f"{url}/chat/completions", json=body_of("chat", "hi"))
        assert_error("chat", response, 429)
        for thread in threads:
            thread.join()
    until(lambda: session.canceled == 8)
    assert http.post(f"{url}/chat/completions", json=body_of("chat", "hi")).status_code == 200


# What fails.


@pytest.mark.matrix
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_error_of_the_session_has_its_status_in_the_form_of_the_protocol(
    http: httpx.Client, url: str, protocol: str, stream: bool
) -> None:
    response = http.post(f"{url}{ROUTES[protocol]}", json=body_of(protocol, "fail", stream=stream))
    assert assert_error(protocol, response, 502) == "the policy failed"


@pytest.mark.matrix
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_unexpected_error_is_logged_and_answered_with_its_id_only(
    http: httpx.Client, url: str, caplog: pytest.LogCaptureFixture, protocol: str, stream: bool
) -> None:
    response = http.post(f"{url}{ROUTES[protocol]}", json=body_of(protocol, "break", stream=stream))
    message = assert_error(protocol, response, 500)
    request_id = response.headers["x-request-id"]
    assert message == f"the gateway failed; its log has the cause under {request_id}"
    assert f"{request_id} failed with ValueError" in caplog.text
    assert "in ask" in caplog.text
    assert SECRET not in caplog.text + response.text


def test_a_stream_that_cannot_be_written_as_a_whole_is_an_error(
    http: httpx.Client, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def events(self: Any, *_: Any) -> Iterator[bytes]:
        yield b"data: " + b"x" * 20_000 + b"\n\n"
        raise ValueError(SECRET)

    monkeypatch.setattr(type(WIRE_FORMATS["chat"]), "events", events)
    response = http.post(f"{url}/chat/completions", json=body_of("chat", "hi", stream=True))
    assert response.headers["x-request-id"] in assert_error("chat", response, 500)
    assert SECRET not in response.text


def test_a_client_that_goes_away_while_it_waits_abandons_its_request(url: str, session: ScriptedSession) -> None:
    with pytest.raises(httpx.ReadTimeout), httpx.Client(timeout=0.3) as impatient:
        impatient.post(f"{url}/chat/completions", json=body_of("chat", "wait"))
    until(lambda: session.abandoned and session.canceled)
    assert session.abandoned == session.asked


@pytest.mark.full
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_waits_for_its_answer_abandons_nothing(
    http: httpx.Client, url: str, session: ScriptedSession, stream: bool
) -> None:
    for text in ("hi", "sleep", "long"):
        assert http.post(f"{url}/chat/completions", json=body_of("chat", text, stream=stream)).status_code == 200
    assert session.abandoned == []


def request_of(url: httpx.URL, body: dict[str, Any]) -> bytes:
    """Write a request as it is sent."""
    data = json.dumps(body).encode()
    head = ("host: gateway", "content-type: application/json", f"content-length: {len(data)}", "", "")
    return "\r\n".join((f"POST {url.path} HTTP/1.1", *head)).encode() + data


def connect(url: str, body: dict[str, Any]) -> socket.socket:
    """Send a request on a connection of its own, without reading the response."""
    parsed = httpx.URL(url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((parsed.host, parsed.port))
    connection.sendall(request_of(parsed, body))
    return connection


def test_a_client_that_goes_away_in_the_middle_of_a_stream_abandons_its_request(
    url: str, session: ScriptedSession
) -> None:
    with connect(f"{url}/chat/completions", body_of("chat", "longest", stream=True)) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    until(lambda: session.abandoned)
    assert session.abandoned == session.asked


def test_the_connection_of_a_client_that_does_not_read_is_closed_with_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_GRACE_S", "_CLOSING_S"):
        monkeypatch.setattr(f"envsdk.gateway._serving.{name}", 0.1)
    server, session = BackgroundServer(), ScriptedSession()
    server.sessions.add(session)
    url = f"{server.base_url(session)}/v1/chat/completions"
    with connect(url, body_of("chat", "longest", stream=True)) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        server.stop()
        connection.settimeout(600)
        with contextlib.suppress(ConnectionError):
            while connection.recv(1_000_000):
                pass


def test_a_client_that_reads_slowly_blocks_no_other(http: httpx.Client, url: str, session: ScriptedSession) -> None:
    with connect(f"{url}/chat/completions", body_of("chat", "longest", stream=True)) as slow:
        slow.settimeout(600)
        assert slow.recv(1000).startswith(b"HTTP/1.1 200")
        for _ in range(20):
            assert http.post(f"{url}/chat/completions", json=body_of("chat", "hi")).status_code == 200
        last = b""
        while b"[DONE]" not in last:
            last = last[-100:] + slow.recv(1_000_000)
    assert session.abandoned == []


# What else clients ask for.


def test_base_urls_answer(http: httpx.Client, root: str, session: ScriptedSession) -> None:
    for path in ("/", "/v1", "/v1/", f"/s/{session.id}", f"/s/{session.id}/", f"/s/{session.id}/v1", "/?beta=true"):
        assert http.head(root + path).status_code == 200
        assert http.get(root + path).json() == {"status": "ok"}
    assert_error("chat", http.get(f"{root}/s/unknown"), 404)


def test_models_are_listed_in_the_form_of_the_protocol(http: httpx.Client, url: str, root: str) -> None:
    assert http.get(f"{url}/models").json()["object"] == "list"
    listed = http.get(f"{url}/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert listed["data"][0]["type"] == "model"
    assert_error("chat", http.get(f"{root}/v1/models"), 401)


def test_tokens_are_counted(http: httpx.Client, url: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert http.post(f"{url}/messages/count_tokens?beta=true", json=body).json() == {"input_tokens": 7}
    assert_error("anthropic", http.post(f"{url}/messages/count_tokens", json={}), 400)


@pytest.mark.parametrize("stream", [False, True])
def test_openais_client_retrieves_and_deletes_a_response(url: str, session: ScriptedSession, stream: bool) -> None:
    with openai.OpenAI(base_url=url, api_key=session.key, max_retries=0) as client:
        if stream:
            with client.responses.stream(model="m", input="a", instructions="Be brief.") as streamed:
                created: Any = streamed.get_final_response()
        else:
            created = client.responses.create(model="m", input="a", instructions="Be brief.")
        again = client.responses.retrieve(created.id)
        assert (again.output_text, again.instructions) == ("session: a", "Be brief.")
        assert again.to_dict() == {**created.to_dict(), "output": again.to_dict()["output"]}
        going_on = client.responses.create(model="m", input="b", previous_response_id=created.id)
        assert client.responses.delete(created.id) is None
        for act in (client.responses.retrieve, client.responses.delete):
            with pytest.raises(openai.NotFoundError, match="not found") as caught:
                act(created.id)
            assert (caught.value.code, caught.value.status_code) == (None, 404)
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model="m", input="b", previous_response_id=created.id)
        assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")
        client.responses.create(model="m", input="c", previous_response_id=going_on.id)
        texts = [received.message.content for received in session.asked[-1].messages]
        assert texts == ["a", "session: a", "b", "session: b", "c"]
        with pytest.raises(openai.BadRequestError, match="stream"):
            list(client.responses.retrieve(going_on.id, stream=True))


def test_a_response_that_is_not_stored_or_of_another_session_is_not_found(
    server: BackgroundServer, url: str, session: ScriptedSession
) -> None:
    other = ScriptedSession("other")
    server.sessions.add(other)
    with openai.OpenAI(base_url=url, api_key=session.key, max_retries=0) as client:
        kept = client.responses.create(model="m", input="a")
        not_kept = client.responses.create(model="m", input="a", store=False)
        theirs = client.with_options(base_url=f"{server.base_url(other)}/v1", api_key=other.key)
        for asking, name in ((client, not_kept.id), (theirs, kept.id), (client, "resp_x"), (client, "msg_x")):
            for act in (asking.responses.retrieve, asking.responses.delete):
                with pytest.raises(openai.NotFoundError):
                    act(name)
        assert client.responses.retrieve(kept.id).id == kept.id
    server.sessions.remove(other.id)


def test_anthropic_works_with_either_base_url(server: BackgroundServer, session: ScriptedSession) -> None:
    anthropic = pytest.importorskip("anthropic")
    for base in (server.base_url(session), f"{server.base_url(session)}/v1"):
        with anthropic.Anthropic(base_url=base, api_key=session.key, max_retries=0) as client:
            asked: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
            assert client.messages.create(**asked).content[0].text == "session: hi"
            with client.messages.stream(**asked) as stream:
                assert "".join(stream.text_stream) == "session: hi"
            del asked["max_tokens"]
            assert client.messages.count_tokens(**asked).input_tokens == 7
            with pytest.raises(anthropic.APIStatusError, match="the policy failed"):
                client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "fail"}])


# What others notice.


def test_while_an_image_is_read_other_requests_of_the_server_are_answered(
    http: httpx.Client, server: BackgroundServer, url: str, session: ScriptedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def check_image(image: object) -> None:
        has_begun.set()
        assert may_end.wait(600)

    monkeypatch.setattr(session, "check_image", check_image)
    image = {"type": "image_url", "image_url": {"url": Image.read(np.zeros((8, 8, 3), np.uint8)).url}}
    body = {"model": "m", "messages": [{"role": "user", "content": [image]}]}
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(httpx.post, f"{url}/chat/completions", json=body, timeout=600)
        assert has_begun.wait(600)
        assert http.get(f"{url}/models").status_code == 200
        assert not asking.done()
        may_end.set()
        assert asking.result().status_code == 200


def test_hundreds_of_sessions_ask_at_once_and_each_gets_its_own_answers(
    server: BackgroundServer, is_full: bool
) -> None:
    count = 500 if is_full else 150
    ScriptedSession.asking, ScriptedSession.together = 0, count
    sessions = [ScriptedSession(f"s{i}") for i in range(count)]
    for session in sessions:
        server.sessions.add(session)

    async def play(session: ScriptedSession) -> None:
        url = httpx.URL(f"{server.base_url(session)}/v1/chat/completions")
        reader, writer = await asyncio.open_connection(url.host, url.port)
        for text in ("first", "together", "fail" if session.name.endswith("7") else "last"):
            writer.write(request_of(url, body_of("chat", text)))
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            reply = json.loads(await reader.readexactly(length))
            if text == "fail":
                assert head.startswith(b"HTTP/1.1 502") and reply["error"]["message"] == "the policy failed"
            else:
                assert text_of("chat", reply) == f"{session.name}: {text}"
        writer.close()
        await writer.wait_closed()

    async def play_all() -> None:
        await asyncio.gather(*map(play, sessions))

    asyncio.run(play_all())
    assert sum(len(session.asked) for session in sessions) == 3 * count
    for session in sessions:
        server.sessions.remove(session.id)


def test_the_log_has_routes_and_times_but_no_content_and_no_key(
    http: httpx.Client, url: str, root: str, session: ScriptedSession, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("envsdk", "uvicorn", "asyncio", "starlette"):
        caplog.set_level(logging.DEBUG, logger=name)
    for protocol in PROTOCOLS:
        for text in (SECRET, "break", "fail"):
            http.post(f"{url}{ROUTES[protocol]}?q={SECRET}", json=body_of(protocol, text, user=SECRET))
    http.post(f"{root}/v1/chat/completions", json={SECRET: 1}, headers={"x-api-key": session.key})
    http.post(f"{url}/{SECRET}", content=SECRET)
    http.request(SECRET.upper(), f"{url}/models")
    until(lambda: "(other method) /s/{session_id}/v1/models 405" in caplog.text)
    assert "POST /s/{session_id}/v1/chat/completions 200" in caplog.text
    assert "POST (no route) 404" in caplog.text
    assert not [leak for leak in (SECRET, session.key, session.id) if leak in caplog.text.lower()]


@given(content=st.binary(max_size=300))
def test_bytes_that_are_not_http_are_refused(server: BackgroundServer, http: httpx.Client, content: bytes) -> None:
    session = ScriptedSession()
    server.sessions.add(session)
    parsed = httpx.URL(f"{server.base_url(session)}/v1")
    with socket.create_connection((parsed.host, parsed.port)) as connection:
        connection.sendall(content + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        answered = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert not answered or answered.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
    url = f"{server.base_url(session)}/v1/chat/completions"
    assert http.post(url, json=body_of("chat", "hi")).status_code == 200
    server.sessions.remove(session.id)


# Connections.


class Bounded:
    """A server with small limits of connections."""

    def __init__(self, **limits: Any) -> None:
        self.server, self.session = BackgroundServer(ServerLimits(**limits)), ScriptedSession()
        self.server.sessions.add(self.session)
        self.url = httpx.URL(f"{self.server.base_url(self.session)}/v1")

    def __enter__(self) -> "Bounded":
        self._stack = contextlib.ExitStack()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.server.stop()

    def connect(self) -> socket.socket:
        connection = self._stack.enter_context(socket.create_connection((self.url.host, self.url.port or 80)))
        connection.settimeout(600)
        return connection

    def is_alive(self) -> bool:
        return httpx.get(f"{self.url}/models", timeout=600).status_code == 200


def is_closed(connection: socket.socket) -> bool:
    """Wait for the end of a connection."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(65_536):
            pass
    return True


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize(
    "sent", [b"", b"POST /v1", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"], ids=["silent", "slow", "again"]
)
def test_a_client_has_limited_time_for_the_headers_of_a_request(sent: bytes) -> None:
    with Bounded(header_timeout_s=0.5) as bounded:
        connection = bounded.connect()
        connection.sendall(sent)
        if sent.endswith(b"\r\n\r\n"):
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
            connection.sendall(b"G")
        assert is_closed(connection)
        assert bounded.is_alive()


@pytest.mark.full
def test_bytes_after_a_request_do_not_keep_a_connection_open() -> None:
    with Bounded(header_timeout_s=0.5) as bounded:
        connection = bounded.connect()
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        with contextlib.suppress(ConnectionError):
            for _ in range(600):
                connection.sendall(b"a")
                time.sleep(0.1)
        assert is_closed(connection)


@pytest.mark.full
def test_a_request_may_take_longer_than_its_headers() -> None:
    with Bounded(header_timeout_s=0.5) as bounded:
        response = httpx.post(f"{bounded.url}/chat/completions", json=body_of("chat", "sleep"), timeout=600)
        assert response.status_code == 200


def test_connections_that_are_silent_or_slow_in_every_place_stop_no_other() -> None:
    with Bounded() as bounded:
        path = f"{bounded.url.path}/chat/completions"
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n".encode()
        begun = [b"", head[:30], head, head + b'content-length: 900\r\n\r\n{"model": "m", ']
        for number in range(200):
            bounded.connect().sendall(begun[number % len(begun)])
        assert bounded.is_alive()


def test_of_too_many_connections_the_one_that_was_idle_for_the_longest_time_is_closed() -> None:
    with Bounded(max_connections=8) as bounded:
        asking = bounded.connect()
        asking.sendall(request_of(bounded.url.join(f"{bounded.url.path}/chat/completions"), body_of("chat", "wait")))
        until(lambda: bounded.session.asked)
        idle = [bounded.connect() for _ in range(40)]
        assert all(is_closed(connection) for connection in idle[:30])
        assert bounded.is_alive()
        assert not bounded.session.canceled  # the connection with a request stays


def test_a_server_that_clients_fill_with_connections_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with Bounded(max_connections=8) as bounded:
        idle = [bounded.connect() for _ in range(60)]
        assert is_closed(idle[0])
        for _ in range(20):
            connection = bounded.connect()
            connection.sendall(b"\0\r\n\r\n")
            is_closed(connection)
        assert bounded.is_alive()
    assert len(caplog.records) <= 4


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="limits the descriptors of a process")
def test_with_few_file_descriptors_idle_connections_stop_nothing_and_the_log_stays_short() -> None:
    program = """
import asyncio.constants, resource, socket
asyncio.constants.ACCEPT_RETRY_DELAY = 0.1  # else, a second
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 1024))
from envsdk.gateway._serving import BackgroundServer
server = BackgroundServer()
print(server._address, flush=True)
input()
"""
    with (
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
        contextlib.ExitStack() as stack,
    ):
        assert process.stdout is not None
        url = httpx.URL(process.stdout.readline().strip())
        for _ in range(150):
            stack.enter_context(socket.create_connection((url.host, url.port or 80)))
        assert httpx.get(url, timeout=600).status_code == 200
        _, logged = process.communicate("\n", timeout=600)
    assert len(logged) < 2000
