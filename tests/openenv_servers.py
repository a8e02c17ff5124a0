"""Servers of `envsdk serve`, each in its own process."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

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


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether a condition holds within some seconds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
