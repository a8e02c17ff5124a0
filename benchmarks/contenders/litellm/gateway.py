"""LiteLLM's proxy, which passes messages on. Its `mock_response` answers at once, so no model server takes part."""

import http.client
import json
import os
import secrets
import socket
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.contender import Repetition, contender
from benchmarks.served import Conversation, Requests, Served

START_S = 50.0
VARIABLES = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
"""So that it loads nothing from other servers, and logs no requests."""


@contender(
    "gateway",
    "LiteLLM proxy",
    packages=("litellm",),
    note="one worker, with `mock_response` in place of a model; it passes messages on, renders nothing and records "
    "nothing",
)
def gateway(length: int) -> Repetition:
    """Requests of a conversation."""
    folder = Path(tempfile.mkdtemp())
    answer = {"model": "openai/m", "api_key": "none", "mock_response": "Here is more."}
    (folder / "config.yaml").write_text(json.dumps({"model_list": [{"model_name": "m", "litellm_params": answer}]}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [Path(sys.executable).with_name("litellm"), "--config", folder / "config.yaml", "--host", "127.0.0.1"]
    key = f"sk-{secrets.token_hex(16)}"  # the proxy does not start without one
    server = Served(
        [*command, "--port", str(port), "--num_workers", "1"], {**os.environ, **VARIABLES, "LITELLM_MASTER_KEY": key}
    )
    _wait(server, port)
    headers = {"Authorization": f"Bearer {key}"}
    return Requests(server, Conversation(f"http://127.0.0.1:{port}/v1/chat/completions", headers), length)


def _wait(server: Served, port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", "/health/liveliness")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.3)
    server.close()
    raise ChildProcessError("the proxy did not start")
