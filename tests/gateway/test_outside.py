"""A standalone gateway in front of a policy: its sessions are episodes, and what fails is answered and recorded."""

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import soundness
from commanded_policies import SECRET, Commanded
from model_servers import ModelServer
from protocol_bodies import ROUTES, body_of, check_error, text_of, until
from scripted_sessions import RunningGateway

from envsdk import Message, Trajectory
from envsdk.errors import ConfigError, RunFolderError
from envsdk.gateway._outside import PlayedSessions
from envsdk.gateway._standalone import SessionLimits
from envsdk.policies import VLLM
from envsdk.rollouts import StoredRun

OPTIONS: dict[str, Any] = {"renderer": "qwen3", "tokenizer": "embedded", "limits": {"max_steps": 50}}
PROTOCOLS = tuple(ROUTES)


class Standalone:
    """A gateway that runs, its policy, and the episodes that ended."""

    def __init__(self, *, renderer: str = "qwen3", **options: Any) -> None:
        self.policy = Commanded(renderer)
        self.trajectories: dict[str, Trajectory] = {}
        served = {name: options.pop(name) for name in ("limits", "session_limits") if name in options}
        env_options = {**OPTIONS, **options.pop("env_options", {}), "renderer": renderer}
        names = ("trainable_roles", "roles", "role_of", "train_unseen", "sampling")
        options["declared"] = {name: options.pop(name) for name in names if name in options}
        if "role_of" in options["declared"]:
            options["declared"]["role_of"] = staticmethod(options["declared"]["role_of"])
        sessions = PlayedSessions(self.policy, env_options, on_trajectory=self._keep, **options)
        self._running = RunningGateway(sessions, **served)

    def _keep(self, trajectory: Trajectory) -> None:
        self.trajectories[trajectory.id] = trajectory

    def __enter__(self) -> "Standalone":
        self._client = httpx.Client(base_url=self._running.__enter__(), timeout=600)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._running.__exit__()
        assert self.policy.is_closed

    def post(self, path: str, body: Any, status: int = 200, **options: Any) -> Any:
        response = self._client.post(path, json=body, **options)
        assert response.status_code == status, response.text
        assert SECRET not in response.text
        return response.json()

    def state(self, session_id: str) -> dict[str, Any]:
        return self._client.get(f"/sessions/{session_id}").json()

    def open(self, **options: Any) -> "Program":
        return Program(self, self.post("/sessions", options, 201))


class Program:
    """A program that asks in a session."""

    def __init__(self, gateway: Standalone, session: dict[str, Any]) -> None:
        self.gateway, self.id = gateway, session["id"]
        self.base = session["anthropic_base_url"]
        self.said: list[dict[str, Any]] = []

    def ask(self, text: str, protocol: str = "chat", status: int = 200, **options: Any) -> str:
        """Say something in the conversation; return the reply, or the message of the error."""
        asked = [*self.said, {"role": "user", "content": text}]
        reply = self.gateway.post(self.base + "/v1" + ROUTES[protocol], body_of(protocol, asked), status, **options)
        if status != 200:
            return check_error(protocol, reply)
        self.said = [*asked, {"role": "assistant", "content": text_of(protocol, reply)}]
        return text_of(protocol, reply)

    @contextlib.contextmanager
    def asking(self, text: str, *, stream: bool = False) -> Iterator[socket.socket]:
        """Ask, and close the connection at the end of the block, whether there is an answer or not."""
        url = httpx.URL(self.base + "/v1" + ROUTES["chat"])
        body = json.dumps(body_of("chat", [*self.said, {"role": "user", "content": text}], stream=stream)).encode()
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((url.host, url.port or 80))
            head = f"POST {url.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            yield connection

    def leave(self, text: str, *, stream: bool, read: int = 0) -> None:
        """Ask, and close the connection when some bytes of the answer have come; none for while it waits."""
        with self.asking(text, stream=stream) as connection:
            if read:
                assert connection.recv(read).startswith(b"HTTP/1.1 200")
            else:
                until(lambda: self.gateway.state(self.id)["waiting"])

    def reward(self, reward: Any, status: int = 200) -> Any:
        return self.gateway.post(f"/sessions/{self.id}/reward", {"reward": reward}, status)

    def close(self) -> dict[str, Any]:
        return self.gateway.post(f"/sessions/{self.id}/close", {})["summary"]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    until(lambda: not set(threading.enumerate()) - before)


@pytest.fixture
def gateway() -> Iterator[Standalone]:
    with Standalone() as gateway:
        yield gateway


# Sessions are episodes.


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_session_is_an_episode_with_the_rewards_it_was_given(gateway: Standalone, protocol: str) -> None:
    program = gateway.open(episode_id="e", group_id="g", seed=3, task={"x": 1}, role="coder")
    for text in ("a", "b", "c"):
        assert program.ask(text, protocol) == f"answer to {text}"
    program.reward(1)
    program.reward({"style": 0.25, "reward": 0.5})
    summary = program.close()
    assert (summary["status"], summary["stop_reason"], summary["error_kind"]) == ("terminated", "terminated", None)
    assert (summary["steps"], summary["reward"], summary["contexts"]) == (3, 0.75, {"main": "coder"})
    trajectory = gateway.trajectories["e"]
    soundness.check(trajectory)
    assert (trajectory.group_id, trajectory.seed, trajectory.task) == ("g", 3, {"x": 1})
    assert len(trajectory.samples()) == 1


def test_a_session_without_a_request_is_not_recorded(gateway: Standalone) -> None:
    assert gateway.open(episode_id="e").close() == {"episode_id": "e", "status": "empty", "steps": 0}
    assert not gateway.trajectories


def test_a_session_whose_requests_were_all_refused_is_recorded_with_the_last_refusal(gateway: Standalone) -> None:
    program = gateway.open(episode_id="e")
    for text in (7, {}):
        gateway.post(program.base + "/v1" + ROUTES["chat"], {"model": "m", "messages": text}, 400)
    assert program.close()["status"] == "error"
    assert "2 requests were refused, the last one because: messages" in (gateway.trajectories["e"].error or "")


def test_an_episode_can_be_there_once(gateway: Standalone) -> None:
    program = gateway.open(episode_id="e")
    assert "'e'" in gateway.post("/sessions", {"episode_id": "e"}, 409)["error"]["message"]
    program.ask("a")
    program.close()


def test_sessions_do_not_see_each_other(gateway: Standalone) -> None:
    programs = [gateway.open(episode_id=f"e{i}") for i in range(5)]
    for turn in range(3):
        for i, program in enumerate(programs):
            assert program.ask(f"turn {turn} of {i}") == f"answer to turn {turn} of {i}"
    for program in programs:
        program.close()
    for i, trajectory in enumerate(gateway.trajectories.values()):
        texts = [message.content for message in trajectory.contexts["main"].messages if message.role == "user"]
        assert texts == [f"turn {turn} of {i}" for turn in range(3)]
    soundness.check(*gateway.trajectories.values())


def test_the_tasks_of_a_session_end_with_it(gateway: Standalone) -> None:
    witness = gateway.open()
    tasks = int(witness.ask("tasks").split()[0])
    programs = [gateway.open() for _ in range(5)]
    for program in programs[1:]:  # the first one asks nothing
        program.ask("a")
    assert int(witness.ask("tasks").split()[0]) > tasks + 5
    for program in programs:
        program.close()
    until(lambda: int(witness.ask("tasks").split()[0]) <= tasks)


def test_an_idle_session_is_recorded_as_such() -> None:
    with Standalone(session_limits=SessionLimits(idle_timeout_s=0.5)) as gateway:
        program = gateway.open(episode_id="e")
        program.ask("a")
        program.reward(0.5)
        until(lambda: "e" in gateway.trajectories)
        assert "session" in program.ask("b", status=404)
    ended = gateway.trajectories["e"]
    assert (ended.status, ended.stop_reason, ended.reward) == ("truncated", "idle", 0.5)
    soundness.check(ended)


def test_the_end_of_the_gateway_is_recorded_as_such() -> None:
    with Standalone() as gateway:
        program = gateway.open(episode_id="e")
        program.ask("a")
    ended = gateway.trajectories["e"]
    assert (ended.status, ended.stop_reason, len(ended.steps)) == ("truncated", "shutdown", 1)


def test_the_run_folder_has_each_episode_once_and_resumes(tmp_path: Path) -> None:
    for names in (["a", "b"], ["c"]):
        with Standalone(out=tmp_path / "run", resume=True) as gateway:
            for name in names:
                program = gateway.open(episode_id=name)
                program.ask(f"hello {name}")
                program.close()
            gateway.post("/sessions", {"episode_id": "a"}, 409)
    stored = {trajectory.id: trajectory for trajectory in StoredRun(tmp_path / "run").trajectories()}
    assert sorted(stored) == ["a", "b", "c"]
    soundness.check(*stored.values())
    with pytest.raises(RunFolderError):
        PlayedSessions(Commanded(), OPTIONS, out=tmp_path / "run")


# Limits.


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_limit_is_answered_in_the_form_of_the_protocol_and_rewards_still_count(
    gateway: Standalone, protocol: str
) -> None:
    program, other = gateway.open(episode_id="e", limits={"max_steps": 2}), gateway.open()
    program.ask("a", protocol)
    program.ask("b", protocol)
    for _ in range(3):
        assert "max_steps" in program.ask("c", protocol, 400)
    program.reward(1.0)
    assert other.ask("still here", protocol) == "answer to still here"
    summary = program.close()
    assert (summary["status"], summary["stop_reason"], summary["reward"]) == ("truncated", "max_steps", 1.0)
    soundness.check(gateway.trajectories["e"])


def test_a_session_goes_on_with_a_shorter_request_when_its_context_is_full(gateway: Standalone) -> None:
    program, other = (gateway.open(episode_id=name, limits={"max_context_tokens": 200}) for name in ("e", "other"))
    for one in (program, other):
        one.ask("a")
        assert "maximum context length is 200 tokens" in one.ask("b " * 300, status=400)
    program.ask("c")
    for one in (program, other):
        one.reward(0.5)
    ended, full = program.close(), other.close()
    assert (ended["stop_reason"], ended["steps"], ended["reward"], ended["breaks"]) == ("terminated", 2, 0.5, {})
    assert (full["stop_reason"], full["status"], full["reward"]) == ("max_context_tokens", "truncated", 0.5)
    soundness.check(*gateway.trajectories.values())


@pytest.mark.parametrize(("limits", "statuses"), [(None, [200, 200, 400]), ({"max_steps": 1}, [200, 400, 400])])
def test_the_limits_of_the_gateway_are_those_of_a_session_unless_it_changes_them(
    limits: Any, statuses: list[int]
) -> None:
    with Standalone(env_options={"limits": {"max_steps": 2}}) as gateway:
        program = gateway.open(episode_id="e", **({} if limits is None else {"limits": limits}))
        for number, status in enumerate(statuses):
            program.ask(f"hello {number}", status=status)
        assert program.close()["stop_reason"] == "max_steps"
    assert len(gateway.trajectories["e"].steps) == statuses.count(200)


def test_the_counted_tokens_are_those_of_the_prompt(gateway: Standalone) -> None:
    base, body = gateway.open().base, body_of("anthropic", [{"role": "user", "content": "Hello."}], system="S")
    counted = gateway.post(f"{base}/v1/messages/count_tokens", body)["input_tokens"]
    assert gateway.post(f"{base}/v1/messages", body)["usage"]["input_tokens"] == counted


# What fails.


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("command", "status", "kind"), [("fail", 502, "policy"), ("hang", 504, "infrastructure")], ids=["fail", "hang"]
)
def test_a_policy_that_fails_or_hangs_is_a_server_error_and_the_record_names_it(
    protocol: str, command: str, status: int, kind: str
) -> None:
    with Standalone(policy_timeout_s=1.0 if command == "hang" else 600.0) as gateway:
        program, other = gateway.open(episode_id="e"), gateway.open()
        program.ask("a", protocol)
        tasks = int(other.ask("tasks").split()[0])
        program.ask(command, protocol, status)
        program.ask("b", protocol, status)  # the episode is over
        assert other.ask("still here", protocol) == "answer to still here"
        until(lambda: int(gateway.open().ask("tasks").split()[0]) <= tasks)
        gateway.post(f"/sessions/{program.id}/reward", {"reward": 1}, 409)
        summary = program.close()
        other.close()
    assert (summary["status"], summary["error_kind"], summary["steps"]) == ("error", kind, 1)
    assert gateway.policy.canceled == (command == "hang")
    ended = gateway.trajectories["e"]
    assert ("no GPU" if command == "fail" else "took longer than 1 s") in (ended.error or "")
    soundness.check(ended)


@pytest.mark.full
def test_closing_a_session_or_the_gateway_does_not_wait_for_a_policy_that_hangs() -> None:
    statuses: dict[str, int] = {}
    threads: list[threading.Thread] = []

    def hang(program: Program, name: str) -> None:
        body = body_of("chat", [*program.said, {"role": "user", "content": "hang"}])
        statuses[name] = httpx.post(program.base + "/v1" + ROUTES["chat"], json=body, timeout=600).status_code

    with Standalone(close_timeout_s=0.3) as gateway:
        other = gateway.open(episode_id="other")
        for name in ("closed", "left"):
            program = gateway.open(episode_id=name)
            program.ask("a")
            threads.append(threading.Thread(target=hang, args=(program, name)))
            threads[-1].start()
            until(lambda: gateway.policy.hanging)
            if name == "closed":
                assert program.close()["error_kind"] == "infrastructure"
                assert other.ask("still here") == "answer to still here"
    for thread in threads:
        thread.join()
    assert (statuses, gateway.policy.hanging, gateway.policy.canceled) == ({"closed": 504, "left": 503}, 0, 2)
    closed, left = gateway.trajectories["closed"], gateway.trajectories["left"]
    assert (closed.status, closed.error_kind, len(closed.steps)) == ("error", "infrastructure", 1)
    assert "after the session closed" in (closed.error or "")
    # The end of the gateway refused the request, so that no one wanted its reply anymore.
    assert (left.status, left.stop_reason, left.sampled_tokens) == ("truncated", "shutdown", closed.sampled_tokens)
    soundness.check(*gateway.trajectories.values())


def test_a_message_that_the_model_family_cannot_express_is_refused() -> None:
    with Standalone(renderer="chatml") as gateway:
        program, other = gateway.open(episode_id="e"), gateway.open()
        tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
        body = body_of("chat", [{"role": "user", "content": "a"}], tools=tools)
        program.ask("a")
        refused = gateway.post(program.base + "/v1" + ROUTES["chat"], body, 400)
        assert "tools" in refused["error"]["message"]
        assert program.ask("b") == "answer to b"
        assert other.ask("still here") == "answer to still here"
        summary = program.close()
    assert (summary["status"], summary["steps"]) == ("terminated", 2)
    soundness.check(gateway.trajectories["e"])


def test_a_message_with_many_spaces_is_a_message(gateway: Standalone) -> None:
    program = gateway.open()
    assert program.ask(f"a{' ' * 200_000}b").endswith("b")
    assert program.ask("c") == "answer to c"
    assert program.close()["status"] == "terminated"


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.matrix(every=3)
@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("last", ["Find me.", "fail"])
def test_nothing_of_a_closed_session_waits_for_the_cyclic_collector(gateway: Standalone, protocol: str, last: str):
    def held() -> int:
        return sum(isinstance(one, Message) and "Find me." in one.content for one in gc.get_objects())

    programs = [gateway.open() for _ in range(3)]
    for program in programs:
        program.ask("Find me.", protocol)
        program.ask(last, protocol, status=502 if last == "fail" else 200)
    assert held() >= 3
    for program in programs:
        program.close()
    gateway.trajectories.clear()
    deadline = time.monotonic() + 600  # the server's tasks end just after the answer
    while held() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert held() == 0


# A model server.


def test_a_gateway_checks_its_model_server_at_the_start_and_reports_its_cache() -> None:
    def usage_of(session: Any, **asked: Any) -> dict[str, Any]:
        body = {"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": "Hi"}], **asked}
        headers = {"authorization": f"Bearer {session['key']}"}
        answer = httpx.post(f"{session['openai_base_url']}/chat/completions", json=body, headers=headers, timeout=600)
        return answer.json()["usage"]

    trajectories: list[Trajectory] = []
    with ModelServer("vllm") as server:
        server.cached = lambda length: length - 1
        sessions = PlayedSessions(
            VLLM(server.url), OPTIONS, declared={"sampling": {"temperature": 0.5}}, on_trajectory=trajectories.append
        )
        with RunningGateway(sessions) as url:
            until(lambda: httpx.get(f"{url}/health", timeout=600).status_code == 200)
            checks = len(server.requests)
            assert checks > 0
            session = httpx.post(f"{url}/sessions", json={}, timeout=600).json()
            usage = usage_of(session, temperature=0.9)
            assert len(server.requests) == checks + 1
            assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
            httpx.post(f"{url}/sessions/{session['id']}/close", json={}, timeout=600)
        with pytest.raises(ConfigError, match="sampling has temperatur=1"):
            PlayedSessions(VLLM(server.url), OPTIONS, declared={"sampling": {"temperatur": 1}})
    (part,) = trajectories[0].steps[0].parts
    assert (part.temperature, part.extra["request"]) == (0.5, {"sampling": {"temperature": 0.9}})


# Clients that are slow, or go away.


@pytest.mark.parametrize(
    ("command", "stream", "read"), [("sleep", False, 0), pytest.param("long", True, 100, marks=pytest.mark.full)]
)
def test_a_client_that_goes_away_and_asks_again_gets_the_reply_that_was_sampled(
    gateway: Standalone, command: str, stream: bool, read: int
) -> None:
    program, other = gateway.open(episode_id="e"), gateway.open()
    program.ask("a")
    program.leave(command, stream=stream, read=read)
    assert other.ask("still here") == "answer to still here"
    assert program.ask(command).startswith("answer to sleep" if command == "sleep" else "====")
    assert program.ask("b") == "answer to b"
    summary = program.close()
    assert (summary["status"], summary["steps"], summary["breaks"]) == ("terminated", 3, {})
    soundness.check(gateway.trajectories["e"])
    assert len(gateway.trajectories["e"].samples()) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_the_reply_to_a_client_that_went_away_is_not_sampled_to_its_end(gateway: Standalone, stream: bool) -> None:
    program = gateway.open(episode_id="e")
    program.ask("a")
    with program.asking("hang", stream=stream):
        until(lambda: gateway.policy.hanging == 1)
    assert program.ask("b") == "answer to b"
    assert (gateway.policy.hanging, gateway.policy.canceled) == (0, 1)
    summary = program.close()
    assert (summary["status"], summary["steps"], summary["breaks"]) == ("terminated", 3, {"edit": 1})
    soundness.check(gateway.trajectories["e"])


def test_a_canceled_reply_is_sampled_for_the_client_that_asks_again(gateway: Standalone) -> None:
    program = gateway.open(episode_id="e")
    program.ask("a")
    with program.asking("hang once"):
        until(lambda: gateway.policy.hanging == 1)
    assert program.ask("hang once") == "answer to hang once"
    summary = program.close()
    assert (gateway.policy.canceled, summary["steps"], summary["breaks"]) == (1, 2, {})


def test_replies_that_are_sampled_side_by_side_are_canceled_each_for_its_own_client(gateway: Standalone) -> None:
    program, policy = gateway.open(episode_id="e"), gateway.policy
    with contextlib.ExitStack() as clients:
        for number in range(3):
            program.said = [{"role": "user", "content": f"agent {number}"}, {"role": "assistant", "content": "?"}]
            clients.enter_context(program.asking("hang"))
            until(lambda number=number: policy.hanging == number + 1)
    until(lambda: policy.hanging == 0)
    program.said = []
    assert program.ask("b") == "answer to b"
    assert policy.canceled == 3
    assert program.close()["status"] == "terminated"
    soundness.check(gateway.trajectories["e"])


# The command.


def run_command(*arguments: str, cwd: Path | None = None) -> "subprocess.Popen[str]":
    command = [sys.executable, "-X", "dev", "-m", "envsdk", "gateway", "--policy", "random", "--port", "0", *arguments]
    return subprocess.Popen(
        command,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "error::ResourceWarning", "PYTHONUNBUFFERED": "1"},
    )


def test_the_roles_of_conversations_are_those_of_a_function() -> None:
    def role_of(messages: Sequence[Message]) -> str | None:
        return "judge" if messages[0].content == "Judge." else None

    with Standalone(role_of=role_of) as gateway:
        program = gateway.open(episode_id="e")
        program.ask("a")
        program.said = []
        program.ask("Judge.")
        assert program.close()["contexts"] == {"main": "main", "main/judge-1": "judge"}


def test_the_command_serves_until_sigterm_and_leaves_a_whole_run_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    (tmp_path / "my_agents.py").write_text("def role_of(messages):\n    return 'judge'\n")
    with run_command("--out", str(out), "--role-of", "my_agents:role_of", cwd=tmp_path) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[2].removesuffix("/sessions")
        with httpx.Client(base_url=url, timeout=600) as client:
            for name in ("closed", "open", "other"):
                session = client.post("/sessions", json={"episode_id": name}).json()
                body = body_of("chat", [{"role": "user", "content": name}])
                assert client.post(session["anthropic_base_url"] + "/v1" + ROUTES["chat"], json=body).status_code == 200
                if name == "closed":
                    client.post(f"/sessions/{session['id']}/close")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=600)
    assert (process.returncode, errors) == (0, "")
    trajectories = list(StoredRun(out).trajectories())
    reasons = {trajectory.id: trajectory.stop_reason for trajectory in trajectories}
    assert reasons == {"closed": "terminated", "open": "shutdown", "other": "shutdown"}
    assert {trajectory.contexts["main"].role for trajectory in trajectories} == {"judge"}
    soundness.check(*trajectories)
