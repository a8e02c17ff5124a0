"""Servers of `envsdk serve`, each in its own process."""

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FIVE = ("GuessNumber-v1", "Calculator-v1", "Delegate-v1", "SearchInline-v1", "KuhnPoker-v1")
"""Environments with plain replies, tools, sub-agents, continued replies and two players."""


@contextlib.contextmanager
def served(*arguments: str, cwd: Path | None = None, token: str = "") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The URL of a new server, and its process."""
    environment = {**os.environ, "COLUMNS": "10000", "ENVSDK_SERVE_TOKEN": token}
    if not token:
        del environment["ENVSDK_SERVE_TOKEN"]
    command = [sys.executable, "-m", "envsdk", "serve", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=cwd)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found, line
        yield found[0], process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@contextlib.contextmanager
def running(app: Any) -> Iterator[str]:
    """The URL of a server in this process."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether a condition holds within some seconds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
