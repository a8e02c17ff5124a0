"""Tools of a real MCP server, over stdio and over HTTP."""

import asyncio
import gc
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mcp
import pytest

import envsdk
from envsdk import Limits, Message, Tool, ToolCall, ToolEnv, Trajectory, Turn
from envsdk.authoring.adapters._mcp import MCPServer, MCPServerError
from envsdk.errors import ConfigError
from envsdk.policies import ReplyPolicy
from envsdk.rollouts import rollout_many

SCRIPT = str(Path(__file__).parent / "tool_server.py")
COMMAND = [sys.executable, SCRIPT]
Calls = Sequence[tuple[str, dict[str, Any]]]


class Tools(ToolEnv):
    """Calls what the script says, one call a reply, and ends with a reward of 1."""

    def __init__(self, server: MCPServer, script: Calls = (), **options: Any) -> None:
        super().__init__(**options)
        self.server = server
        self.script = script
        self.tools = server.tools()

    def start(self) -> Turn:
        self.left = list(self.script)
        return Turn("Go.")

    def finish(self, reply: Message) -> Turn:
        return Turn(reward=1.0, terminated=True)

    def reference_reply(self) -> Message:
        if not self.left:
            return Message(role="assistant", content="Done.")
        name, arguments = self.left.pop(0)
        return Message(role="assistant", tool_calls=[ToolCall(name=name, arguments=arguments)])


def answers(trajectory: Trajectory) -> list[str]:
    """What the tools said, in order."""
    return [message.content for message in trajectory.contexts["main"].messages if message.role == "tool"]


def played(env: ToolEnv) -> list[str]:
    trajectory = envsdk.rollout(env, "reference", seed=0)
    assert (trajectory.status, trajectory.reward) == ("terminated", 1.0)
    return answers(trajectory)


def by_name(server: MCPServer) -> dict[str, Callable[..., Any]]:
    """Each tool as a plain function."""
    return {
        tool.name: lambda tool=tool, **arguments: asyncio.run(tool.function(**arguments)) for tool in server.tools()
    }


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(is_true: Callable[[], bool]) -> bool:
    end = time.monotonic() + 600  # against hanging
    while not is_true() and time.monotonic() < end:
        time.sleep(0.02)
    return is_true()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "envsdk-mcp"]


class HTTP:
    """The server, in a process of its own on a port of this machine."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "HTTP":
        self.process = subprocess.Popen([*COMMAND, str(self.port)])
        assert wait_until(self.listens)
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def stdio() -> Iterator[MCPServer]:
    """A server of a test's own."""
    before = len(threads())
    with MCPServer(COMMAND, timeout_s=600) as server:
        yield server
    assert len(threads()) == before


@pytest.fixture(scope="module", params=["stdio", "http"])
def server(request: pytest.FixtureRequest) -> Iterator[MCPServer]:
    """The same tools, each way, for all tests of this file."""
    if request.param == "stdio":
        with MCPServer(COMMAND, timeout_s=600) as server:
            yield server
    else:
        with HTTP() as http, MCPServer(http.url, timeout_s=600) as server:
            yield server


# What a model sees.


def test_tools_are_listed_with_their_schemas(server: MCPServer):
    tools = {tool.name: tool for tool in server.tools()}
    assert tools["add"].description == "Add two numbers."
    assert tools["add"].parameters["required"] == ["a", "b"]
    assert tools["add"].parameters["properties"]["a"]["type"] == "integer"
    assert list(tools["counter"].parameters)[:2] == ["type", "properties"]
    assert "a_b_c" in tools and all(isinstance(tool, Tool) for tool in tools.values())


def test_an_episode_calls_them(server: MCPServer):
    text = "é 漢 🎉\n<|im_end|> </tool_call>"
    script = [("add", {"a": 1, "b": 2}), ("echo", {"text": text}), ("a_b_c", {"self": "x", "tool": "y"})]
    env = Tools(server, script)
    assert played(env) == ["3", text, "xy"]
    env.close()


def test_results_of_every_kind_are_text(server: MCPServer):
    script = [(name, {}) for name in ("counter", "picture", "table", "note")]
    number, *texts = played(Tools(server, script))
    assert number.isdigit()
    assert texts == ["[image image/png, which cannot be shown]", '{"rows":[1,2]}', "a note:\nmilk"]


def test_a_call_that_fails_is_told_to_the_model(server: MCPServer):
    script = [
        ("fail", {}),
        ("add", {"a": "x", "b": 1}),
        ("add", {"a": 1}),
        ("none_such", {}),
        ("add", {"a": 1, "b": 1}),
    ]
    failed, wrong, missing, unknown, right = played(Tools(server, script))
    assert failed == "Error: Error executing tool fail"
    assert "Input should be a valid integer" in wrong
    assert missing.startswith("Error: ") and "b" in missing
    assert "none_such" in unknown
    assert right == "2"


def test_what_is_too_long_is_cut(server: MCPServer):
    (answer,) = played(Tools(server, [("echo", {"text": "x" * 100_000})], max_result_chars=50))
    assert answer == "x" * 50 + "\n[cut: 50 of 100,000 characters are shown]"
    with_more = by_name(server)["echo"](text="x" * 3_000_000)
    assert len(with_more) == 3_000_000


def test_a_call_that_takes_too_long_is_told_to_the_model_and_the_next_one_is_answered():
    with MCPServer(COMMAND, timeout_s=4) as server:
        env = Tools(server, [("slow", {"seconds": 30}), ("add", {"a": 1, "b": 2})])
        assert played(env) == ["Error: slow: it did not finish within 4 s", "3"]


def test_a_limit_of_the_environment_holds_too(stdio: MCPServer):
    env = Tools(stdio, [("slow", {"seconds": 30}), ("add", {"a": 1, "b": 2})], tool_timeout_s=4)
    late, answer = played(env)
    assert late == "Error: slow: it did not finish within 4 s"
    assert answer == "3"


# Who shares a server.


def test_rollouts_side_by_side_share_a_server(server: MCPServer):
    async def all_at_once() -> list[Trajectory]:
        envs = [Tools(server, [("counter", {}), ("add", {"a": 2, "b": index})]) for index in range(8)]
        return await asyncio.gather(*(envsdk.arollout(env, "reference", seed=0) for env in envs))

    said = [answers(trajectory) for trajectory in asyncio.run(all_at_once())]
    counts = sorted(int(count) for count, _ in said)
    assert counts == list(range(counts[0], counts[0] + 8))
    assert [int(total) for _, total in said] == [2 + index for index in range(8)]


def test_steps_outside_an_event_loop_call_tools(stdio: MCPServer):
    env = Tools(stdio, [("add", {"a": 20, "b": 22})])
    _, info = env.reset(seed=0)
    policy = ReplyPolicy(env, lambda speaker: speaker.reference_reply())
    asked = {"context": "main", "max_tokens": info["max_tokens"], "stop": ()}
    result = env.step(policy(env.prompt(), **asked))
    assert env.messages()[-1].content == "42"
    assert not result.terminated
    env.close()


def test_a_fork_shares_the_server(stdio: MCPServer):
    env = Tools(stdio, [("counter", {})], limits=Limits(max_steps=3))
    env.reset(seed=0)
    fork = env.fork()
    trajectories = [envsdk.rollout(one, "reference", reset=False) for one in (env, fork)]
    assert [answers(trajectory) for trajectory in trajectories] == [["1"], ["2"]]
    fork.server.close()


def test_a_fork_that_is_closed_leaves_the_original_its_server(stdio: MCPServer):
    env = Tools(stdio, [("counter", {}), ("counter", {})], limits=Limits(max_steps=4))
    env.reset(seed=0)
    fork = env.fork()
    assert answers(envsdk.rollout(fork, "reference", reset=False)) == ["1", "2"]
    for _ in range(2):
        fork.server.close()
    assert answers(envsdk.rollout(env, "reference", reset=False)) == ["3", "4"]
    env.server.close()
    assert played(env)[0] == "1"  # nobody used it any more, so that it began anew


def test_a_pickled_environment_connects_anew():
    with MCPServer(COMMAND, timeout_s=600) as server:
        env = Tools(server, [("counter", {}), ("process", {})])
        first = played(env)
        copy = pickle.loads(pickle.dumps(env))
        with copy.server:
            second = played(copy)
            assert copy.server is not server
    assert first[0] == second[0] == "1"
    assert first[1] != second[1]


def test_a_process_that_is_forked_off_connects_anew():
    fork = multiprocessing.get_context("fork")
    with MCPServer(COMMAND, timeout_s=600) as server:
        env = Tools(server, [("counter", {}), ("counter", {})])
        assert played(env) == ["1", "2"]
        told: Any = fork.Queue()
        child = fork.Process(target=lambda: (told.put(played(env)), env.server.close()))
        child.start()
        assert told.get(timeout=600) == ["1", "2"]
        child.join(600)
        assert child.exitcode == 0
        assert played(env) == ["3", "4"]


# What ends.


def test_an_episode_whose_server_dies_is_an_error_and_the_next_one_finds_a_new_server(stdio: MCPServer):
    class OneDies(Tools):
        def start(self) -> Turn:
            self.script = [("counter", {}), ("die" if self.episode.seed == 1 else "counter", {})]
            return super().start()

    env = OneDies(stdio)
    policy = ReplyPolicy(env, lambda player: player.reference_reply())
    first, second, third = rollout_many(lambda: env, policy, seeds=range(3), max_concurrency=1)
    assert (first.status, first.reward, answers(first)) == ("terminated", 1.0, ["1", "2"])
    assert (second.status, second.samples()) == ("error", [])
    assert "MCPServerError: the MCP server" in (second.error or "")
    assert "does not answer: MCPError: Connection closed" in (second.error or "")
    assert (third.status, third.reward, answers(third)) == ("terminated", 1.0, ["1", "2"])


def test_an_http_server_that_dies_fails_the_episode_and_one_that_is_back_is_found():
    http = HTTP()
    with MCPServer(http.url, timeout_s=600) as server:
        with http:
            env = Tools(server, [("counter", {}), ("die", {})])
            with pytest.raises(MCPServerError, match=f"the MCP server '{http.url}' does not answer"):
                envsdk.rollout(env, "reference", seed=0)
        with pytest.raises(MCPServerError, match="cannot be reached: ConnectError"):
            envsdk.rollout(env, "reference", seed=1)
        with http:
            assert played(Tools(server, [("counter", {}), ("counter", {})])) == ["1", "2"]


def test_a_session_that_is_over_fails_the_episode_and_is_begun_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mcp, "Client", partial(mcp.Client, mode="legacy"))  # newer servers have no sessions to lose
    http = HTTP()
    with MCPServer(http.url, timeout_s=600) as server:
        with http:
            tools = by_name(server)
            assert tools["counter"]() == "1"
        with http:
            with pytest.raises(MCPServerError, match="does not answer: MCPError: Session"):
                tools["counter"]()
            assert tools["counter"]() == "1"


def test_a_server_killed_between_two_calls_fails_the_episode(stdio: MCPServer):
    tools = by_name(stdio)
    process = int(tools["process"]())
    os.kill(process, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(process))
    with pytest.raises(MCPServerError, match="does not answer"):
        tools["counter"]()
    assert tools["counter"]() == "1"


def test_closing_ends_thread_and_process_and_may_be_done_again():
    before = len(threads())
    server = MCPServer(COMMAND, timeout_s=600)
    server.close()
    process = int(by_name(server)["process"]())
    assert is_alive(process)
    server.close()
    server.close()
    assert wait_until(lambda: not is_alive(process))
    assert len(threads()) == before
    assert by_name(server)["add"](a=1, b=1) == "2"  # it connects anew
    server.close()


def test_a_server_that_nobody_holds_any_more_is_closed():
    before = len(threads())
    server = MCPServer(COMMAND, timeout_s=600)
    server.tools()
    assert len(threads()) == before + 1
    del server
    gc.collect()
    assert len(threads()) == before


def test_a_call_in_flight_when_the_server_is_closed_fails():
    server = MCPServer(COMMAND, timeout_s=600)
    slow = by_name(server)["slow"]
    caught: list[BaseException] = []

    def call() -> None:
        try:
            slow(seconds=20)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(0.3)
    server.close()
    thread.join(600)
    assert [type(error) for error in caught] == [MCPServerError]


def test_a_program_that_closes_nothing_ends_without_noise_and_leaves_no_process():
    program = (
        "import asyncio, sys; from envsdk.authoring.adapters._mcp import MCPServer\n"
        "server = MCPServer(sys.argv[1:], timeout_s=600)\n"
        "tools = {tool.name: tool for tool in server.tools()}\n"
        "print(asyncio.run(tools['process'].function()))"
    )
    ended = subprocess.run([sys.executable, "-c", program, *COMMAND], capture_output=True, text=True, timeout=600)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert wait_until(lambda: not is_alive(int(ended.stdout)))


# What cannot be.


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (["/no/such/command"], "cannot be reached: FileNotFoundError"),
        ([sys.executable, "-c", ""], "cannot be reached: MCPError: Connection closed"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], "cannot be reached: TimeoutError"),
        ("http://127.0.0.1:9/mcp", "cannot be reached: ConnectError"),
    ],
)
def test_a_server_that_cannot_be_reached_is_an_error(server: Any, reason: str):
    with pytest.raises(MCPServerError, match=reason):
        MCPServer(server, timeout_s=1.5).tools()


@pytest.mark.parametrize(
    ("server", "options", "reason"),
    [
        ("", {}, "expected a URL, or a command"),
        ([], {}, "expected a URL, or a command"),
        ([1], {}, "expected a URL, or a command"),
        ("python server.py", {}, r"a command as a list: \['python', 'server.py'\]"),
        (COMMAND, {"timeout_s": 0}, "timeout_s is 0; expected a number above 0"),
    ],
)
def test_arguments_are_checked(server: Any, options: dict[str, Any], reason: str):
    with pytest.raises(ConfigError, match=reason):
        MCPServer(server, **options)


def test_tools_whose_names_become_equal_are_refused():
    program = (
        "from mcp.server.mcpserver import MCPServer; server = MCPServer()\n"
        "server.tool(name='a.b')(lambda: ''); server.tool(name='a/b')(lambda: ''); server.run()"
    )
    with MCPServer([sys.executable, "-c", program]) as server, pytest.raises(ConfigError, match="same name: a_b, a_b"):
        server.tools()


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ConfigError, match=r"pip install 'envsdk\[mcp\]'"):
        MCPServer(COMMAND)
