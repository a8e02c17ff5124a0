"""A standalone gateway over real HTTP: sessions are opened, rewarded and closed, by whom it may be, and are limited."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families
from protocol_bodies import until
from scripted_sessions import SECRET, RunningGateway, ScriptedFactory

from envsdk.errors import ConfigError
from envsdk.gateway._app import ServerLimits
from envsdk.gateway._management import Gateway, serve
from envsdk.gateway._serving import listen
from envsdk.gateway._standalone import SessionLimits

TOKEN = "a-token-of-the-gateway"
BODY: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def factory() -> ScriptedFactory:
    return ScriptedFactory()


@pytest.fixture
def gateway(factory: ScriptedFactory) -> Iterator[httpx.Client]:
    limits = ServerLimits(max_body_bytes=100_000)
    session_limits = SessionLimits(max_sessions=20)
    with (
        RunningGateway(factory, limits=limits, session_limits=session_limits) as url,
        httpx.Client(base_url=url, timeout=600) as client,
    ):
        yield client


def opened(gateway: httpx.Client, **options: Any) -> dict[str, Any]:
    response = gateway.post("/sessions", json=options)
    assert response.status_code == 201, response.text
    return response.json()


def error_of(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    return response.json()["error"]["message"]


def test_a_session_is_opened_asked_rewarded_and_closed(gateway: httpx.Client, factory: ScriptedFactory) -> None:
    options = {"task": {"x": 1}, "seed": 3, "limits": {"max_steps": 5}, "episode_id": "e", "group_id": "g", "role": "r"}
    session = opened(gateway, **options)
    assert factory.options[session["id"]] == options
    assert session["openai_base_url"] == f"{gateway.base_url}/s/{session['id']}/v1"
    reply = httpx.post(f"{session['openai_base_url']}/chat/completions", json=BODY)
    assert reply.json()["choices"][0]["message"]["content"] == "session: hi"
    reply = gateway.post("/v1/chat/completions", json=BODY, headers={"authorization": f"Bearer {session['key']}"})
    assert reply.status_code == 200
    shown = gateway.get(f"/sessions/{session['id']}").json()
    assert (shown["status"], shown["requests"], shown["waiting"]) == ("open", 2, 0)
    assert session["key"] not in str(shown)
    assert gateway.post(f"/sessions/{session['id']}/reward", json={"reward": 1}).status_code == 200
    gateway.post(f"/sessions/{session['id']}/reward", json={"reward": {"format": 0.5, "length": -1}})
    assert factory.rewards[session["id"]] == [{"reward": 1.0}, {"format": 0.5, "length": -1.0}]
    closed = gateway.post(f"/sessions/{session['id']}/close").json()
    assert closed == {"id": session["id"], "status": "closed", "reason": "closed", "summary": {"steps": 2}}
    assert gateway.get(f"/sessions/{session['id']}").json() == closed


def test_a_closed_session_answers_nothing_and_closing_it_again_returns_the_same(
    gateway: httpx.Client, factory: ScriptedFactory
) -> None:
    session = opened(gateway, task="slow")
    closings: list[Any] = []
    threads = [
        threading.Thread(target=lambda: closings.append(gateway.post(f"/sessions/{session['id']}/close").json()))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(closings) == 3 and closings[0] == closings[1] == closings[2]
    assert httpx.post(f"{session['openai_base_url']}/chat/completions", json=BODY).status_code == 404
    assert "closed" in error_of(gateway.post(f"/sessions/{session['id']}/reward", json={"reward": 1}), 409)


def test_unknown_sessions_are_not_found(gateway: httpx.Client) -> None:
    error_of(gateway.get("/sessions/unknown"), 404)
    error_of(gateway.post("/sessions/unknown/close"), 404)
    error_of(gateway.post("/sessions/unknown/reward", json={"reward": 1}), 404)


@pytest.mark.parametrize(
    "options",
    [
        {"sed": 1},
        {"seed": -1},
        {"seed": True},
        {"seed": "1"},
        {"limits": 3},
        {"episode_id": ""},
        {"role": 5},
        {"task": "broken"},
        [],
        "task",
    ],
)
def test_invalid_options_are_refused(gateway: httpx.Client, factory: ScriptedFactory, options: Any) -> None:
    error_of(gateway.post("/sessions", json=options), 400)
    assert not factory.sessions


@pytest.mark.parametrize("reward", [True, "1", {}, {"": 1}, {"a": "1"}, {"a": True}, [1]])
def test_invalid_rewards_are_refused(gateway: httpx.Client, factory: ScriptedFactory, reward: Any) -> None:
    session = opened(gateway)
    error_of(gateway.post(f"/sessions/{session['id']}/reward", json={"reward": reward}), 400)
    error_of(gateway.post(f"/sessions/{session['id']}/reward", json=reward), 400)
    assert factory.rewards[session["id"]] == []


def test_what_does_not_fit_the_episode_is_a_conflict(gateway: httpx.Client) -> None:
    session = opened(gateway)
    for status in (200, 409):
        response = gateway.post(f"/sessions/{session['id']}/reward", json={"reward": {"again": 1}})
        assert response.status_code == status


def test_an_unexpected_error_of_the_factory_is_answered_with_its_id_only(gateway: httpx.Client) -> None:
    response = gateway.post("/sessions", json={"task": "unexpected"})
    assert response.headers["x-request-id"] in error_of(response, 500)
    assert SECRET not in response.text


def test_the_number_of_open_sessions_is_limited(gateway: httpx.Client) -> None:
    sessions = [opened(gateway) for _ in range(20)]
    response = gateway.post("/sessions", json={})
    assert "20 sessions are open" in error_of(response, 429)
    assert response.headers["retry-after"] == "1"
    gateway.post(f"/sessions/{sessions[0]['id']}/close")
    opened(gateway)


def test_a_failed_opening_takes_no_place(gateway: httpx.Client) -> None:
    for task in ["broken", "unexpected"] * 15:
        gateway.post("/sessions", json={"task": task})
    opened(gateway)


def test_an_idle_session_is_closed_as_such_and_a_busy_one_is_not(
    factory: ScriptedFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("envsdk.gateway._sessions.time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    with (
        ThreadPoolExecutor(1) as pool,
        RunningGateway(factory, session_limits=SessionLimits(idle_timeout_s=1.0)) as url,
        httpx.Client(base_url=url, timeout=600) as gateway,
    ):
        idle, busy, waiting = opened(gateway), opened(gateway), opened(gateway)

        def ask(session: dict[str, Any], text: str) -> None:
            body = {**BODY, "messages": [{"role": "user", "content": text}]}
            httpx.post(f"{session['openai_base_url']}/chat/completions", json=body, timeout=600)

        ask(idle, "hi")
        pool.submit(ask, waiting, "wait")
        until(lambda: gateway.get(f"/sessions/{waiting['id']}").json()["waiting"])
        now[0] = 0.9
        ask(busy, "hi")
        now[0] = 1.5
        until(lambda: idle["id"] in factory.closed)
        assert factory.closed == {idle["id"]: "idle"}
        assert gateway.get(f"/sessions/{idle['id']}").json()["reason"] == "idle"
    assert factory.closed[busy["id"]] == factory.closed[waiting["id"]] == "shutdown"


def test_with_a_token_only_those_who_have_it_manage_sessions(factory: ScriptedFactory) -> None:
    with RunningGateway(factory, token=TOKEN) as url, httpx.Client(base_url=url) as gateway:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Bearer {TOKEN}x"}):
            for method, path in (("POST", "/sessions"), ("GET", "/sessions/x"), ("GET", "/metrics")):
                response = gateway.request(method, path, headers=headers)
                error_of(response, 401)
                assert response.headers["www-authenticate"] == "Bearer"
        assert gateway.get("/health").status_code == gateway.get("/openapi.json").status_code == 200
        authorized = {"authorization": f"Bearer {TOKEN}"}
        session = gateway.post("/sessions", json={}, headers=authorized).json()
        assert httpx.post(f"{session['openai_base_url']}/chat/completions", json=BODY).status_code == 200
        rewarding = {"authorization": f"Bearer {session['key']}"}
        path = f"/sessions/{session['id']}/reward"
        error_of(gateway.post(path, json={"reward": 1}, headers=rewarding), 401)
        error_of(gateway.post("/v1/chat/completions", json=BODY, headers=authorized), 401)


def test_without_a_token_a_web_page_cannot_manage_sessions_under_a_name_of_its_own(gateway: httpx.Client) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example"):
        error_of(gateway.post("/sessions", json={}, headers={"host": host}), 403)
    error_of(gateway.post("/sessions", content="{}", headers={"content-type": "text/plain"}), 415)
    assert gateway.post("/sessions", json={}, headers={"host": "localhost:80"}).status_code == 201


def test_an_address_that_others_can_reach_requires_a_token(factory: ScriptedFactory) -> None:
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.com"):
        with pytest.raises(ConfigError, match="token"):
            serve(Gateway(factory), host)
    with pytest.raises(ConfigError, match="at least 16"):
        Gateway(factory, token="short")


def test_an_address_in_use_is_refused(factory: ScriptedFactory) -> None:
    with listen("127.0.0.1", 0) as used, pytest.raises(ConfigError, match="another host or port"):
        serve(Gateway(factory), port=used.getsockname()[1])


@pytest.mark.parametrize("limits", [{"max_sessions": 0}, {"idle_timeout_s": 0}, {"idle_timeout_s": float("inf")}])
def test_impossible_limits_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(limits))):
        SessionLimits(**limits)


def test_metrics_count_requests_tokens_and_sessions_without_names(gateway: httpx.Client) -> None:
    session = opened(gateway)
    for text in ("hi", "hi", "fail"):
        body = {**BODY, "messages": [{"role": "user", "content": text}]}
        httpx.post(f"{session['openai_base_url']}/chat/completions", json=body)
    gateway.post(f"/sessions/{opened(gateway)['id']}/close")
    page = gateway.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page.text)
        for sample in family.samples
    }
    assert samples["envsdk_gateway_open_sessions",] == 1
    assert samples["envsdk_gateway_requests_total", "chat", "200"] >= 2
    assert samples["envsdk_gateway_requests_total", "chat", "502"] == 1
    assert samples["envsdk_gateway_prompt_tokens_total", "chat"] == 14
    assert samples["envsdk_gateway_sampled_tokens_total", "chat"] == 6
    assert samples["envsdk_gateway_closed_sessions_total", "closed"] == 1
    assert samples["envsdk_gateway_request_seconds_count", "chat"] >= 6
    assert not [leak for leak in (session["id"], session["key"], "hi: ") if leak in page.text]


def test_the_log_of_the_management_has_no_id_and_no_token(
    factory: ScriptedFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="envsdk")
    caplog.set_level(logging.DEBUG, logger="uvicorn")
    headers = {"authorization": f"Bearer {TOKEN}"}
    with RunningGateway(factory, token=TOKEN) as url, httpx.Client(base_url=url, headers=headers) as gateway:
        session = opened(gateway, task=SECRET)
        gateway.post("/sessions", json={"task": "unexpected"})
        gateway.post(f"/sessions/{session['id']}/reward?{SECRET}", json={"reward": {SECRET: "x"}})
        gateway.post(f"/sessions/{session['id']}/close")
    assert "POST /sessions/{session_id}/close 200" in caplog.text
    assert not [leak for leak in (SECRET, TOKEN, session["id"], session["key"]) if leak in caplog.text]


def test_the_description_has_the_routes_and_valid_schemas(gateway: httpx.Client) -> None:
    described = gateway.get("/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    session = opened(gateway)
    for path, item in described["paths"].items():
        for method, operation in item.items():
            if method == "parameters":
                continue
            response = gateway.request(method, path.format(session_id=session["id"], response_id="resp_x", model="m"))
            assert str(response.status_code) in operation["responses"], (method, path, response.text)
            other = gateway.request("PUT", path.format(session_id=session["id"], response_id="resp_x", model="m"))
            assert other.status_code == 405
            for content in operation.get("requestBody", {"content": {}})["content"].values():
                jsonschema.Draft202012Validator.check_schema(content["schema"])
    opening = described["paths"]["/sessions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(opening["properties"]) == {"task", "seed", "limits", "episode_id", "group_id", "role"}


PROGRAM = """
import sys
from scripted_sessions import ScriptedFactory
from envsdk.gateway._management import Gateway, serve

factory = ScriptedFactory()
serve(Gateway(factory), grace_s=0.3, on_start=lambda url: print(url, flush=True))
print("closed:", *factory.closed.values())
"""


# That SIGTERM does the same is shown by the command in test_outside.py, which ends by it.
@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_after_its_sessions_were_closed(number: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as program:
        assert program.stdout is not None
        url = program.stdout.readline().strip()
        session = httpx.post(f"{url}/sessions", json={}).json()
        answers: list[int] = []

        async def ask() -> None:
            async with httpx.AsyncClient(base_url=session["openai_base_url"], timeout=600) as client:
                assert (await client.post("/chat/completions", json=BODY)).status_code == 200
                body = {**BODY, "messages": [{"role": "user", "content": "wait"}]}
                waiting = asyncio.create_task(client.post("/chat/completions", json=body))
                while not httpx.get(f"{url}/sessions/{session['id']}").json()["waiting"]:
                    await asyncio.sleep(0.01)
                program.send_signal(number)
                answers.append((await waiting).status_code)

        asyncio.run(ask())
        output, errors = program.communicate(timeout=600)
    assert answers == [503]
    assert (program.returncode, output, errors) == (0, "closed: shutdown\n", "")
