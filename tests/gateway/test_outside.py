"""A standalone gateway in front of a policy: its sessions are episodes, which are recorded."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted_sessions import RunningGateway

from envsdk.gateway.outside import PlayedSessions
from envsdk.rollouts import StoredRun

OPTIONS: dict[str, Any] = {"renderer": "qwen3", "tokenizer": "embedded", "limits": {"max_steps": 2}}
MESSAGES = [{"role": "user", "content": "Hello."}]


def asked(client: httpx.Client, session: dict[str, Any], times: int) -> list[int]:
    """Ask for replies to new conversations; return the statuses."""
    url, headers = f"{session['openai_base_url']}/chat/completions", {"authorization": f"Bearer {session['key']}"}
    bodies = [{"model": "m", "messages": [{"role": "user", "content": f"Hello {i}."}]} for i in range(times)]
    return [client.post(url, json=body, headers=headers).status_code for body in bodies]


@pytest.mark.parametrize(("limits", "statuses"), [(None, [200, 200, 400]), ({"max_steps": 1}, [200, 400, 400])])
def test_the_limits_of_the_gateway_are_those_of_a_session_unless_it_changes_them(
    limits: Any, statuses: list[int], tmp_path: Path
) -> None:
    sessions = PlayedSessions("random", OPTIONS, out=tmp_path / "run")
    with RunningGateway(sessions) as url, httpx.Client(base_url=url, timeout=60) as client:
        options = {"episode_id": "e", **({} if limits is None else {"limits": limits})}
        session = client.post("/sessions", json=options).json()
        assert asked(client, session, 3) == statuses
        closed = client.post(f"/sessions/{session['id']}/close").json()
    assert closed["summary"]["stop_reason"] == "max_steps"
    (trajectory,) = StoredRun(tmp_path / "run").trajectories()
    assert len(trajectory.steps) == statuses.count(200)


def test_the_counted_tokens_are_those_of_the_prompt() -> None:
    with RunningGateway(PlayedSessions("random", OPTIONS)) as url, httpx.Client(base_url=url, timeout=60) as client:
        session = client.post("/sessions", json={}).json()
        base, body = session["anthropic_base_url"], {"model": "m", "messages": MESSAGES, "system": "S", "max_tokens": 9}
        counted = client.post(f"{base}/v1/messages/count_tokens", json=body).json()["input_tokens"]
        assert client.post(f"{base}/v1/messages", json=body).json()["usage"]["input_tokens"] == counted
