"""The server of the page: loopback only, and JSON for everything, errors included."""

import contextlib
import http.client
import json
import re
import socket
import threading
import time
from hashlib import sha256
from pathlib import Path

import pytest
from typer.testing import CliRunner

from envsdk.cli import app
from envsdk.errors import ConfigError
from envsdk.rollouts import rollout_many
from envsdk.trajectories.records import write_jsonl
from envsdk.viewer._filters import parse_filter
from envsdk.viewer._page import PAGE, write_page
from envsdk.viewer._resources import Resources
from envsdk.viewer._server import ViewerServer
from envsdk.viewer._sources import Source

ROOT = Path(__file__).parents[2]
EPISODES = rollout_many("envsdk/MathChat-v0", "reference", seeds=range(3))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    write_jsonl(folder / "trajectories.jsonl", EPISODES)
    return folder


@pytest.fixture(scope="module")
def get(run):
    with ViewerServer(Resources([Source(run)])) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()

        def ask(path, *, method="GET", host=None):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
            headers = {"Host": f"127.0.0.1:{server.server_port}" if host is None else host}
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            connection.close()
            return answer.status, body if answer.headers["Content-Type"].startswith("text/html") else json.loads(body)

        yield ask
        server.shutdown()


def test_the_page_and_its_data_are_answered(get):
    assert get("/") == (200, PAGE.read_bytes())
    status, rows = get("/api/rows?run=0&after=1&generation=0")
    assert (status, [row["id"] for row in rows["rows"]], rows["start"]) == (200, [own.id for own in EPISODES[1:]], 1)
    assert get("/api/episode?run=0&line=2")[1]["id"] == EPISODES[1].id
    assert get("/api/tokens?run=0&line=2&context=main")[1]["ids"] == EPISODES[1].contexts["main"].tokens.tolist()
    assert get("/api/prompt?run=0&line=2&step=0")[1]["ranges"] == [["main", 0, EPISODES[1].steps[0].action_start]]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/api/episode?run=0&line=4", "no line 4; expected 1 to 3"),
        ("/api/episode?run=1&line=1", "no run 1; expected 0 to 0"),
        ("/api/episode?run=0", "line is ''; expected an integer"),
        ("/api/episode?run=0&line=-1", "line is '-1'"),
        ("/api/tokens?run=0&line=1&context=other", "no context 'other'"),
        ("/api/prompt?run=0&line=1&step=99", "no steps[99]"),
        ("/../etc/passwd", "nothing at"),
        ("/api", "nothing at '/api'; expected /"),
    ],
)
def test_what_does_not_exist_is_an_error_in_json(get, path, why):
    status, answer = get(path)
    assert status == 404
    assert why in answer["error"]["message"]


@pytest.mark.parametrize("host", ["attacker.example", "attacker.example:80", "127.0.0.1", ""])
def test_another_host_is_refused_so_that_a_foreign_page_cannot_read_a_run(get, host):
    status, answer = get("/api/runs", host=host)
    assert (status, answer["error"]["type"]) == (403, "HostRefused")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(get, method):
    status, answer = get("/api/runs", method=method)
    assert (status, answer["error"]["type"]) == (501, "RequestRefused")


def test_a_port_in_use_is_refused_with_advice(run):
    with ViewerServer(Resources([Source(run)])) as server, pytest.raises(ConfigError, match="--port 0 finds one"):
        ViewerServer(Resources([Source(run)]), server.server_port)


def test_only_chosen_episodes_are_written_into_a_file(run, tmp_path):
    file = tmp_path / "page.html"
    assert write_page(file, Resources([Source(run)]), parse_filter("seed>=1")) == 2
    page = file.read_text()
    assert page.startswith(PAGE.read_text().partition("<!--data-->")[0])
    assert len(
        re.findall(r'<script type="text/plain" class="data" data-name="[A-Za-z0-9+/=]+">[A-Za-z0-9+/=]+</script>', page)
    ) == 2 + 2 * (2 + 6)


def test_the_command_writes_a_file(run, tmp_path):
    answer = CliRunner().invoke(app, ["view", str(run), "--html", str(tmp_path / "page.html"), "--filter", "seed=0"])
    assert (answer.exit_code, answer.output[:16]) == (0, "wrote 1 episode ")
    with pytest.raises(ConfigError, match="cannot follow"):
        CliRunner().invoke(app, ["view", str(run), "--html", "page.html", "--follow"], catch_exceptions=False)
    with pytest.raises(ConfigError, match="into the filter of the page"):
        CliRunner().invoke(app, ["view", str(run), "--filter", "seed=0"], catch_exceptions=False)


def test_the_committed_page_was_built_from_its_sources():
    """`make page` builds it; tests/peers/browser builds it again and compares all of it."""
    folder = ROOT / "viewer"
    if not folder.is_dir():
        pytest.skip("the sources of the page are only in the repository")
    files = ["build.mjs", "package-lock.json", *(f"src/{file.name}" for file in (folder / "src").iterdir())]
    digest = sha256()
    for name in sorted(files):
        data = (folder / name).read_bytes()
        digest.update(f"{name} {len(data)}\n".encode() + data)
    assert f'<meta name="sources" content="{digest.hexdigest()}">' in PAGE.read_text()
    assert PAGE.stat().st_size < 150_000


def test_idle_connections_hold_a_bounded_number_of_threads(run):
    with ViewerServer(Resources([Source(run)])) as server, contextlib.ExitStack() as stack:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        server.max_connections = 8
        before = set(threading.enumerate())
        address = ("127.0.0.1", server.server_port)
        idle = [stack.enter_context(socket.create_connection(address, timeout=600)) for _ in range(16)]
        for connection in idle[: len(idle) - server.max_connections]:
            assert connection.recv(1) == b""
        connection = http.client.HTTPConnection(*address, timeout=600)
        connection.request("GET", "/api/runs", headers={"Host": f"127.0.0.1:{server.server_port}"})
        assert connection.getresponse().status == 200
        connection.close()
        # A connection is closed a moment before its thread ends.
        while len(set(threading.enumerate()) - before) > server.max_connections:
            time.sleep(0.01)
        server.shutdown()
