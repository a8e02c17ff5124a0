"""What docs/programs.md shows is what is printed, and the commands of docs/how-to/gateway.md run."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from documents import CHECKOUT
from example_programs import EXAMPLES
from scripted_sessions import RunningGateway

from envsdk.gateway._outside import PlayedSessions
from envsdk.rollouts import StoredRun

PAGE = (CHECKOUT / "docs" / "programs.md").read_text(encoding="utf-8")
GATEWAY = (CHECKOUT / "docs" / "how-to" / "gateway.md").read_text(encoding="utf-8")
OPTIONS: dict[str, Any] = {"renderer": "qwen3", "tokenizer": "embedded"}


@pytest.mark.full
def test_the_table_of_what_dropped_messages_cost_is_that_of_the_example():
    run = subprocess.run([sys.executable, EXAMPLES / "trimming.py"], capture_output=True, text=True, check=True)
    table, _, first_break = run.stdout.partition("the first break: ")
    assert table in PAGE
    assert first_break.startswith("edit: messages 1 to 2 were left out")


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_commands_that_open_and_close_a_session_run(tmp_path: Path):
    (script,) = re.findall(r"^```sh\n(.*?)^```", GATEWAY, flags=re.DOTALL | re.MULTILINE)
    assert "http://localhost:8808" in script
    with RunningGateway(PlayedSessions("random", OPTIONS, out=tmp_path / "run")) as url:
        script = f"set -eu\n{script.replace('http://localhost:8808', url)}"
        run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    closed = json.loads(re.findall(r'\{"id".*?\}(?=\{"id"|$)', run.stdout)[-1])
    assert (closed["reason"], closed["summary"]["reward"], closed["summary"]["steps"]) == ("closed", 1.5, 1)
    (trajectory,) = StoredRun(tmp_path / "run").trajectories()
    assert (trajectory.group_id, trajectory.status) == ("issue-7", "terminated")
